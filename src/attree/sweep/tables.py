"""The tables that a sweep prints: settings, the best trade-offs, and which parameters matter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from rich import box
from rich.table import Table

from attree.attribution import method_label
from attree.evaluation.names import PREFIX, MetricName
from attree.faithfulness import PROTOCOLS
from attree.report.style import count
from attree.report.sweep_figure import SETTING
from attree.sweep.frontier import BEST, ParetoFront, setting_text
from attree.sweep.plan import SWEEP

MOST_ROWS = 12
"""How many settings of a front are printed; the file has all."""


def summary_tables(results: pd.DataFrame, metrics: Sequence[str], title: str) -> Iterator[Table]:
    """Mean and standard deviation over the seeds, one row per setting.

    Each protocol has its own table, as numbers of two protocols must not be compared; the caption says what the
    protocol does. Metrics without a protocol, such as the accuracy, are in every table.

    Args:
        results: One row per run, as `collect` makes it.
        metrics: Names of the metrics to show.
        title: Heading of the tables.
    """
    parsed = {metric: MetricName.parse(metric) for metric in metrics}
    of_metric = {metric: None if name is None else name.protocol for metric, name in parsed.items()}
    for protocol in dict.fromkeys(filter(None, of_metric.values())) or (None,):
        shown = [metric for metric, own in of_metric.items() if own in (None, protocol)]
        meaning = f"{protocol}: {PROTOCOLS[protocol].meaning}" if protocol in PROTOCOLS else None
        yield _summary_table(results, shown, title, meaning)


def _summary_table(results: pd.DataFrame, metrics: Sequence[str], title: str, caption: str | None) -> Table:
    table = _table(title, caption)
    table.add_column("setting")
    table.add_column("n", justify="right")
    for metric in metrics:
        table.add_column(_heading(metric), justify="right")
    for sweep, block in results.groupby(SWEEP, sort=False):
        for setting, runs in block.groupby(SETTING, sort=False):
            cells = [mean_and_spread(runs[metric]) for metric in metrics]
            table.add_row(row_name(str(sweep), setting), str(len(runs)), *cells)
        table.add_section()
    return table


def frontier_table(frontier: ParetoFront, title: str) -> Table:
    """The settings that no other beats, with mean and standard deviation of each objective over the seeds."""
    best = frontier.best
    shown = f"{len(best)} of {count(len(frontier.settings), 'setting')}"
    words = "no other is as good in every objective and better in one" if len(frontier.objectives) > 1 else "the best"
    table = _table(f"{title}: {shown}", f"{words}; configs that run them: {BEST}/01.yaml ...")
    table.add_column("")
    table.add_column("setting", overflow="fold")
    for name, direction in frontier.objectives.items():
        table.add_column(f"{_heading(name)}\n{direction}", justify="right")
    for place, (_, row) in enumerate(best.head(MOST_ROWS).iterrows(), start=1):
        cells = [_cell(row, name) for name in frontier.objectives]
        table.add_row(f"{place:02d}", setting_text(row, frontier.parameters), *cells)
    return table


def importance_table(importance: dict[str, dict[str, float]], title: str) -> Table:
    """How much each parameter of a block matters for each objective."""
    table = _table(title, "share of an objective's variance that a parameter explains (fANOVA)")
    table.add_column("parameter")
    for name in importance:
        table.add_column(_heading(name), justify="right")
    for parameter in next(iter(importance.values())):
        table.add_row(parameter, *(f"{own.get(parameter, math.nan):.2f}" for own in importance.values()))
    return table


def _table(title: str, caption: str | None) -> Table:
    table = Table(title=title, caption=caption, title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    return table


def _heading(metric: str) -> str:
    return "\n".join(method_label(word) for word in metric.removeprefix(f"{PREFIX}/").split("/"))


def _cell(row: pd.Series, name: str) -> str:
    mean, spread = row[f"{name} mean"], row[f"{name} std"]
    return f"{mean:.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}")


def row_name(sweep: str, setting: object) -> str:
    """What a setting of a block is called in tables and figures.

    >>> row_name("dropout", 0.5), row_name("tuned", "dropout=0.1, heads=8")
    ('dropout=0.5', 'tuned dropout=0.1, heads=8')
    """
    shown = f"{setting:g}" if isinstance(setting, float) else str(setting)
    return f"{sweep} {shown}" if "=" in shown else f"{sweep}={shown}"


def mean_and_spread(values: pd.Series) -> str:
    """Mean and standard deviation of the runs in which a metric is defined, and how many these are if not all.

    >>> mean_and_spread(pd.Series([0.5, float("nan"), 0.7])), mean_and_spread(pd.Series([0.5, 0.5]))
    ('0.600±0.141 (2 of 3)', '0.500±0.000')
    """
    known = values.dropna()
    if known.empty:
        return "undefined"
    spread = known.std()
    of = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return f"{known.mean():.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}") + of
