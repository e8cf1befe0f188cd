"""The report of a sweep: tables for the terminal, and a page.

The page is a single HTML file with all figures and without scripts. It shows the best settings, the importance of
parameters, and every setting with links to its runs.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from rich import box
from rich.table import Table

from attree.attribution import method_label
from attree.evaluation.names import PREFIX, MetricName
from attree.faithfulness import PROTOCOLS
from attree.report.plain_page import PagePart, plain_page, plain_table
from attree.report.style import count
from attree.report.sweep_figures import SETTING, metric_title
from attree.sweep.plan import RUN, SEED, SWEEP
from attree.sweep.results import BEST, FRONT, NUM_RUNS, ParetoFront, parameter_columns, setting_text

MAX_ROWS = 12
"""Maximum number of printed settings of a front. The file has all."""

ON_FRONT = "No other setting is as good in every objective and better in one."
OVER_SEEDS = "Mean ± standard deviation over the seeds, and the number of runs that define it if not all do."
IMPORTANCE = "Share of an objective's variance that a parameter explains (fANOVA)."

TITLES = {
    "results": "Metrics by setting",
    "pareto": "Explanation quality against accuracy",
    "over_uniform": "What attention adds to uniform attention",
    "curves": "One setting at each value of the other",
    "heat_map": "Two settings together",
    "frontier": "All settings, and the best of them",
}
"""Headings of the figures, by the names of their files."""


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
    table = _table(f"{title}: {numbers}", f"{_about_front(frontier)} Configs to run them: {BEST}/01.yaml ...")
    table.add_column("")
    table.add_column("setting", overflow="fold")
    for name, direction in frontier.objectives.items():
        table.add_column(f"{_heading(name)}\n{direction}", justify="right")
    for place, (_, row) in enumerate(best.head(MAX_ROWS).iterrows(), start=1):
        table.add_row(f"{place:02d}", setting_text(row, frontier.parameters), *_objective_cells(row, frontier))
    return table


def _objective_cells(row: pd.Series, frontier: ParetoFront) -> list[str]:
    return [
        _counted(row[f"{name} mean"], row[f"{name} std"], row[f"{name} n"], row[NUM_RUNS])
        for name in frontier.objectives
    ]


def _about_front(frontier: ParetoFront) -> str:
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
    return _number(mean, spread) + (f" ({defined} of {runs})" if 0 < defined < runs else "")


def sweep_page(
    name: str,
    results: pd.DataFrame,
    metrics: Sequence[str],
    frontier: ParetoFront | None,
    importance: Mapping[str, Mapping[str, Mapping[str, float]]],
    figures: Iterable[Path],
    folder: Path,
) -> str:
    """Return the page of a sweep as HTML. All names come from users, and are escaped.

    Args:
        name: Name of the sweep.
        results: One row per run, as `collect` returns them.
        metrics: Names of the metrics to show.
        frontier: The settings, compared by the objectives.
        importance: The importance of parameters, by block, objective and parameter.
        figures: The figures' PNG files.
        folder: The sweep's folder, which links are relative to.
    """
    runs, seeds = results[RUN].nunique(), results[SEED].nunique()
    parts = []
    if frontier is not None:
        parts.append(PagePart("Best trade-offs", _frontier_html(frontier, folder)))
    for block, objectives in importance.items():
        parts.append(PagePart(f"What matters: {block}", _importance_html(objectives)))
    for figure in figures:
        title = TITLES.get(figure.stem, figure.stem.replace("_", " ").capitalize())
        content = base64.b64encode(figure.with_suffix(".svg").read_bytes()).decode()
        alternative = f"{escape(title)}: the numbers are in the tables"
        parts.append(PagePart(title, f'<p><img src="data:image/svg+xml;base64,{content}" alt="{alternative}"></p>'))
    parts.append(PagePart("All settings", _settings_html(results, metrics, frontier, folder)))
    return plain_page(name, f'<p class="note">{count(runs, "run")}, {count(seeds, "seed")}</p>', parts)


def _frontier_html(frontier: ParetoFront, folder: Path) -> str:
    """Return the HTML table of the settings on the Pareto front, with their objectives and links to their configs."""
    heads = [
        "setting",
        *(f"{metric_title(name)} ({direction})" for name, direction in frontier.objectives.items()),
        "config",
    ]
    rows = []
    for place, (_, row) in enumerate(frontier.best.iterrows(), start=1):
        config = f"best/{place:02d}.yaml"
        name = escape(_setting_name(row, frontier.parameters))
        cells = _objective_cells(row, frontier)
        rows.append((name, *cells, f'<a href="{config}">{config}</a>' if (folder / config).is_file() else ""))
    return _html_table(heads, rows, f"{_about_front(frontier)} {OVER_SEEDS}")


def _importance_html(objectives: Mapping[str, Mapping[str, float]]) -> str:
    first = next(iter(objectives.values()))
    rows = [(escape(key), *(_number(shares.get(key, math.nan)) for shares in objectives.values())) for key in first]
    return _html_table(["parameter", *map(metric_title, objectives)], rows, IMPORTANCE)


def _settings_html(results: pd.DataFrame, metrics: Sequence[str], frontier: ParetoFront | None, folder: Path) -> str:
    """Return the HTML table of all settings of a sweep, with metrics and links to runs; the Pareto front is marked."""
    best: set[tuple[object, object]] = set()
    if frontier is not None:
        front = frontier.settings[frontier.settings[FRONT]]
        best = set(zip(front[SWEEP], front[SETTING], strict=True))
    parameters = parameter_columns(results)
    rows, marked = [], []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        cells = [mean_and_spread(runs[metric]) for metric in metrics]
        links = [_link(folder, str(run), int(seed)) for run, seed in zip(runs[RUN], runs[SEED], strict=True)]
        rows.append((escape(_setting_name(runs.iloc[0], parameters)), *cells, " ".join(links)))
        marked.append((sweep, setting) in best)
    heads = ["setting", *map(metric_title, metrics), "runs, by seed"]
    return _html_table(heads, rows, f"{OVER_SEEDS} Marked: the best trade-offs.", marked)


def _setting_name(row: pd.Series, parameters: Sequence[str]) -> str:
    """Return the name of a setting: its block, its number if a search drew it, and its values."""
    values = setting_text(row, parameters)
    number = f" {row[SETTING]}" if str(row[SETTING]).isdigit() and "=" in values and len(parameters) > 1 else ""
    return f"{row[SWEEP]}{number}: {values}"


def _link(folder: Path, run: str, seed: int) -> str:
    """Return a link to a run's page or folder, or only its seed if the run is on another machine."""
    if not (folder / run).is_dir():
        return str(seed)
    pages = [page for page in ("explain/page.html", "page.html") if (folder / run / page).is_file()]
    target = f"{quote(run)}/{pages[0] if pages else ''}"
    return f'<a href="{escape(target)}" title="{escape(run)}">{seed}</a>'


def _html_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str, marked: Sequence[bool] | None = None
) -> str:
    lines = []
    for place, (first, *others) in enumerate(rows):
        kind = ' class="front"' if marked is not None and marked[place] else ""
        lines.append(f'<tr{kind}><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>')
    return f'<p class="note">{escape(caption)}</p>\n{plain_table(heads, lines, caption)}'


def _number(mean: float, spread: float = math.nan) -> str:
    if math.isnan(mean):
        return "undefined"
    return f"{mean:.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}")
