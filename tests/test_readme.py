"""The README's Python runs as it stands, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
README = (REPO / "README.md").read_text()


def test_python_blocks_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, *blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    exec(first, {"model": names["module"], "data": names["data"].graph})  # the reader's own model and graph
    assert (tmp_path / "scores.csv").read_text().startswith(",target,source,destination,score")


def test_explaining_a_model_takes_under_ten_lines() -> None:
    _, _, block, _ = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    after_imports = block.split("capture_attention\n", 1)[1]
    assert len([line for line in after_imports.splitlines() if line.strip()]) < 10


def test_the_demo_prints_the_same_everywhere() -> None:
    quick_start = (REPO / "docs" / "quick_start.md").read_text()
    (here,), (there,) = (re.findall(r"```\n(Use .*?)```", text, flags=re.DOTALL) for text in (README, quick_start))
    assert len(here.splitlines()) > 10
    assert here == there


def test_linked_files_and_named_configs_exist() -> None:
    links = re.findall(r"\]\(([\w./]+)(?:#[\w-]+)?\)", README) + re.findall(r'src="([^"]+)"', README)
    for link in links + re.findall(r"(configs/[\w/]+\.yaml)", README):
        assert (REPO / link).exists(), link


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}: (install|\$\(VENV\)/demo)$", (REPO / "Makefile").read_text(), flags=re.M)
