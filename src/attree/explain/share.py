"""Which part of the work is this process's, where torchrun or SLURM started several."""

from __future__ import annotations

import os
from collections.abc import Mapping

from attree.errors import ArgumentError
from attree.evaluation.shard import Shard

INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs that are a shell: one process, whatever the variables say of tasks."""


def process_share(environment: Mapping[str, str] | None = None) -> Shard:
    """This process's share: `RANK` of `WORLD_SIZE`, or `SLURM_PROCID` of the step's tasks, or all of it.

    Processes need not know one another: each takes every n-th part.

    Args:
        environment: Variables; None takes those of the process.

    >>> process_share({"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world_size=4)
    >>> process_share({})
    Shard(rank=0, world_size=1)
    """
    given = os.environ if environment is None else environment
    if "RANK" in given or "WORLD_SIZE" in given:
        return _share(given, "RANK", "WORLD_SIZE")
    if "SLURM_PROCID" in given and given.get("SLURM_JOB_NAME") not in INTERACTIVE:
        # Those of `srun`, where it differs from what was asked for as a whole.
        return _share(given, "SLURM_PROCID", next(name for name in _TASKS if name in given or name == _TASKS[-1]))
    return Shard()


_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _share(given: Mapping[str, str], rank_name: str, size_name: str) -> Shard:
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
