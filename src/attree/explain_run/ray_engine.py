"""Write the parts of a call with Ray: actors load the run once, and each writes the parts whose numbers it gets.

Only part numbers and small rows travel. Retries, machines that come and go and the dashboard are Ray's. What is missing
is asked of the folder, so a command that was stopped or killed goes on when it is repeated.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from attree.errors import ArgumentError, AttreeError, MissingPackageError, expect
from attree.explain_run.parts import PartFolder
from attree.explain_run.write_part import ExplainCall, WrittenPart, write_part
from attree.io.processes import terminate_as_interrupt

RESTARTS = 100
"""How often an actor is started again when its process or its machine is lost."""

RETRIES = 10
"""How often a part is tried again when the process or the machine that writes it is lost."""

WAIT = 1.0
"""Seconds between two looks at the parts: not every signal gets through while Ray waits without a limit."""

REACHED_WITHIN = 5.0
"""Seconds within which the address of a cluster must answer."""

SEEN_WITHIN = 90.0
"""Seconds within which a part of another machine must be seen here: network file systems are late by up to 60."""


@dataclass(frozen=True)
class RayOptions:
    """Where Ray runs, and what it gives to each worker.

    Attributes:
        address: Address of a cluster, or `auto` for the one that this machine belongs to. None takes the cluster of
            `ray job submit` or of this machine, or else starts Ray on this machine alone.
        workers: Number of workers; None for as many as there is room for.
        cpus: CPUs of each worker, which are its number of threads.
        gpus: GPUs of each worker, which run the network; a fraction if workers share one. With 0, it runs on the CPU.
    """

    address: str | None = None
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0


class _PartWriter:
    """An actor that writes parts of one call.

    Args:
        call: The call.
        folder: The working folder of the command, which relative paths in the run's config start from.
        options: What Ray gives to each worker.
    """

    def __init__(self, call: ExplainCall, folder: str, options: RayOptions) -> None:
        self.call = call
        self.options = options
        if os.path.isdir(folder):
            os.chdir(folder)
        torch.set_num_threads(options.cpus)

    def write(self, number: int) -> WrittenPart:
        """Write a part."""
        try:
            return write_part(replace(self.call, device=_device(self.options)), number)
        except (AttreeError, OSError) as error:
            raise ArgumentError(f"A worker on {socket.gethostname()} failed: {error}") from error


def _device(options: RayOptions) -> str:
    """Return the device that a worker runs on; raise if it was given a GPU that PyTorch cannot use."""
    if options.gpus == 0:
        return "cpu"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        raise ArgumentError(f"Expected a GPU, as argument `gpus` is {options.gpus:g}, but PyTorch sees none.")
    return accelerator.type


def write_with_ray(
    call: ExplainCall, numbers: Sequence[int], options: RayOptions, advance: Callable[[int], None], parts: PartFolder
) -> list[WrittenPart]:
    """Write parts by actors of Ray, and return what each part was.

    Args:
        call: The call. `missing_parts` has begun its folder.
        numbers: Numbers of the parts.
        options: Where Ray runs, and what it gives to each worker.
        advance: Called with the number of targets of each written part.
        parts: The folder, as this process sees it.
    """
    if not numbers:
        return []
    with _connected(options) as ray, terminate_as_interrupt():
        count = min(options.workers or _room(ray, options), len(numbers))
        _expect_room(ray, options)
        actor = ray.remote(_PartWriter).options(
            num_cpus=options.cpus, num_gpus=options.gpus, max_restarts=RESTARTS, max_task_retries=RETRIES
        )
        waiting, running = list(reversed(numbers)), {}
        for _ in range(count):
            writer = actor.remote(call, os.getcwd(), options)
            running[writer.write.remote(waiting.pop())] = writer
        written: list[WrittenPart] = []
        while running:
            for result in ray.wait(list(running), timeout=WAIT)[0]:
                writer = running.pop(result)
                written.append(_row(ray, result))
                advance(written[-1].targets)
                if waiting:
                    running[writer.write.remote(waiting.pop())] = writer
                else:
                    ray.kill(writer)  # it has no more parts, and makes room for one that waits for room
    _expect_seen(parts, written)
    return written


def expect_ray(options: RayOptions) -> Any:
    """Return the package ray; raise if it is not installed, or if the address of the options does not answer."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError("`--engine ray` needs the package ray: pip install 'attree[ray]'") from error
    _expect_reachable(_address(options))
    return ray


def _address(options: RayOptions) -> str | None:
    return options.address or os.environ.get("RAY_ADDRESS")


def _row(ray: Any, result: Any) -> WrittenPart:
    """Return what an actor returned; raise what it raised."""
    try:
        row: WrittenPart = ray.get(result)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, AttreeError) else error from None
    except ray.exceptions.RayError as error:
        raise ArgumentError(f"Ray could not finish the parts that are left ({_first_line(error)}).") from error
    return row


@contextmanager
def _connected(options: RayOptions) -> Iterator[Any]:
    """Connect to Ray, or start it on this machine, inside the block."""
    ray, address = expect_ray(options), _address(options)
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"Expected argument `address` to be that of a running Ray cluster, but got {address!r} "
            f"({_first_line(error)})."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _expect_reachable(address: str | None) -> None:
    """Raise if nobody answers at an address. Ray itself would try for minutes."""
    if address in (None, "auto", "local"):
        return
    host, _, port = str(address).rpartition(":")
    is_plain = bool(host) and port.isdigit() and "/" not in host
    expect(is_plain, "address", "auto, local or HOST:PORT (for a cluster far away, use `ray job submit`)", address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_WITHIN).close()
    except OSError as error:
        raise ArgumentError(
            f"Expected argument `address` to be that of a running Ray cluster, but {address} does not answer ({error})."
        ) from error


def _room(ray: Any, options: RayOptions) -> int:
    """Return how many workers the machines have room for now; at least 1."""
    needs = [("CPU", options.cpus), *([("GPU", options.gpus)] if options.gpus else [])]
    return max(1, sum(min(int(machine.get(name, 0) / need) for name, need in needs) for machine in _machines(ray)))


def _expect_room(ray: Any, options: RayOptions) -> None:
    """Raise if no machine is large enough for a worker."""
    for argument, name in (("cpus", "CPU"), ("gpus", "GPU")):
        most, need = (
            max((machine.get(name, 0.0) for machine in _machines(ray)), default=0.0),
            getattr(options, argument),
        )
        expect(need <= most, argument, f"at most {most:g}, the {name}s of the largest machine", need)


def _machines(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _expect_seen(parts: PartFolder, written: Sequence[WrittenPart]) -> None:
    """Raise if a written part is not in the folder, because it is another folder on the machine that wrote it."""
    end = time.monotonic() + SEEN_WITHIN
    for part in written:
        while parts.rows(part.part) is None:
            if time.monotonic() > end:
                raise ArgumentError(
                    f"Part {part.part} was written on {part.host}, but is not in {parts.folder} here. Choose a folder "
                    "that all machines share with --out."
                )
            time.sleep(1.0)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
