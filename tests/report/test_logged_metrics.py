"""The table of explanation metrics says what was measured."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from attree.report.logged_metrics import metrics_table

METRICS = {"explain/gatt/weight/faithfulness": 0.5, "explain/gatt/removal/faithfulness": 0.25, "val/acc": 0.9}


@pytest.mark.parametrize(("count", "words"), [(100, "measured on 100 targets"), (1, "measured on 1 target\n")])
def test_the_caption_says_how_many_targets_and_what_protocols_do(count: int, words: str) -> None:
    caption = str(metrics_table(METRICS, num_targets=count).caption)
    assert words in caption
    assert "val/acc 0.9" in caption
    assert all(line in caption for line in ("weight: ", "removal: "))


def test_targets_are_not_counted_where_nobody_says_how_many() -> None:
    assert "measured on" not in str(metrics_table(METRICS).caption)


def test_five_methods_with_intervals_fit_80_columns() -> None:
    names = [f"explain/{method}/removal/pc_spearman" for method in ("gatt", "avgatt", "uniform", "occlusion", "random")]
    console = Console(width=80, record=True, file=StringIO())
    console.print(metrics_table(dict.fromkeys(names, -0.25), intervals=dict.fromkeys(names, (-0.37, -0.13))))
    printed = console.export_text()
    assert "confidence, Spearman" in printed
    assert printed.count("-0.25 \N{PLUS-MINUS SIGN}.12") == 5
