"""Which share of the parts a process writes: what was typed, or what the launcher says."""

from __future__ import annotations

import pytest

from attree.errors import ArgumentError
from attree.evaluation.config import Shard
from attree.explain_run.parts import process_share


def test_the_share_is_what_the_launcher_says() -> None:
    def share(**variables: str) -> Shard:
        return process_share(None, variables)

    assert share(SLURM_PROCID="2", SLURM_NTASKS="3") == Shard(2, 3)
    assert share(SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_STEP_NUM_TASKS="2") == Shard(0, 2)
    assert share(SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_JOB_NAME="bash") == Shard(0, 1)
    assert share(SLURM_PROCID="0", SLURM_NTASKS="8", RANK="3", WORLD_SIZE="4") == Shard(3, 4)
    assert share(JOB_COMPLETION_INDEX="5", JOB_COMPLETIONS="16") == Shard(5, 16)
    assert share(HOME="/root") == Shard(0, 1)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
        ({"SLURM_PROCID": "-1", "SLURM_NTASKS": "2"}, "SLURM_PROCID"),
        ({"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETIONS .*--share"),
        ({"JOB_COMPLETION_INDEX": "16", "JOB_COMPLETIONS": "16"}, "JOB_COMPLETION_INDEX"),
    ],
)
def test_what_a_launcher_cannot_mean_is_refused(variables: dict[str, str], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        process_share(None, variables)


def test_a_typed_share_goes_before_the_launcher() -> None:
    assert process_share("3/16", {"RANK": "0", "WORLD_SIZE": "2"}) == Shard(2, 16)
    assert process_share(" 1 / 1 ") == Shard(0, 1)


@pytest.mark.parametrize("share", ["0/4", "5/4", "3", "a/b", "-1/4", "1/0", "1.5/4", ""])
def test_shares_outside_their_range_are_refused(share: str) -> None:
    with pytest.raises(ArgumentError, match=r"`share`.*from 1/16 to 16/16, but got"):
        process_share(share)
