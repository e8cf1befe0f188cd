"""The page "Which models work" says what each model does when it runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("models_table", ROOT / "docs" / "_generate" / "models.py")
assert SPEC is not None
assert SPEC.loader is not None
table = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(table)
LINES = (ROOT / "docs" / "reference" / "which_models_work.md").read_text().splitlines()
ROWS = [line for line in LINES if line.startswith("|")][2:]


def test_the_page_lists_all_models_of_the_script() -> None:
    assert [line.split("|")[1].strip() for line in ROWS] == list(table.MODELS)


@pytest.mark.long
@pytest.mark.parametrize("name", list(table.MODELS))
def test_the_page_says_what_happens(name: str) -> None:
    assert table.row(name) in ROWS


@pytest.mark.parametrize("name", ["GCNConv", "types: HeteroConv of GATConv and SAGEConv", "TAGConv"])
def test_the_page_says_what_happens_to_some(name: str) -> None:
    assert table.row(name) in ROWS
