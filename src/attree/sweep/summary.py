"""Sum up a sweep: CSV files of runs, settings and the front, tables, and figures as files and in TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from attree.attribution import method_label
from attree.callbacks.tensorboard import write_figures_run
from attree.evaluation.names import PREFIX, MetricName
from attree.faithfulness import PROTOCOLS
from attree.io.console import print_whole
from attree.io.files import replacing, write_text
from attree.report.grid_curves import grid_curves_figure
from attree.report.over_uniform_figure import over_uniform_figure, over_uniform_pairs
from attree.report.pareto_figure import frontier_figure, pareto_figure
from attree.report.style import count
from attree.report.sweep_figure import SETTING, heat_map_figure, sweep_figure
from attree.sweep.frontier import BEST, ParetoFront, find_frontier, importances, setting_text, write_best
from attree.sweep.page import sweep_page
from attree.sweep.plan import RUN, SEED, SWEEP, Block, Direction, Plan, value_text
from attree.sweep.results import chosen_metrics, collect, means, traded_metrics
from attree.sweep.run import METRICS_FILE, damaged_runs
from attree.sweep.study import SweepStudy

LOSS, PARETO, FRONTIER, HEAT_MAP, CURVES = "train/loss", "pareto", "frontier", "heat_map", "curves"
OVER_UNIFORM = "over_uniform"
RESULTS, MEANS, TRIALS, PAGE = "results.csv", "means.csv", "frontier.csv", "page.html"
BOARD_FOLDER = "results"
"""Where TensorBoard finds the figures: a run of this name beside the sweep's runs, whose names all hold a seed."""

MOST_ROWS = 12
"""Settings of a front that are printed; the file has all."""


@dataclass(frozen=True)
class Summary:
    """What a sweep found, and where it is written.

    Attributes:
        results: One row per finished run of each block: its settings, seed, id and all its metrics.
        metrics: Names of the metrics to show.
        csv: The file that holds `results`.
        figures: The figures' files, as PNG; none if no run has any of the metrics.
        frontier: The settings judged by the objectives; None if no setting has all of these.
        importance: By block, objective and parameter, how much the parameter matters.
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
    grids: tuple[str, ...] | None = None

    def shortcomings(self) -> list[str]:
        """What a reader of the table must know: runs that diverged, and a figure that could not be made."""
        said = []
        if LOSS in self.results:
            lost = self.results[self.results[LOSS].isna()][RUN].drop_duplicates().tolist()
            said += [f"Diverged: {run} ended with a loss that is no number." for run in lost]
        if self.grids != () and not any(path.stem == PARETO for path in self.figures):
            said.append("No pareto.png: no run has both an accuracy and an explanation metric that is defined.")
        return said


def summarise_sweep(plan: Plan, folder: Path, study: SweepStudy | None = None) -> Summary | None:
    """Collect the finished runs and sum them up in the sweep's folder; None if there are none.

    `results.csv` holds all runs, `means.csv` the means over seeds, `frontier.csv` the settings judged by the
    objectives, `best/` configs of those that no other beats. `results.png` shows metrics against settings, `pareto.png`
    explanation quality against accuracy, `over_uniform.png` what attention adds to uniform attention, `frontier.png`
    the objectives of all trials; they are there as SVG too, and in TensorBoard, under the run `results`. `page.html`
    has all of it on one page.
    """
    results = collect(plan, folder, study)
    if results.empty:
        return None
    metrics = chosen_metrics(plan.metrics, results)
    own = folder / plan.name
    csv = write_text(own / RESULTS, results.drop(columns=SETTING).to_csv(index=False))
    write_text(own / MEANS, means(results).to_csv(index=False))
    frontier = find_frontier(results, _objectives(plan, results, metrics))
    best: list[Path] = []
    if frontier is not None:
        write_text(own / TRIALS, frontier.settings.to_csv(index=False))
        best = write_best(plan, folder, frontier)
    figures = draw_figures(plan, results, metrics, frontier)
    written = []
    for name, figure in figures.items():
        for suffix in ("svg", "png"):
            with replacing(own / f"{name}.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix)
        written.append(own / f"{name}.png")
    if figures:
        named = {f"sweep/{name}": figure for name, figure in figures.items()}
        write_figures_run(own / BOARD_FOLDER, named, step=results[RUN].nunique())
    importance = {} if study is None else importances(plan, study)
    grids = tuple(block.name for block in plan.blocks)
    summary = Summary(results, metrics, csv, written, frontier, importance, best, grids)
    write_text(own / PAGE, sweep_page(plan.name, results, metrics, frontier, importance, written, own))
    return summary


def _objectives(plan: Plan, results: pd.DataFrame, metrics: Sequence[str]) -> dict[str, Direction]:
    """What settings are judged by: the file's objectives, or else accuracy and the first quality that it shows."""
    if plan.says_objectives:
        return plan.objectives
    accuracy, qualities = traded_metrics(results, metrics)
    both = [accuracy, *qualities[:1]] if accuracy is not None else []
    return dict.fromkeys(both, "maximize") if len(both) == 2 else {}


def draw_figures(
    plan: Plan, results: pd.DataFrame, metrics: list[str], frontier: ParetoFront | None = None
) -> dict[str, Figure]:
    """The figures of a sweep by name; those that would have nothing to show are left out."""
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
            figures[OVER_UNIFORM] = over_uniform_figure(_named_settings(blocks), accuracy, pairs, title)
        for place, block in enumerate(_two_way(plan)):
            number = "" if place == 0 else f"_{place + 1}"
            shown = [metric for metric in metrics if blocks.get(block.name, results)[metric].notna().any()]
            if block.name in blocks and shown:
                first, second = block.labels.values()
                title = f"{plan.name}: {block.name}, mean over {seeds}"
                figures[CURVES + number] = grid_curves_figure(blocks[block.name], (first, second), shown, title)
                figures[HEAT_MAP + number] = heat_map_figure(blocks[block.name], (first, second), shown, title)
    if frontier is not None and plan.searches:
        title = f"{plan.name}: {count(len(frontier.settings), 'setting')}, mean and spread over {seeds}"
        figures[FRONTIER] = frontier_figure(frontier.settings, frontier.objectives, title)
    return figures


def _named_settings(blocks: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The runs of each setting of all grids and lists, by what the table calls it."""
    return {
        _row_name(name, setting): runs
        for name, block in blocks.items()
        for setting, runs in block.groupby(SETTING, sort=False)
    }


def _two_way(plan: Plan) -> list[Block]:
    """The blocks that vary two keys, with several values each."""
    found = []
    for block in plan.blocks:
        values = [{value_text(point.settings.get(key)) for point in block.points} for key in block.labels]
        if len(values) == 2 and all(len(one) > 1 for one in values):
            found.append(block)
    return found


def summary_tables(summary: Summary, title: str) -> Iterator[Table]:
    """Mean and standard deviation over the seeds, one row per setting of the grids and lists.

    There is one table for each protocol, whose numbers must not be compared with another's; the caption says what it
    does. Metrics that have no protocol, such as the accuracy, are in all of them.
    """
    parsed = {metric: MetricName.parse(metric) for metric in summary.metrics}
    of_metric = {metric: None if name is None else name.protocol for metric, name in parsed.items()}
    for protocol in dict.fromkeys(filter(None, of_metric.values())) or (None,):
        shown = [metric for metric, own in of_metric.items() if own in (None, protocol)]
        meaning = f"{protocol}: {PROTOCOLS[protocol].meaning}" if protocol in PROTOCOLS else None
        yield _summary_table(summary, shown, title, meaning)


def _summary_table(summary: Summary, metrics: Sequence[str], title: str, caption: str | None) -> Table:
    table = _table(title, caption)
    table.add_column("setting")
    table.add_column("n", justify="right")
    for metric in metrics:
        table.add_column(_heading(metric), justify="right")
    for sweep, block in summary.results.groupby(SWEEP, sort=False):
        if summary.grids is not None and sweep not in summary.grids:
            continue
        for setting, runs in block.groupby(SETTING, sort=False):
            cells = [mean_and_spread(runs[metric]) for metric in metrics]
            table.add_row(_row_name(str(sweep), setting), str(len(runs)), *cells)
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


def _row_name(sweep: str, setting: object) -> str:
    shown = f"{setting:g}" if isinstance(setting, float) else str(setting)
    return f"{sweep} {shown}" if "=" in shown else f"{sweep}={shown}"


def mean_and_spread(values: pd.Series) -> str:
    """Mean and standard deviation; where a metric is undefined in some runs, of how many it is the mean.

    >>> mean_and_spread(pd.Series([0.5, float("nan"), 0.7])), mean_and_spread(pd.Series([0.5, 0.5]))
    ('0.600±0.141 (2 of 3)', '0.500±0.000')
    """
    known = values.dropna()
    if known.empty:
        return "undefined"
    spread = known.std()
    of = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return f"{known.mean():.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}") + of


def show_summary(plan: Plan, folder: Path, study: SweepStudy | None, console: Console) -> None:
    """Sum a sweep up, print its tables, and say where everything is."""
    for run in damaged_runs(plan, folder):
        console.print(
            f"left out: {run.id}, as its {METRICS_FILE} is damaged; a sweep without --collect does it again",
            soft_wrap=True,
        )
    summary = summarise_sweep(plan, folder, study)
    if summary is None:
        console.print("No run has finished: there is nothing to sum up.")
        return
    if plan.blocks:
        for table in summary_tables(summary, title=plan.name):
            print_whole(console, table)
    if summary.frontier is not None and plan.says_objectives:
        print_whole(console, frontier_table(summary.frontier, f"{plan.name}, best trade-offs"))
    for block, own in summary.importance.items():
        print_whole(console, importance_table(own, f"{block}: what matters"))
    if not summary.metrics:
        console.print(f"No run logged any of the metrics {', '.join(plan.metrics)}.")
    console.print(f"All runs: {summary.csv}", soft_wrap=True)
    console.print(f"Means:    {summary.csv.with_name(MEANS)}", soft_wrap=True)
    if summary.best:
        console.print(f"Best:     {summary.csv.with_name(BEST)} ({count(len(summary.best), 'config')})", soft_wrap=True)
    for figure in summary.figures:
        console.print(f"Figure:   {figure} (and .svg)", soft_wrap=True)
    for sentence in summary.shortcomings():
        console.print(sentence, soft_wrap=True)
    console.print(f"Page:     {summary.csv.with_name(PAGE)}", soft_wrap=True)
    console.print(f"Curves:   tensorboard --logdir {folder / plan.name}", soft_wrap=True)
