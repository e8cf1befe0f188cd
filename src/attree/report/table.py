"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

METHOD_LABELS = {
    "gatt": "GAtt",
    "gatt_sim": "GAtt-sim",
    "gatt_avg": "GAtt-avg",
    "avgatt": "AvgAtt",
    "random": "Random",
}
"""How the paper writes each method's name."""


def split_metrics(metrics: Mapping[str, Any]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Part logged scalars into explanation metrics by method, and the rest.

    >>> split_metrics({"explain/gatt/weight/pc_pearson": 0.8, "explain/gatt/truth_auroc": 0.9, "val/acc": 0.7})
    ({'gatt': {'weight/pc_pearson': 0.8, 'truth_auroc': 0.9}}, {'val/acc': 0.7})
    """
    by_method: dict[str, dict[str, float]] = {}
    others: dict[str, float] = {}
    for name, value in metrics.items():
        group, _, rest = name.partition("/")
        method, _, metric = rest.partition("/")
        if group == "explain" and metric:
            by_method.setdefault(method, {})[metric] = float(value)
        else:
            others[name] = float(value)
    return by_method, others


def metrics_table(metrics: Mapping[str, Any], title: str = "") -> Table:
    """One row per attribution method, one column per explanation metric; other scalars stand in the caption.

    Args:
        metrics: Scalars under the names they are logged with.
        title: Heading of the table.
    """
    by_method, others = split_metrics(metrics)
    caption = "   ".join(f"{name} {value:.4g}" for name, value in sorted(others.items()))
    table = Table(title=title or "How well attention explains the network", caption=caption, title_style="bold")
    columns = sorted({metric for values in by_method.values() for metric in values}, key=_column_order)
    table.add_column("method")
    for column in columns:
        table.add_column(_column_label(column), justify="right")
    for method, values in by_method.items():
        cells = [_cell(values.get(column)) for column in columns]
        table.add_row(METHOD_LABELS.get(method, method), *cells)
    return table


def _column_order(metric: str) -> tuple[bool, str]:
    return (metric != "truth_auroc", metric)


def _column_label(metric: str) -> str:
    return "truth AUROC" if metric == "truth_auroc" else metric.replace("/", "\n")


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return "undefined" if math.isnan(value) else f"{value:.4f}"
