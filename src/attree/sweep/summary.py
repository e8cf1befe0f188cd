"""Summarise a sweep: tables for the terminal, CSV files, figures, configs of the best settings, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from attree.callbacks.tensorboard import write_figures_run
from attree.evaluation.metric_names import charted_accuracies
from attree.io.files import replacing, write_text
from attree.io.terminal import command_line, linked, print_whole
from attree.report.pareto_figures import frontier_figure, pareto_figure
from attree.report.score_figures import over_uniform_figure, over_uniform_pairs
from attree.report.style import count
from attree.report.sweep_figures import SETTING, grid_curves_figure, heat_map_figure, sweep_figure
from attree.sweep.page import sweep_page
from attree.sweep.plan import RUN, SEED, SWEEP, Block, Direction, Plan, value_text
from attree.sweep.results import (
    BEST,
    ParetoFront,
    collect,
    damaged_runs,
    find_frontier,
    importances,
    matching_metrics,
    means,
    traded_metrics,
    write_best,
)
from attree.sweep.single_run import METRICS_FILE
from attree.sweep.study import SweepStudy
from attree.sweep.tables import frontier_table, importance_table, row_name, summary_tables

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
    return next(iter(charted_accuracies(maximised)), traded_metrics(results, metrics)[0])


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
    console.print(Text("All runs: ") + linked(summary.csv), soft_wrap=True)
    console.print(Text("Means:    ") + linked(summary.csv.with_name(MEANS)), soft_wrap=True)
    if summary.best:
        best = linked(summary.csv.with_name(BEST))
        console.print(Text.assemble("Best:     ", best, f" ({count(len(summary.best), 'config')})"), soft_wrap=True)
    for figure in summary.figures:
        console.print(Text.assemble("Figure:   ", linked(figure), " (and .svg)"), soft_wrap=True)
    for sentence in summary.warnings():
        console.print(sentence, soft_wrap=True)
    console.print(Text("Page:     ") + linked(summary.csv.with_name(PAGE)), soft_wrap=True)
    console.print(f"Curves:   {command_line('tensorboard', '--logdir', folder / plan.name)}", soft_wrap=True)
