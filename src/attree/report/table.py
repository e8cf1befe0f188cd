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


METRIC_LABELS = {
    "truth_auroc": "ground truth, AUROC",
    "pc_pearson": "confidence, Pearson",
    "pc_kendall": "confidence, Kendall",
    "pc_spearman": "confidence, Spearman",
    "ne_pearson": "entropy, Pearson",
    "ne_kendall": "entropy, Kendall",
    "ne_spearman": "entropy, Spearman",
    "p_auroc": "prediction, AUROC",
    "faithfulness": "faithfulness (mean)",
}
"""What each metric compares scores with, and how."""


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


def metrics_table(metrics: Mapping[str, Any], title: str = "How well attention explains the network") -> Table:
    """One column per attribution method, one row per explanation metric; other scalars stand in the caption.

    Args:
        metrics: Scalars under the names they are logged with.
        title: Heading of the table.
    """
    by_method, others = split_metrics(metrics)
    caption = "   ".join(f"{name} {value:.4g}" for name, value in sorted(others.items()))
    table = Table(title=title, caption=caption, title_style="bold", caption_justify="left")
    table.add_column("metric")
    for method in by_method:
        table.add_column(METHOD_LABELS.get(method, method), justify="right")
    names = dict.fromkeys(name for values in by_method.values() for name in values)
    sections = dict.fromkeys(name.rpartition("/")[0] for name in names)
    for protocol in sections:
        for name in names:
            section, _, metric = name.rpartition("/")
            if section == protocol:
                label = METRIC_LABELS.get(metric, metric) + (f"  ({protocol})" if protocol else "")
                table.add_row(label, *(_cell(values.get(name)) for values in by_method.values()))
        table.add_section()
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return "undefined" if math.isnan(value) else f"{value:.4f}"
