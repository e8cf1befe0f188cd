"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from attree.attribution import method_label
from attree.evaluation.names import METRIC_LABELS, MetricName, number_and_interval
from attree.faithfulness import PROTOCOLS


def split_metrics(metrics: Mapping[str, Any]) -> tuple[dict[str, dict[MetricName, float]], dict[str, float]]:
    """Part logged scalars into explanation metrics by method, and the rest."""
    by_method: dict[str, dict[MetricName, float]] = {}
    others: dict[str, float] = {}
    for name, value in metrics.items():
        metric = MetricName.parse(name)
        if metric is None:
            others[name] = float(value)
        else:
            by_method.setdefault(metric.method, {})[metric] = float(value)
    return by_method, others


def metrics_table(
    metrics: Mapping[str, Any],
    title: str = "How well attention explains the network",
    num_targets: int | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> Table:
    """One column per attribution method, one row per explanation metric.

    The caption says how many targets were measured and what the protocols do, and shows the other scalars.

    Args:
        metrics: Scalars under the names they are logged with.
        title: Heading of the table.
        num_targets: How many targets had their edges reduced; None leaves it out.
        intervals: The 95 % interval of some of the scalars, by the same names: half of it stands beside the number.
    """
    by_method, others = split_metrics(metrics)
    protocols = dict.fromkeys(metric.protocol for values in by_method.values() for metric in values)
    meanings = [f"{name}: {PROTOCOLS[name].meaning}" for name in protocols if name in PROTOCOLS]
    if num_targets is not None and meanings:
        meanings.append(f"measured on {num_targets} target{'' if num_targets == 1 else 's'}; others give other numbers")
    known = {} if intervals is None else intervals
    if known:
        meanings.append("\N{PLUS-MINUS SIGN}: half of the 95 % interval when targets are drawn again")
    caption = "\n".join([*meanings, "   ".join(f"{name} {value:.4g}" for name, value in sorted(others.items()))])
    # Without lines between columns, five methods with their intervals fit 80 columns.
    look: dict[str, Any] = {"box": None, "padding": (0, 1), "pad_edge": False}
    table = Table(title=title, caption=caption, title_style="bold", caption_justify="left", **look)
    table.add_column("metric")
    for method in by_method:
        table.add_column(method_label(method), justify="right")
    rows = dict.fromkeys((metric.protocol, metric.statistic) for values in by_method.values() for metric in values)
    for protocol in dict.fromkeys(protocol for protocol, _ in rows):
        if protocol:
            table.add_row(protocol, style="bold")
        for statistic in (statistic for other, statistic in rows if other == protocol):
            label = METRIC_LABELS.get(statistic, statistic)
            names = [MetricName(method, statistic, protocol) for method in by_method]
            table.add_row(label, *(_cell(by_method[name.method].get(name), known.get(str(name))) for name in names))
        table.add_section()
    return table


def _cell(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    if interval is None:
        return number_and_interval(value)
    return number_and_interval(value, interval, digits=2).replace("\N{PLUS-MINUS SIGN}0.", "\N{PLUS-MINUS SIGN}.")
