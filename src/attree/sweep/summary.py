"""Summarise a sweep: tables for the terminal, CSV files, figures, configs of the best settings, and a page.

The page is a single HTML file. It opens with charts of the runs (quality against accuracy and against any setting,
coloured by any setting) and shows the best settings, the importance of parameters, every setting with links to its
runs, and all figures.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from attree.attribution import method_label
from attree.callbacks.tensorboard import accuracy_names, write_figures_run
from attree.evaluation.names import PREFIX, MetricName
from attree.faithfulness import PROTOCOLS
from attree.io.files import replacing, write_text
from attree.io.terminal import print_whole
from attree.report.plain_page import PagePart, inline, plain_page, plain_table
from attree.report.score_figures import over_uniform_figure, over_uniform_pairs
from attree.report.style import count, method_looks
from attree.report.sweep_figures import (
    SETTING,
    frontier_figure,
    grid_curves_figure,
    heat_map_figure,
    metric_title,
    pareto_figure,
    short_name,
    sweep_figure,
)
from attree.sweep.plan import RUN, SEED, SWEEP, Block, Direction, Plan, value_text
from attree.sweep.results import (
    BEST,
    FRONT,
    NUM_RUNS,
    ParetoFront,
    collect,
    damaged_runs,
    find_frontier,
    importances,
    matching_metrics,
    means,
    parameter_columns,
    setting_text,
    traded_metrics,
    write_best,
)
from attree.sweep.single_run import METRICS_FILE
from attree.sweep.study import SweepStudy

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
    parts.append(PagePart("All settings", _settings_html(results, metrics, frontier, folder)))
    for figure in figures:
        title = TITLES.get(figure.stem, figure.stem.replace("_", " ").capitalize())
        content = base64.b64encode(figure.with_suffix(".svg").read_bytes()).decode()
        alternative = f"{escape(title)}: the numbers are in the tables"
        parts.append(PagePart(title, f'<p><img src="data:image/svg+xml;base64,{content}" alt="{alternative}"></p>'))
    return plain_page(
        name, f'<p class="note">{count(runs, "run")}, {count(seeds, "seed")}</p>', parts, runs_of_page(results, folder)
    )


def runs_of_page(results: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return the runs of a sweep as plain values for the charts of its page.

    Args:
        results: One row per run, as `collect` returns them.
        folder: The sweep's folder, which links are relative to.
    """
    keys = [*([SWEEP] if results[SWEEP].nunique() > 1 else []), *parameter_columns(results), SEED]
    logged = [name for name in results.columns if "/" in name]
    runs = []
    for record in results.to_dict("records"):
        values = {key: record[key] for key in keys if not (isinstance(record[key], float) and math.isnan(record[key]))}
        page = page_of_run(folder, str(record[RUN]))
        metrics = {name: record[name] for name in logged if isinstance(record[name], float | int)}
        settings = {
            key: value if isinstance(value, str | int | float) else value_text(value) for key, value in values.items()
        }
        runs.append({"name": str(record[RUN]), "settings": settings, "metrics": metrics, "page": page})
    methods = list(dict.fromkeys(parsed.method for name in logged if (parsed := MetricName.parse(name)) is not None))
    looks = method_looks(methods)
    return {
        "runs": runs,
        "methods": [{"name": name, "label": method_label(name), "color": looks[name].color} for name in methods],
    }


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
        name = escape(_setting_name(row, frontier.settings, frontier.parameters))
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
        rows.append((escape(_setting_name(runs.iloc[0], results, parameters)), *cells, " ".join(links)))
        marked.append((sweep, setting) in best)
    heads = ["setting", *map(metric_title, metrics), "runs, by seed"]
    return _html_table(heads, rows, f"{OVER_SEEDS} Marked: the best trade-offs.", marked)


def _setting_name(row: pd.Series, settings: pd.DataFrame, parameters: Sequence[str]) -> str:
    """Return the name of a setting: its block if there are several, its number if a search drew it, and its values.

    Args:
        row: The setting, or a run of it.
        settings: All settings or runs of the sweep.
        parameters: Names of the columns with the settings' values.
    """
    short = {name: short_name(row[name]) if isinstance(row[name], str) else row[name] for name in parameters}
    values = setting_text(pd.Series(short, dtype=object), parameters)
    number = str(row[SETTING]) if str(row[SETTING]).isdigit() and "=" in values and len(parameters) > 1 else ""
    about = [*([str(row[SWEEP])] if settings[SWEEP].nunique() > 1 else []), *([number] if number else [])]
    return f"{' '.join(about)}: {values}" if about else values


def _link(folder: Path, run: str, seed: int) -> str:
    """Return a link to a run's page or folder, or only its seed if the run is on another machine."""
    target = page_of_run(folder, run)
    return str(seed) if target is None else f'<a href="{escape(target)}" title="{escape(run)}">{seed}</a>'


def page_of_run(folder: Path, run: str) -> str | None:
    """Return the address of a run's page or else its folder, seen from the sweep's; None if it is elsewhere."""
    if not (folder / run).is_dir():
        return None
    pages = [page for page in ("explain/page.html", "page.html") if (folder / run / page).is_file()]
    return f"{quote(run)}/{pages[0] if pages else ''}"


def _html_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str, marked: Sequence[bool] | None = None
) -> str:
    lines = []
    for place, (first, *others) in enumerate(rows):
        kind = ' class="front"' if marked is not None and marked[place] else ""
        lines.append(f'<tr{kind}><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>')
    return f'<p class="note">{inline(caption)}</p>\n{plain_table(heads, lines, caption)}'


def _number(mean: float, spread: float = math.nan) -> str:
    if math.isnan(mean):
        return "undefined"
    return f"{mean:.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}")


LOSS, PARETO, FRONTIER, HEAT_MAP, CURVES = "train/loss", "pareto", "frontier", "heat_map", "curves"
OVER_UNIFORM = "over_uniform"
RESULTS, MEANS, TRIALS, PAGE = "results.csv", "means.csv", "frontier.csv", "page.html"
BOARD_FOLDER = "results"
"""Run directory of TensorBoard's figures. No run of the sweep has this name, because all run ids contain a seed."""


@dataclass(frozen=True)
class Summary:
    """The results of a sweep, and the files that hold them.

    Attributes:
        results: One row per finished run of each block: its settings, seed, id and all its metrics.
        metrics: Names of the metrics to show.
        csv: The file with `results`.
        figures: The figures' PNG files; empty if no run has any of the metrics.
        frontier: The settings, compared by the objectives; None if no setting has all objectives.
        importance: The importance of parameters, by block, objective and parameter.
        best: Configs of the settings on the front.
        grids: Names of the blocks that are grids or lists.
    """

    results: pd.DataFrame
    metrics: list[str]
    csv: Path
    figures: list[Path]
    frontier: ParetoFront | None = None
    importance: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    best: list[Path] = field(default_factory=list)
    grids: tuple[str, ...] = ()

    def warnings(self) -> list[str]:
        """Return sentences about runs that diverged and about a missing figure."""
        sentences = []
        if LOSS in self.results:
            diverged = self.results[self.results[LOSS].isna()][RUN].drop_duplicates().tolist()
            sentences += [f"Diverged: {run} ended with a loss that is not a number." for run in diverged]
        if self.grids and not any(path.stem == PARETO for path in self.figures):
            sentences.append("No pareto.png: no run has both an accuracy and a defined explanation metric.")
        return sentences


def summarise_sweep(plan: Plan, folder: Path, study: SweepStudy | None = None) -> Summary | None:
    """Collect the finished runs and write their summary to the sweep's folder; None if there are none.

    `results.csv` holds all runs, `means.csv` the means over seeds, `frontier.csv` the settings with their objectives,
    and `best/` the configs of the settings on the Pareto front. `results.png` shows metrics against settings,
    `pareto.png` explanation quality against accuracy, `over_uniform.png` what attention adds to uniform attention, and
    `frontier.png` the objectives of all trials. The figures are also written as SVG and to TensorBoard, as the run
    `results`. `page.html` shows everything on one page.
    """
    results = collect(plan, folder, study)
    if results.empty:
        return None
    metrics = matching_metrics(plan.metrics, results)
    sweep_folder = folder / plan.name
    csv = write_text(sweep_folder / RESULTS, results.drop(columns=SETTING).to_csv(index=False))
    write_text(sweep_folder / MEANS, means(results).to_csv(index=False))
    objectives = _objectives(plan, results, metrics)
    frontier = find_frontier(results, objectives, _accuracy(objectives, results, metrics), plan.accuracy_within)
    best: list[Path] = []
    if frontier is not None:
        write_text(sweep_folder / TRIALS, frontier.settings.to_csv(index=False))
        best = write_best(plan, folder, frontier)
    figures = draw_figures(plan, results, metrics, frontier)
    written = []
    for name, figure in figures.items():
        for suffix in ("svg", "png"):
            with replacing(sweep_folder / f"{name}.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix)
        written.append(sweep_folder / f"{name}.png")
    if figures:
        by_tag = {f"sweep/{name}": figure for name, figure in figures.items()}
        write_figures_run(sweep_folder / BOARD_FOLDER, by_tag, step=results[RUN].nunique())
    importance = {} if study is None else importances(plan, study)
    grids = tuple(block.name for block in plan.blocks)
    summary = Summary(results, metrics, csv, written, frontier, importance, best, grids)
    write_text(
        sweep_folder / PAGE, sweep_page(plan.name, results, metrics, frontier, importance, written, sweep_folder)
    )
    return summary


def _objectives(plan: Plan, results: pd.DataFrame, metrics: Sequence[str]) -> dict[str, Direction]:
    """Return the objectives of the file, or else the accuracy and the first explanation metric to show."""
    if plan.has_objectives:
        return plan.objectives
    accuracy, qualities = traded_metrics(results, metrics)
    both = [accuracy, *qualities[:1]] if accuracy is not None else []
    return dict.fromkeys(both, "maximize") if len(both) == 2 else {}


def _accuracy(objectives: Mapping[str, Direction], results: pd.DataFrame, metrics: Sequence[str]) -> str | None:
    """Return the accuracy that the best settings must have: an objective, or else the one that is traded."""
    maximised = [name for name, direction in objectives.items() if direction == "maximize" and name in results]
    return next(iter(accuracy_names(maximised)), traded_metrics(results, metrics)[0])


def draw_figures(
    plan: Plan, results: pd.DataFrame, metrics: list[str], frontier: ParetoFront | None = None
) -> dict[str, Figure]:
    """Return the figures of a sweep by name, without figures that have nothing to show."""
    seeds = count(results[SEED].nunique(), "seed")
    grids = {block.name for block in plan.blocks}
    by_name = {str(name): block.infer_objects() for name, block in results.groupby(SWEEP, sort=False)}
    blocks = {name: block for name, block in by_name.items() if name in grids}
    figures = {}
    if metrics and blocks:
        figures["results"] = sweep_figure(blocks, metrics, f"{plan.name}: mean and spread over {seeds}")
        accuracy, qualities = traded_metrics(results, metrics)
        if accuracy is not None and qualities:
            title = f"{plan.name}: explanation quality against accuracy, mean over {seeds}"
            figures[PARETO] = pareto_figure(blocks, accuracy, qualities, title)
        pairs = over_uniform_pairs(metrics)
        if accuracy is not None and pairs:
            title = f"{plan.name}: what attention adds to the computation tree, mean over {seeds}"
            settings = {
                row_name(name, setting): runs
                for name, block in blocks.items()
                for setting, runs in block.groupby(SETTING, sort=False)
            }
            figures[OVER_UNIFORM] = over_uniform_figure(settings, accuracy, pairs, title)
        for place, block in enumerate(_grids_of_two_or_three(plan)):
            number = "" if place == 0 else f"_{place + 1}"
            defined = [metric for metric in metrics if blocks.get(block.name, results)[metric].notna().any()]
            if block.name in blocks and defined:
                keys = list(block.labels.values())
                title = f"{plan.name}: {block.name}, mean over {seeds}"
                figures[CURVES + number] = grid_curves_figure(blocks[block.name], keys, defined, title)
                if len(keys) == 2:
                    figures[HEAT_MAP + number] = heat_map_figure(blocks[block.name], (keys[0], keys[1]), defined, title)
    if frontier is not None and plan.has_objectives:
        title = f"{plan.name}: {count(len(frontier.settings), 'setting')}, mean and spread over {seeds}"
        figures[FRONTIER] = frontier_figure(frontier.settings, frontier.objectives, title)
    return figures


def _grids_of_two_or_three(plan: Plan) -> list[Block]:
    """Return the blocks that vary two or three keys with several values each."""
    blocks = []
    for block in plan.blocks:
        values = [{value_text(point.settings.get(key)) for point in block.points} for key in block.labels]
        if len(values) in (2, 3) and all(len(texts) > 1 for texts in values):
            blocks.append(block)
    return blocks


def show_summary(plan: Plan, folder: Path, study: SweepStudy | None, console: Console) -> None:
    """Summarise a sweep, and print its tables and the paths of its files."""
    for run in damaged_runs(plan, folder):
        console.print(
            f"left out: {run.id}, as its {METRICS_FILE} is damaged; run the sweep without --collect to repeat it",
            soft_wrap=True,
        )
    summary = summarise_sweep(plan, folder, study)
    if summary is None:
        console.print("No run has finished, so there is nothing to summarise.")
        return
    if plan.blocks:
        of_grids = summary.results[summary.results[SWEEP].isin(summary.grids)]
        for table in summary_tables(of_grids, summary.metrics, title=plan.name):
            print_whole(console, table)
    if summary.frontier is not None and plan.has_objectives:
        print_whole(console, frontier_table(summary.frontier, f"{plan.name}, best trade-offs"))
    for block, objectives in summary.importance.items():
        print_whole(console, importance_table(objectives, f"{block}: what matters"))
    if not summary.metrics:
        console.print(f"No run logged any of the metrics {', '.join(plan.metrics)}.")
    if summary.frontier is None and plan.has_objectives:
        console.print(
            f"No best trade-offs: no setting has defined values of all objectives ({', '.join(plan.objectives)}).",
            soft_wrap=True,
        )
    console.print(f"All runs: {summary.csv}", soft_wrap=True)
    console.print(f"Means:    {summary.csv.with_name(MEANS)}", soft_wrap=True)
    if summary.best:
        console.print(f"Best:     {summary.csv.with_name(BEST)} ({count(len(summary.best), 'config')})", soft_wrap=True)
    for figure in summary.figures:
        console.print(f"Figure:   {figure} (and .svg)", soft_wrap=True)
    for sentence in summary.warnings():
        console.print(sentence, soft_wrap=True)
    console.print(f"Page:     {summary.csv.with_name(PAGE)}", soft_wrap=True)
    console.print(f"Curves:   tensorboard --logdir {folder / plan.name}", soft_wrap=True)
