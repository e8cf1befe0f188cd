"""Bars for what takes long: late, on a terminal or in a notebook alone, and one at a time."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.io.terminal import LateBar, progress_bar


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal shows of the bars, which appear at once."""
    out = io.StringIO()

    def console(**options: Any) -> Console:
        assert options["stderr"]
        return Console(file=out, force_terminal=True, _environ={"TERM": "xterm"}, width=100)

    monkeypatch.setattr("attree.io.terminal.plain_console", console)
    monkeypatch.setattr("attree.io.terminal.SHOWN_AFTER", 0.0)
    return out


def test_a_bar_is_shown_until_all_is_done(terminal: io.StringIO) -> None:
    with progress_bar("Counting", 4) as advance:
        advance(1)
        assert LateBar._shown is not None
        with progress_bar("Inside", 4) as inner:  # never two at once
            inner(2)
        advance(3)
        assert LateBar._shown is None
    assert "Counting" in terminal.getvalue()
    assert "1/4" in terminal.getvalue()
    assert "Inside" not in terminal.getvalue()


def test_a_bar_goes_when_the_work_fails(terminal: io.StringIO) -> None:
    def work() -> None:
        with progress_bar("Counting", 4) as advance:
            advance(1)
            assert LateBar._shown is not None
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert LateBar._shown is None


def test_what_is_quick_shows_no_bar(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attree.io.terminal.SHOWN_AFTER", 60.0)
    with progress_bar("Counting", 4) as advance:
        advance(1)
    assert terminal.getvalue() == ""


def test_where_nobody_looks_there_is_no_bar(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("attree.io.terminal.SHOWN_AFTER", 0.0)
    with progress_bar("Counting", 4) as advance:
        advance(1)
        assert LateBar._shown is None
    assert capfd.readouterr() == ("", "")


def test_evaluate_shows_a_bar_by_default(terminal: io.StringIO) -> None:
    torch.manual_seed(0)
    graph = Data(x=torch.randn(20, 4), edge_index=torch.randint(0, 20, (2, 60)))
    model = GAT(4, 4, 2, out_channels=3).eval()
    options: dict[str, Any] = {"num_targets": 4, "methods": ["gnn_explainer"], "protocols": ["weight"]}
    seen: list[tuple[int, int]] = []
    update = LateBar.update

    def watched(bar: LateBar, done: int, total: int) -> None:
        if bar.description == "Reducing edges":
            seen.append((done, total))
        update(bar, done - 1, total)  # as if one were left

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LateBar, "update", watched)
        result = attree.evaluate(model, graph, **options)
    assert seen
    assert max(done for done, _ in seen) <= len(result.pairs)
    assert "Reducing edges" in terminal.getvalue()
    assert LateBar._shown is None
