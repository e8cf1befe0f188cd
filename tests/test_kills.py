"""Fits that are killed at random moments and resumed end as the unbroken one does, to the bit."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from helpers.mini_batches import fit
from helpers.processes import fork_server

KILLS = 10
EPOCHS = 40
LONGEST = 600.0
"""Seconds that a fit may take before it counts as hanging."""


def fit_or_resume(kind: str, folder: str) -> None:
    """One process of a run: from the start, or from where the last one was killed; leaves its weights at the end."""
    torch.set_num_threads(1)
    last = Path(folder, "checkpoints", "last.ckpt")
    weights = fit(kind, Path(folder), EPOCHS, ckpt_path=last if last.exists() else None)
    torch.save(weights, Path(folder, "weights.pt"))


def run(kind: str, folder: Path, kill_after: float | None = None) -> float:
    """Run such a process, and kill it after some seconds unless it has ended; return how long it ran."""
    # Forked from a server that has the libraries: a moment after the start is then a moment of the fit.
    process = fork_server().Process(target=fit_or_resume, args=(kind, str(folder)))
    began = time.monotonic()
    process.start()
    process.join(LONGEST if kill_after is None else kill_after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode == (0 if (folder / "weights.pt").exists() else -signal.SIGKILL)
    assert kill_after is not None or process.exitcode == 0, "the fit hangs"
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graphs", "neighbors"])  # so 20 kills in all
def test_killed_fits_end_as_the_unbroken_one(kind: str, tmp_path: Path) -> None:
    rng = random.Random(f"kills {kind}")
    run(kind, tmp_path / "warm")
    seconds = run(kind, tmp_path / "whole")
    expected = torch.load(tmp_path / "whole" / "weights.pt")
    kills, ends, resumed = 0, 0, 0
    while True:
        folder, enough = tmp_path / f"broken_{ends}", kills == KILLS
        run(kind, folder, None if enough else rng.uniform(0, seconds))
        if not (folder / "weights.pt").exists():
            kills += 1
            resumed += (folder / "checkpoints" / "last.ckpt").exists()
            continue
        ends += 1
        found = torch.load(folder / "weights.pt")
        for name, value in expected.items():
            assert torch.equal(found[name], value), f"{name} of run {ends} after {kills} kills in all"
        if enough:
            break
    print(f"{kind}: {kills} kills, {resumed} of them with something to resume from, {ends} runs compared")
    assert resumed >= kills // 2
