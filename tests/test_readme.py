"""The README's Python runs as it stands, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
README = (REPO / "README.md").read_text()


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, block = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    exec(first, {"model": names["module"], "data": names["data"].graph})  # the reader's own model and graph


def test_it_is_short_and_says_what_people_search_for() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    screen = "\n".join(lines[:40])
    for word in (
        *("explainability", "graph neural networks", "GNNExplainer", "node classification", "link prediction"),
        *("graph transformers", "PyTorch\nGeometric", "Lightning", "pip install", "taking_edges_out.gif"),
    ):
        assert word in screen, word


def test_the_demo_prints_the_same_everywhere() -> None:
    page = (REPO / "docs" / "how_to" / "command_line.md").read_text()
    (here,), (there,) = (re.findall(r"```\n(Use .*?)```", text, flags=re.DOTALL) for text in (README, page))
    assert len(here.splitlines()) > 10
    assert here == there


def test_linked_files_and_named_configs_exist() -> None:
    links = re.findall(r"\]\(([\w./]+)(?:#[\w-]+)?\)", README) + re.findall(r'src="([^"]+)"', README)
    for link in links + re.findall(r"(configs/[\w/]+\.yaml)", README):
        assert (REPO / link).exists(), link


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}: (install|\$\(VENV\)/demo)$", (REPO / "Makefile").read_text(), flags=re.M)
