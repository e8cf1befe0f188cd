"""The short table of an evaluation: one row per method, and a few columns that everything else is a detail of.

The columns are the true edges, if they are known, and what happens when an edge is deleted or its weight is set to 0.
Terminal, notebook, TensorBoard and page show the same numbers, those of the leading statistic (`names.WITHIN`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from attree.evaluation.names import TRUTH, WITHIN, MetricName, number_and_interval
from attree.metrics.functional.intervals import UNKNOWN, Interval

HEADERS = {
    "truth": "true edges",
    "removal": "edge deleted",
    "weight": "weight set to 0",
    "coefficient": "score set to 0",
}
"""Names of the columns, by the group of their metric; a protocol that is not listed has its own name."""

BLOCKS = 5
"""Number of characters of a full bar."""


class TableCell(NamedTuple):
    """One number of the table.

    Attributes:
        value: The number; NaN if it is undefined, None if it was not measured.
        text: The number with half the width of its interval.
        is_best: Whether no method has a larger number in this column.
    """

    value: float | None
    text: str
    is_best: bool

    @property
    def bar(self) -> str:
        """The number as a bar, full at 1, and empty at 0 and below.

        >>> TableCell(0.61, "", False).bar
        '\N{FULL BLOCK}\N{FULL BLOCK}\N{FULL BLOCK}  '
        """
        size = 0 if self.value is None or math.isnan(self.value) else round(BLOCKS * min(1.0, max(0.0, self.value)))
        return ("\N{FULL BLOCK}" * size).ljust(BLOCKS)


class ShortTable(NamedTuple):
    """The short table.

    Attributes:
        headers: Names of the columns.
        rows: The cells of each method, by its name in tables.
    """

    headers: list[str]
    rows: dict[str, list[TableCell]]

    @property
    def lines(self) -> list[str]:
        """The table as lines of text."""
        first = max([len("method"), *map(len, self.rows)])
        widths = [
            max(len(header), *(BLOCKS + 1 + len(cells[place].text) for cells in self.rows.values()))
            for place, header in enumerate(self.headers)
        ]
        head = "  ".join(["method".ljust(first), *map(str.ljust, self.headers, widths)])
        body = [
            "  ".join(
                [label.ljust(first), *(f"{cell.bar} {cell.text}".ljust(w) for cell, w in zip(row, widths, strict=True))]
            )
            for label, row in self.rows.items()
        ]
        return [line.rstrip() for line in [head, *body]]


def short_table(
    metrics: Mapping[str, float], labels: Mapping[str, str], intervals: Mapping[str, Interval] | None = None
) -> ShortTable:
    """Return the short table of metrics.

    Args:
        metrics: Metrics by logged name.
        labels: Names of the methods in tables.
        intervals: Intervals by logged name; None leaves them out.

    >>> metrics = {"explain/gatt/removal/within_pearson": 0.4, "explain/gatt/truth_auroc": 0.99}
    >>> print(*short_table(metrics, {"gatt": "GAtt"}).lines, sep="\\n")  # doctest: +NORMALIZE_WHITESPACE
    method  true edges  edge deleted
    GAtt    █████ 0.99  ██    0.40
    """
    interval_by_name = {} if intervals is None else intervals
    parsed = [metric for name in metrics if (metric := MetricName.parse(name)) is not None]
    leading = [metric for metric in parsed if metric.statistic in (TRUTH, WITHIN)]
    groups = list(dict.fromkeys(metric.group for metric in leading))
    groups.sort(key=lambda group: list(HEADERS).index(group) if group in HEADERS else len(HEADERS))
    by_place = {(metric.method, metric.group): metrics[str(metric)] for metric in leading}
    names = {(metric.method, metric.group): str(metric) for metric in leading}
    best = {
        group: max(
            (value for (_, other), value in by_place.items() if other == group and not math.isnan(value)),
            default=math.nan,
        )
        for group in groups
    }
    rows: dict[str, list[TableCell]] = {}
    for method in dict.fromkeys(metric.method for metric in leading):
        cells = []
        for group in groups:
            value = by_place.get((method, group))
            if value is None:
                cells.append(TableCell(None, "", False))
            else:
                text = number_and_interval(value, interval_by_name.get(names[method, group], UNKNOWN), digits=2)
                cells.append(TableCell(value, text, value == best[group]))
        rows[labels.get(method, method)] = cells
    return ShortTable([HEADERS.get(group, group) for group in groups], rows)
