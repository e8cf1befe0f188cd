"""An evaluation as a table of numbers, as printed text and as HTML for notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from attree.evaluation.names import BYPASS, METRIC_LABELS, MetricName, number_and_interval
from attree.metrics.functional.bootstrap import Interval

if TYPE_CHECKING:
    import pandas as pd

    from attree.evaluation.result import Evaluation

UNKNOWN: Interval = (math.nan, math.nan)


def metrics_frame(
    metrics: Mapping[str, float], labels: Mapping[str, str], intervals: Mapping[str, Interval] | None = None
) -> pd.DataFrame:
    """One row per statistic and protocol, by their tags, and one column per method.

    Args:
        metrics: Metrics by the names they are logged with.
        labels: What tables call each method.
        intervals: Intervals by the same names; their ends make two further columns per method.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, metric, label in _known(metrics, labels):
        row = rows.setdefault((metric.group, metric.statistic), {})
        row[label] = metrics[name]
        if intervals is not None:
            row[f"{label} low"], row[f"{label} high"] = intervals.get(name, UNKNOWN)
    return _frame(rows)


def as_text(evaluation: Evaluation) -> str:
    """What is printed: how much was measured, the table, what protocols mean, the verdict."""
    pairs, targets = len(evaluation.pairs), evaluation.targets.numel()
    kind = "graph" if evaluation.pairs.num_layers is None else "node"
    counts = {name: evaluation.num_changed(name) for name in evaluation.reductions}
    changed = ", ".join(f"{count:,} ({name})" for name, count in counts.items())
    about = f"{_several(targets, kind)}, {_several(pairs, 'pair')}"
    if any(counts.values()) or (counts and evaluation.predictions is not None):  # numbers are no classes that change
        about += f"; changed predictions: {changed}"
    if BYPASS in evaluation.metrics:
        about += f"; {evaluation.metrics[BYPASS]:.0%} of predictions are the same without the attention of a layer"
    table = _cells(evaluation).to_string(na_rep="undefined")
    notes = [f"{name}: {evaluation.meanings[name]}" for name in evaluation.reductions if name in evaluation.meanings]
    if any(math.isfinite(low) for low, _ in evaluation.intervals.values()):
        notes.append("\N{PLUS-MINUS SIGN}: half of the 95 % interval when targets are drawn again")
    verdict = evaluation.verdict
    return "\n".join([about, table, *notes, *(("", str(verdict)) if verdict else ())])


def as_html(evaluation: Evaluation) -> str:
    """The table and the verdict, for notebooks."""
    table: str = _cells(evaluation).to_html(na_rep="undefined")
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in evaluation.verdict.sentences)
    return table + (f"<ul>{said}</ul>" if said else "")


def _cells(evaluation: Evaluation) -> pd.DataFrame:
    """The numbers as text with half of their intervals; statistics by their names."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for name, metric, label in _known(evaluation.metrics, evaluation.labels):
        row = rows.setdefault((metric.group, METRIC_LABELS.get(metric.statistic, metric.statistic)), {})
        row[label] = number_and_interval(evaluation.metrics[name], evaluation.intervals.get(name, UNKNOWN))
    return _frame(rows)


def _known(metrics: Mapping[str, float], labels: Mapping[str, str]) -> list[tuple[str, MetricName, str]]:
    """The metrics of methods: name, its parts, and what tables call the method."""
    parsed = [(name, MetricName.parse(name)) for name in metrics]
    return [(name, metric, labels.get(metric.method, metric.method)) for name, metric in parsed if metric is not None]


def _frame(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a frame, those of a protocol together."""
    import pandas as pd

    groups = list(dict.fromkeys(group for group, _ in rows))
    ordered = sorted(rows, key=lambda row: groups.index(row[0]))
    index = pd.MultiIndex.from_tuples(ordered, names=["protocol", "statistic"])
    return pd.DataFrame([rows[row] for row in ordered], index=index)


def _several(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
