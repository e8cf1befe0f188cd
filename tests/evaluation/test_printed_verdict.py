"""The headline that README and quick start print says what the table printed below it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attree.evaluation.tables import HEADERS
from attree.evaluation.verdict import WEAK
from attree.evaluation.verdict_rules import GOOD

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/how_to/command_line.md"])
def test_every_number_of_the_printed_headline_stands_in_the_printed_table(page: str) -> None:
    (block,) = re.findall(r"```\n(Use .*?)```", (REPO / page).read_text(), flags=re.DOTALL)
    headline, _, rest = block.partition("\nmethod ")
    headline = " ".join(headline.split())
    header, *lines = f"method {rest}".splitlines()
    columns = [name for name in HEADERS.values() if name in header]
    starts = [header.index(name) for name in columns]
    assert columns == ["true edges", "edge deleted", "weight set to 0"]
    cells: dict[str, dict[str, str]] = {}
    for line in lines:
        numbers = re.findall(r"(?:^|\s)(-?\d\.\d\d|undefined)", line)
        if len(numbers) == len(starts):
            cells[line.split()[0]] = dict(zip(columns, numbers, strict=True))
    guide, values = re.search(
        r"Attention is (a good guide|a rough guide|no guide) to .*?: (.*?) of 1\.", headline
    ).groups()
    said = dict(re.findall(r"(\w+) (-?\d\.\d\d)", values))
    assert said == {label: cells[label]["edge deleted"] for label in said}
    best = max(map(float, said.values()))
    assert guide == ("a good guide" if best >= GOOD else "a rough guide" if best >= WEAK else "no guide")
    label, truth = re.search(r"true edges: (\w+) (\d\.\d\d)", headline).groups()
    assert truth == cells[label]["true edges"]
    (difference,) = re.findall(r"attention matters(?: little)?: ([+-]\d\.\d\d)", headline)
    gatt, uniform = (float(cells[name]["edge deleted"]) for name in ("GAtt", "Uniform"))
    assert float(difference) == pytest.approx(gatt - uniform, abs=0.011)  # each of the three is rounded to 0.01
