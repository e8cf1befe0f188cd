"""The example scripts run as they stand, and print what they promise."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import attree

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.long
@pytest.mark.needs("planetoid/Cora/raw")
@pytest.mark.filterwarnings("ignore")
def test_gat_cora(data_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = load("gat_cora")["main"](data_root, epochs=10)
    assert set(result.reductions) == {"weight", "removal"}
    assert result.metrics["explain/gatt/weight/pc_pearson"] > 0.5


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_own_lightning_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    metrics = load("own_lightning_module")["main"](epochs=15)
    assert metrics["val/acc"] > 0.6
    assert any(name.startswith("explain/gatt/") and name.endswith("/faithfulness") for name in metrics)


def test_own_method() -> None:
    example = load("own_method")
    result = example["main"]()
    ends = result.pairs.graph.edge_index[:, result.pairs.edges]
    loops = ends[0] == ends[1]
    assert bool((result.pair_scores["neighbours_only"][loops] == 0).all())
    assert result.pair_scores["neighbours_only"][~loops].equal(result.pair_scores["gatt"][~loops])
    assert result.method_labels["neighbours_only"] == "GAtt, no loops"


def test_the_version_is_written_once() -> None:
    root = EXAMPLES.parent
    assert f"version: {attree.__version__}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
    assert "attree.__version__" in (root / "pyproject.toml").read_text(encoding="utf-8")


def test_the_changelog_opens_with_this_version_one_line_a_change() -> None:
    text = (EXAMPLES.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    _, unreleased, version, *_ = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    assert unreleased.startswith("## [Unreleased]\n")
    assert version.startswith(f"## [{attree.__version__}] - ")
    assert re.findall(r"^### (.*)$", version, flags=re.MULTILINE) == ["Upgrade", "Added", "Changed", "Removed", "Fixed"]
    changes = [line for line in version.splitlines()[1:] if line and not line.startswith("### ")]
    assert [line for line in changes if not line.startswith("- ")] == []
    assert len(changes) == len(set(changes))
