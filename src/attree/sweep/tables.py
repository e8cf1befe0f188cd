"""The tables of a sweep for the terminal: metrics by setting, the Pareto front, and the importance of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from rich import box
from rich.table import Table

from attree.attribution import method_label
from attree.evaluation.metric_names import PREFIX, MetricName
from attree.faithfulness import PROTOCOLS
from attree.report.style import count
from attree.report.sweep_figures import SETTING
from attree.sweep.plan import SWEEP
from attree.sweep.results import BEST, NUM_RUNS, ParetoFront, setting_text

MAX_ROWS = 12
"""Maximum number of printed settings of a front. The file has all."""

ON_FRONT = "No other setting is as good in every objective and better in one."

OVER_SEEDS = "Mean ± standard deviation over the seeds, and the number of runs that define it if not all do."

IMPORTANCE = "Share of an objective's variance that a parameter explains (fANOVA)."


def summary_tables(results: pd.DataFrame, metrics: Sequence[str], title: str) -> Iterator[Table]:
    """Yield tables of means and standard deviations over the seeds, with one row per setting.

    Each protocol has its own table, because numbers of different protocols must not be compared. The caption describes
    the protocol. Metrics without a protocol, such as the accuracy, are in every table.

    Args:
        results: One row per run, as `collect` returns them.
        metrics: Names of the metrics to show.
        title: Heading of the tables.
    """
    parsed = {metric: MetricName.parse(metric) for metric in metrics}
    of_metric = {metric: None if name is None else name.protocol for metric, name in parsed.items()}
    for protocol in dict.fromkeys(filter(None, of_metric.values())) or (None,):
        comparable = [metric for metric, metric_protocol in of_metric.items() if metric_protocol in (None, protocol)]
        meaning = f"{protocol}: {PROTOCOLS[protocol].meaning}" if protocol in PROTOCOLS else None
        yield _summary_table(results, comparable, title, meaning)


def _summary_table(results: pd.DataFrame, metrics: Sequence[str], title: str, caption: str | None) -> Table:
    """Return the terminal's table of a sweep: mean and spread of each metric over the runs, one row per setting."""
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
    """Return the table of the settings on the front, with the mean and standard deviation of each objective."""
    best = frontier.best
    numbers = f"{len(best)} of {count(len(frontier.settings), 'setting')}"
    table = _table(f"{title}: {numbers}", f"{about_front(frontier)} Configs to run them: {BEST}/01.yaml ...")
    table.add_column("")
    table.add_column("setting", overflow="fold")
    for name, direction in frontier.objectives.items():
        table.add_column(f"{_heading(name)}\n{direction}", justify="right")
    for place, (_, row) in enumerate(best.head(MAX_ROWS).iterrows(), start=1):
        table.add_row(f"{place:02d}", setting_text(row, frontier.parameters), *objective_cells(row, frontier))
    return table


def objective_cells(row: pd.Series, frontier: ParetoFront) -> list[str]:
    """Return the objectives of a setting as text: means, standard deviations, and how many runs define them."""
    return [
        _counted(row[f"{name} mean"], row[f"{name} std"], row[f"{name} n"], row[NUM_RUNS])
        for name in frontier.objectives
    ]


def about_front(frontier: ParetoFront) -> str:
    """Say what the settings of a Pareto front have in common, and what was left out of it."""
    words = ON_FRONT if len(frontier.objectives) > 1 else "The best setting."
    return f"{words} {frontier.left_out}".rstrip()


def importance_table(importance: dict[str, dict[str, float]], title: str) -> Table:
    """Return the table of the importance of each parameter for each objective."""
    table = _table(title, IMPORTANCE)
    table.add_column("parameter")
    for name in importance:
        table.add_column(_heading(name), justify="right")
    for parameter in next(iter(importance.values())):
        table.add_row(parameter, *(f"{shares.get(parameter, math.nan):.2f}" for shares in importance.values()))
    return table


def _table(title: str, caption: str | None) -> Table:
    table = Table(title=title, caption=caption, title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    return table


def _heading(metric: str) -> str:
    return "\n".join(method_label(word) for word in metric.removeprefix(f"{PREFIX}/").split("/"))


def row_name(sweep: str, setting: object) -> str:
    """Return the name of a setting in tables and figures.

    >>> row_name("dropout", 0.5), row_name("tuned", "dropout=0.1, heads=8")
    ('dropout=0.5', 'tuned dropout=0.1, heads=8')
    """
    text = f"{setting:g}" if isinstance(setting, float) else str(setting)
    return f"{sweep} {text}" if "=" in text else f"{sweep}={text}"


def mean_and_spread(values: pd.Series) -> str:
    """Return the mean and standard deviation of a metric, and the number of runs that define it if not all do.

    >>> mean_and_spread(pd.Series([0.5, float("nan"), 0.7])), mean_and_spread(pd.Series([0.5, 0.5]))
    ('0.600±0.141 (2 of 3)', '0.500±0.000')
    """
    return _counted(values.mean(), values.std(), values.count(), len(values))


def _counted(mean: float, spread: float, defined: int, runs: int) -> str:
    return number_text(mean, spread) + (f" ({defined} of {runs})" if 0 < defined < runs else "")


def number_text(mean: float, spread: float = math.nan) -> str:
    """Return a mean and its standard deviation as text."""
    if math.isnan(mean):
        return "undefined"
    return f"{mean:.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}")
