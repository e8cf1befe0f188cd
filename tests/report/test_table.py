"""The table of explanation metrics says what was measured."""

from __future__ import annotations

import pytest

from attree.report.table import metrics_table

METRICS = {"explain/gatt/weight/faithfulness": 0.5, "explain/gatt/removal/faithfulness": 0.25, "val/acc": 0.9}


@pytest.mark.parametrize(("count", "words"), [(100, "measured on 100 targets"), (1, "measured on 1 target;")])
def test_the_caption_says_how_many_targets_and_what_protocols_do(count: int, words: str) -> None:
    caption = str(metrics_table(METRICS, num_targets=count).caption)
    assert words in caption
    assert "val/acc 0.9" in caption
    assert all(line in caption for line in ("weight: ", "removal: "))


def test_targets_are_not_counted_where_nobody_says_how_many() -> None:
    assert "measured on" not in str(metrics_table(METRICS).caption)
