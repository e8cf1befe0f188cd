"""The file of a small sweep, whose figures are not drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from attree.sweep import summary
from helpers.sweeps import GRID


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(summary, "draw_figures", lambda *_: {})  # they take seconds
    (tmp_path / "base.yaml").write_text("model: {}\n")
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(GRID))
    return path
