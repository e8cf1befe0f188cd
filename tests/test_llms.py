"""`docs/llms.txt`, for assistants that write code: its code runs, its links lead to pages, its names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attree
from attree.attribution import METHODS
from attree.cli.commands import COMMANDS
from attree.faithfulness import PROTOCOLS

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "llms.txt").read_text(encoding="utf-8")


def test_its_code_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
    exec(block, {"__name__": "llms"})
    sentence, edges, *headline, number = capsys.readouterr().out.splitlines()
    assert sentence.startswith("The network predicts")
    assert edges.startswith("[(")
    assert headline
    assert -1 <= float(number) <= 1


def test_its_links_lead_to_pages_and_cover_the_how_to() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert [link for link in links if not (DOCS / link).is_file()] == []
    missing = {path.name for path in (DOCS / "how_to").glob("*.md")} - {Path(link).name for link in links}
    assert missing <= {"command_line.md", "train_for_explainability.md", "report.md"}


def test_it_has_the_form_of_llms_txt() -> None:
    title, _, summary, *_ = TEXT.splitlines()
    assert title == "# attree"
    assert summary.startswith("> ")
    assert re.findall(r"^## (.*)$", TEXT, flags=re.M) == ["Docs", "Optional"]


def test_the_names_in_it_exist() -> None:
    for name in re.findall(r"attree\.(\w+)\(", TEXT):
        assert name in attree.__all__, name
    for name in re.findall(r"`attree (\w+)", TEXT):
        assert name in COMMANDS, name
    words = set(re.findall(r"`(\w+)`", TEXT))
    assert {*PROTOCOLS, "gatt", "occlusion"} <= words
    methods = set(re.findall(r"`(\w+)`", next(line for line in TEXT.splitlines() if "need attention layers" in line)))
    assert methods <= set(METHODS)
