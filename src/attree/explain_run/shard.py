"""Which of several processes this is, where torchrun or SLURM started them, and how they write a dataset together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import pyarrow as pa

from attree.attribution.progress import progress_bar
from attree.errors import ArgumentError
from attree.evaluation.targets import Shard
from attree.explain_run.parts import PartFolder

WAIT = 0.5
"""Seconds between two looks for parts that other processes have claimed."""

INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs that are a shell: one process, whatever the variables say of tasks."""


def process_shard(environment: Mapping[str, str] | None = None) -> Shard:
    """Which process this is: `RANK` of `WORLD_SIZE`, or `SLURM_PROCID` of the step's tasks, or the only one.

    Processes need not know one another, as each claims parts: their number is said, and the first one speaks for all.

    Args:
        environment: Variables; None takes those of the process.

    >>> process_shard({"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world_size=4)
    >>> process_shard({})
    Shard(rank=0, world_size=1)
    """
    given = os.environ if environment is None else environment
    if "RANK" in given or "WORLD_SIZE" in given:
        return _shard(given, "RANK", "WORLD_SIZE")
    if "SLURM_PROCID" in given and given.get("SLURM_JOB_NAME") not in INTERACTIVE:
        # Those of `srun`, where it differs from what was asked for as a whole.
        return _shard(given, "SLURM_PROCID", next(name for name in _TASKS if name in given or name == _TASKS[-1]))
    return Shard()


_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _shard(given: Mapping[str, str], rank_name: str, size_name: str) -> Shard:
    try:
        rank, size = int(given[rank_name]), int(given[size_name])
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"Expected the variables {rank_name} and {size_name} to be this process's number and how many there are, "
            f"but got {given.get(rank_name)!r} and {given.get(size_name)!r}."
        ) from error
    if not 0 <= rank < size:
        raise ArgumentError(f"Expected the variable {rank_name} to be in [0, {size_name}), but got {rank} of {size}.")
    return Shard(rank, size)


def write_parts(
    parts: PartFolder, bounds: list[tuple[int, int]], table: Callable[[int, int], pa.Table], is_first: bool = True
) -> int:
    """Claim and write parts until all are there, while a bar in the first process counts targets and time left.

    Where all that is missing is claimed by others, it is waited for, in case one of them dies. Memory is that of one
    part: it is dropped before the next is made.

    Args:
        parts: The folder.
        bounds: Which targets make each part.
        table: Gives the rows of targets `begin` to `end`.
        is_first: Whether this is the first of several processes that were started together.

    Returns:
        How many parts this process wrote.
    """
    waiting = parts.missing(look_inside=is_first)
    total = sum(end - begin for begin, end in (bounds[number] for number in waiting))
    written = 0
    with progress_bar("Explaining", total) if is_first else nullcontext(lambda done: None) as advance:
        while waiting:
            left = []
            for number in waiting:
                begin, end = bounds[number]
                if not parts.has(number):
                    if not parts.claim(number):
                        left.append(number)
                        continue
                    try:
                        if not parts.has(number):  # by another process, a moment ago
                            parts.write(number, table(begin, end))
                            written += 1
                    finally:
                        parts.release(number)
                advance(end - begin)
            if left == waiting:
                time.sleep(WAIT)
            waiting = left
    return written
