"""The file of a small sweep, whose figures are not drawn."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import yaml

from attree.sweep import summary
from helpers.sweeps import GRID


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def _without_waiting_for_the_disk(connection: Any, _: Any) -> None:
    """Tests open many studies, and none of them has to survive a power cut."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(summary, "draw_figures", lambda *_: {})  # they take seconds
    (tmp_path / "base.yaml").write_text("model: {}\n")
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(GRID))
    return path
