"""A mini-batch run that is resumed goes on as if it had not been broken, to the bit, dropout included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.mini_batches import KINDS, fit


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] if "worker" in kind else []) for kind in KINDS]
)
def test_four_and_four_epochs_are_eight(kind: str, tmp_path: Path) -> None:
    whole = fit(kind, tmp_path / "whole", epochs=8)
    half = fit(kind, tmp_path / "broken", epochs=4)
    last = tmp_path / "broken" / "checkpoints" / "last.ckpt"
    resumed = fit(kind, tmp_path / "broken", epochs=8, seed=99, ckpt_path=last)
    assert any(not torch.equal(value, half[name]) for name, value in whole.items())
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name
