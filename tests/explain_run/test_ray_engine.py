"""`attree explain --engine ray`: the same files as one process, whatever happens to machines and to the command."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from attree.cli import main
from attree.errors import ArgumentError
from attree.explain_run import ExplainCall, WrittenPart, missing_parts
from attree.explain_run.parts import PartFolder
from attree.explain_run.ray_engine import RayOptions, _PartWriter, write_with_ray
from helpers.cli import command, files, fit, refusal
from helpers.processes import fork_server
from helpers.time_limit import time_limit

NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'attree[ray]'")
TARGETS = 40
SLOW = (f"--targets=0-{TARGETS - 1}", "--methods=gnn_explainer,gatt", "--protocols=removal", "--part_rows=1")
QUIET_RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
"""Ray writes no token into the home folder, and tells nobody that it was used."""

LIMIT = 900
"""Seconds. A worker takes seconds of processor time to import all it needs; on a machine that is busy, a minute or two.
A test here starts up to three, one after the other.
"""

QUIET = ("--figures=0", "--show=0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def expected(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of one process."""
    out = tmp_path_factory.mktemp("expected")
    assert command("explain", str(run), f"--out={out}", *SLOW, *QUIET) == 0
    return contents(out)


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: content for path, content in files(out / "scores").items()}


def count_parts(out: Path) -> int:
    return len(list((out / "scores").glob("part-*.parquet")))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of one machine with one CPU, to which tests add others: they are processes of this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'attree[ray]'")
    from ray.cluster_utils import Cluster

    for name, value in QUIET_RAY.items():
        monkeypatch.setenv(name, value)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.long
@NEEDS_RAY
def test_a_machine_is_lost_in_the_middle(
    run: Path, expected: dict[str, bytes], tmp_path: Path, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its worker is started again where there is room: on the other machine, when the worker there has nothing left."""
    import ray

    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    busy: list[int] = []

    def lose_a_machine() -> None:
        def both_work() -> bool:
            if not ray.is_initialized() or count_parts(tmp_path) < 4:
                return False
            states = ray._private.state.actors().values()
            nodes = {state["Address"]["NodeID"] for state in states if state["State"] == "ALIVE"}
            return second.node_id in nodes and len(nodes) == 2

        wait_until(both_work)
        busy.append(count_parts(tmp_path))
        cluster.remove_node(second, allow_graceful=False)

    thread = threading.Thread(target=lose_a_machine)
    thread.start()
    options = ("--engine=ray", f"--address={cluster.address}", "--workers=2")
    with time_limit(LIMIT):
        status = command("explain", str(run), f"--out={tmp_path}", *SLOW, *QUIET, *options)
    thread.join()
    assert status == 0, capsys.readouterr().err
    assert 4 <= busy[0] < TARGETS
    assert contents(tmp_path) == expected
    assert (tmp_path / "metrics.json").exists()
    assert not list(tmp_path.glob(".*"))


def explain_here(run: Path, out: Path, address: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(QUIET_RAY)
    main(["explain", str(run), f"--out={out}", *SLOW, *QUIET, "--engine=ray", f"--address={address}"])


@pytest.mark.long
@NEEDS_RAY
def test_the_command_is_killed_and_repeated(
    run: Path, expected: dict[str, bytes], tmp_path: Path, cluster: Any
) -> None:
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()

    def start() -> ForkServerProcess:
        process = fork_server().Process(target=explain_here, args=(run, tmp_path, cluster.address))
        process.start()
        return process

    first = start()
    wait_until(lambda: count_parts(tmp_path) >= 4 or not first.is_alive())
    first.kill()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "scores").glob("part-*.parquet")}
    assert 4 <= len(before) < TARGETS
    second = start()
    second.join(LIMIT)
    second.kill()
    assert second.exitcode == 0
    assert contents(tmp_path) == expected
    assert {path: path.stat().st_mtime_ns for path in before} == before, "parts that were there are not written again"


@pytest.mark.long
@NEEDS_RAY
def test_a_stopped_command_ends_while_workers_wait_for_room(run: Path, tmp_path: Path, cluster: Any) -> None:
    """Another job has all CPUs, so Ray waits for ever: a signal must still end the command."""
    call = ExplainCall(run, "0-3", ["gatt"], [], out=tmp_path, part_rows=1)
    numbers = missing_parts(call)

    @contextmanager
    def stopped() -> Iterator[None]:
        timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    import ray

    os.environ.update(QUIET_RAY)
    ray.init(address=cluster.address)
    other = ray.remote(_PartWriter).options(num_cpus=1).remote(call, str(tmp_path), RayOptions())
    ray.get(other.__ray_ready__.remote())
    with pytest.raises(KeyboardInterrupt), stopped():  # or `Terminated`, which is one
        write_with_ray(call, numbers, RayOptions(cluster.address), print, PartFolder(tmp_path / "scores", {}, 4))


@pytest.mark.long
@NEEDS_RAY
def test_what_a_cluster_cannot_do_is_said(run: Path, tmp_path: Path, cluster: Any) -> None:
    call = ExplainCall(run, "0-3", ["gatt"], [], out=tmp_path)
    parts = PartFolder(tmp_path / "scores", {}, 1)
    here = RayOptions(cluster.address)
    with pytest.raises(ArgumentError, match=rf"worker on {socket.gethostname()}.*no _manifest.json.*--out"):
        write_with_ray(call, [0], here, print, parts)
    with pytest.raises(ArgumentError, match="`cpus` to be at most 1, the CPUs of the largest machine, but got 8"):
        write_with_ray(call, [0], RayOptions(cluster.address, cpus=8), print, parts)
    with pytest.raises(ArgumentError, match=r"`gpus` to be at most 0, the GPUs of the largest machine, but got 0.5"):
        write_with_ray(call, [0], RayOptions(cluster.address, gpus=0.5), print, parts)
    lost = ExplainCall(tmp_path / "nowhere", "0-3", ["gatt"], [], out=tmp_path)
    with pytest.raises(ArgumentError, match=rf"worker on {socket.gethostname()}.*to be a run"):
        write_with_ray(lost, [0], here, print, parts)


def test_a_part_that_is_not_seen_here_is_said(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines have folders of the same name: what one writes, the command does not see."""
    from attree.explain_run import ray_engine

    monkeypatch.setattr(ray_engine, "SEEN_WITHIN", 0.0)
    with pytest.raises(ArgumentError, match=r"Part 3 was written on far, but is not in .* that all machines share"):
        ray_engine._expect_seen(PartFolder(tmp_path, {}, 4), [WrittenPart(3, 10, 1, 0.1, "far")])


def test_without_ray_its_extra_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    call = ["explain", str(run), f"--out={tmp_path}", "--targets=4", "--methods=gatt", "--engine=ray"]
    assert "pip install 'attree[ray]'" in refusal(call, capsys)


@NEEDS_RAY
def test_an_address_that_does_not_answer_is_said_at_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    call = ["explain", str(run), f"--out={tmp_path}", "--targets=4", "--methods=gatt", "--engine=ray"]
    assert "does not answer" in refusal([*call, f"--address=127.0.0.1:{port}"], capsys)
    assert "ray job submit" in refusal([*call, "--address=ray://127.0.0.1:10001"], capsys)
    assert "auto, local or HOST:PORT" in refusal([*call, "--address=nonsense"], capsys)


def test_options_that_contradict_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["explain", str(run), f"--out={tmp_path}", "--targets=4", "--methods=gatt"]
    for option in ("--address=auto", "--workers=2", "--cpus=2", "--gpus=1"):
        assert "only with --engine ray" in refusal([*call, option], capsys)
    assert "one process with --engine ray" in refusal([*call, "--engine=ray", "--share=1/2"], capsys)
    assert "`engine`" in refusal([*call, "--engine=dask"], capsys)
    assert "`share`" in refusal([*call, "--share=3/2"], capsys)
    for number in ("0", "-1", "nan", "many"):
        assert "`gpus` to be a number above 0" in refusal([*call, "--engine=ray", f"--gpus={number}"], capsys)


def test_a_worker_without_the_gpu_that_it_was_promised_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from attree.explain_run import ray_engine

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert ray_engine._device(RayOptions()) == "cpu"
    with pytest.raises(ArgumentError, match=r"`gpus` is 0\.5, but PyTorch sees none"):
        ray_engine._device(RayOptions(gpus=0.5))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert ray_engine._device(RayOptions(gpus=0.5)) == "cuda"
