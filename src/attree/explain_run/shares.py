"""The share of the parts that this process writes: the ranks of torchrun, SLURM or Kubernetes, or `--share 3/16`.

A share is fixed: of n processes, the first writes parts 0, n, 2n, ..., the second 1, n + 1, ..., and so on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from attree.errors import ArgumentError
from attree.evaluation.config import Shard

INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs that are an interactive shell. A command is a single process there."""

SLURM_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
"""The tasks of an `srun` step may be fewer than those of its job."""

KUBERNETES_SIZE = "JOB_COMPLETIONS"
"""Kubernetes sets the index of a pod of an indexed job, but not their number: the job's manifest has to set it."""


def process_share(share: str | None = None, environment: Mapping[str, str] | None = None) -> Shard:
    """Return the rank of this process and the number of processes.

    Args:
        share: A share as it is typed, such as `3/16`, the third of 16; None reads the launcher's variables.
        environment: Environment variables; None takes those of the process.

    >>> process_share("3/16")
    Shard(rank=2, world_size=16)
    >>> process_share(None, {"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world_size=4)
    >>> process_share(None, {})
    Shard(rank=0, world_size=1)
    """
    if share is not None:
        return _typed(share)
    variables = os.environ if environment is None else environment
    if "RANK" in variables or "WORLD_SIZE" in variables:
        return _launched(variables, "RANK", "WORLD_SIZE")
    if "SLURM_PROCID" in variables and variables.get("SLURM_JOB_NAME") not in INTERACTIVE:
        size = next((name for name in SLURM_SIZES if name in variables), SLURM_SIZES[-1])
        return _launched(variables, "SLURM_PROCID", size)
    if "JOB_COMPLETION_INDEX" in variables:
        return _launched(variables, "JOB_COMPLETION_INDEX", KUBERNETES_SIZE)
    return Shard()


def _typed(share: str) -> Shard:
    """Return a share that was typed: its number, from 1, and the number of shares."""
    numbers = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", share)
    if numbers is None or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise ArgumentError(
            f"Expected argument `share` to be a share and their number, from 1/16 to 16/16, but got {share!r}."
        )
    return Shard(int(numbers[1]) - 1, int(numbers[2]))


def _launched(variables: Mapping[str, str], rank_name: str, size_name: str) -> Shard:
    """Return the rank of this process and the number of processes, read from two environment variables."""
    try:
        rank, size = int(variables[rank_name]), int(variables[size_name])
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"Expected the variables {rank_name} and {size_name} to be the rank and the number of processes, "
            f"but got {variables.get(rank_name)!r} and {variables.get(size_name)!r}. Set both, or use --share."
        ) from error
    if not 0 <= rank < size:
        raise ArgumentError(f"Expected the variable {rank_name} to be in [0, {size_name}), but got {rank} of {size}.")
    return Shard(rank, size)
