"""Sum up a sweep: one CSV of all runs, a table of means, figures as files and in TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from attree.attribution import METHODS, method_label
from attree.callbacks.tensorboard import accuracy_names, write_figures_run
from attree.evaluation.names import FAITHFULNESS, PREFIX, TRUTH, MetricName
from attree.faithfulness import PROTOCOLS
from attree.io.files import replacing, write_text
from attree.report.pareto_figure import pareto_figure
from attree.report.style import count
from attree.report.sweep_figure import SETTING, method_of, sweep_figure
from attree.sweep.names import RUN, SEED, SWEEP, value_text
from attree.sweep.plan import Plan
from attree.sweep.run import is_marked, read_metrics, run_folder

LOSS, PARETO = "train/loss", "pareto"
MEANS = "means.csv"
BOARD_FOLDER = "results"
"""Where TensorBoard finds the figures: a run of this name beside the sweep's runs, whose names all hold a seed."""


@dataclass(frozen=True)
class Summary:
    """What a sweep found, and where it is written.

    Attributes:
        results: One row per finished run of each block: its settings, seed, id and all its metrics.
        metrics: Names of the metrics to show.
        csv: The file that holds `results`.
        figures: The figures' files, as PNG; none if no run has any of the metrics.
    """

    results: pd.DataFrame
    metrics: list[str]
    csv: Path
    figures: list[Path]

    def shortcomings(self) -> list[str]:
        """What a reader of the table must know: runs that diverged, and a figure that could not be made."""
        said = []
        if LOSS in self.results:
            lost = self.results[self.results[LOSS].isna()][RUN].drop_duplicates().tolist()
            said += [f"Diverged: {run} ended with a loss that is no number." for run in lost]
        if not any(path.stem == PARETO for path in self.figures):
            said.append("No pareto.png: no run has both an accuracy and an explanation metric that is defined.")
        return said


def summarise(plan: Plan, folder: Path) -> Summary | None:
    """Collect the finished runs and sum them up in the sweep's folder; None if there are none.

    `results.csv` holds all runs, `means.csv` the means over seeds. `results.png` shows metrics against settings,
    `pareto.png` explanation quality against accuracy; both are there as SVG too, and in TensorBoard, under the
    run `results`.
    """
    results = collect(plan, folder)
    if results.empty:
        return None
    metrics = chosen_metrics(plan.metrics, results)
    own = folder / plan.name
    csv = write_text(own / "results.csv", results.drop(columns=SETTING).to_csv(index=False))
    write_text(own / MEANS, means(results).to_csv(index=False))
    figures = draw_figures(plan, results, metrics)
    written = []
    for name, figure in figures.items():
        for suffix in ("svg", "png"):
            with replacing(own / f"{name}.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix)
        written.append(own / f"{name}.png")
    if figures:
        named = {f"sweep/{name}": figure for name, figure in figures.items()}
        write_figures_run(own / BOARD_FOLDER, named, step=results[RUN].nunique())
    return Summary(results, metrics, csv, written)


def draw_figures(plan: Plan, results: pd.DataFrame, metrics: list[str]) -> dict[str, Figure]:
    """The figures of a sweep by name; those that would have nothing to show are left out."""
    if not metrics:
        return {}
    blocks = {str(name): block.infer_objects() for name, block in results.groupby(SWEEP, sort=False)}
    seeds = count(results[SEED].nunique(), "seed")
    figures = {"results": sweep_figure(blocks, metrics, f"{plan.name}: mean and spread over {seeds}")}
    accuracy, qualities = traded_metrics(results, metrics)
    if accuracy is not None and qualities:
        title = f"{plan.name}: explanation quality against accuracy, mean over {seeds}"
        figures[PARETO] = pareto_figure(blocks, accuracy, qualities, title)
    return figures


def traded_metrics(results: pd.DataFrame, metrics: Sequence[str]) -> tuple[str | None, list[str]]:
    """The accuracy and the explanation metrics that a sweep trades for one another, of those that some run has.

    Both are taken from what the sweep shows: an accuracy that it does not show still counts, and of the explanation
    metrics faithfulness and ground truth come before single statistics.
    """
    known = [name for name in results.columns if "acc" in name and results[name].notna().any()]
    found = accuracy_names([name for name in metrics if name in known]) or accuracy_names(known)
    of_methods = [name for name in metrics if method_of(name) is not None and results[name].notna().any()]
    headlines = [name for name in of_methods if name.rpartition("/")[2] in (FAITHFULNESS, TRUTH)]
    return found[0] if found else None, headlines or of_methods


def collect(plan: Plan, folder: Path) -> pd.DataFrame:
    """One row per point of the plan whose run is finished, blocks one after the other."""
    rows = []
    for block in plan.blocks:
        for point in block.points:
            own = run_folder(plan, point.run, folder)
            metrics = read_metrics(own)
            if metrics is None or not is_marked(point.run, own):
                continue
            settings = {block.labels[key]: value for key, value in point.settings.items()}
            named = {SWEEP: block.name, SETTING: _setting(settings), **settings, SEED: point.seed, RUN: point.run.id}
            rows.append({**named, **metrics})
    return pd.DataFrame(rows)


def _setting(settings: dict[str, object]) -> object:
    """What a point is called on its block's axis: its value, or all values with their names if there are several."""
    if len(settings) == 1:
        (value,) = settings.values()
        return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)
    return ", ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def chosen_metrics(patterns: Sequence[str], results: pd.DataFrame) -> list[str]:
    """The metrics that match a name or pattern (with `*`), in the order of the patterns, then of the methods."""
    rank = {method: position for position, method in enumerate(METHODS)}
    logged = [name for name in results.columns if "/" in name]
    logged.sort(key=lambda name: rank.get(name.split("/")[1], len(rank)))
    return list(dict.fromkeys(name for pattern in patterns for name in logged if fnmatchcase(name, pattern)))


def summary_tables(summary: Summary, title: str) -> Iterator[Table]:
    """Mean and standard deviation over the seeds, one row per setting.

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
    table = Table(title=title, caption=caption, title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.add_column("setting")
    table.add_column("n", justify="right")
    for metric in metrics:
        words = metric.removeprefix(f"{PREFIX}/").split("/")
        table.add_column("\n".join(method_label(word) for word in words), justify="right")
    for sweep, block in summary.results.groupby(SWEEP, sort=False):
        for setting, runs in block.groupby(SETTING, sort=False):
            cells = [_mean_and_spread(runs[metric]) for metric in metrics]
            table.add_row(_row_name(str(sweep), setting), str(len(runs)), *cells)
        table.add_section()
    return table


def _row_name(sweep: str, setting: object) -> str:
    shown = f"{setting:g}" if isinstance(setting, float) else str(setting)
    return f"{sweep} {shown}" if "=" in shown else f"{sweep}={shown}"


def _mean_and_spread(values: pd.Series) -> str:
    """Mean and standard deviation; where a metric is undefined in some runs, of how many it is the mean.

    >>> _mean_and_spread(pd.Series([0.5, float("nan"), 0.7])), _mean_and_spread(pd.Series([0.5, 0.5]))
    ('0.600±0.141 (2 of 3)', '0.500±0.000')
    """
    known = values.dropna()
    if known.empty:
        return "undefined"
    spread = known.std()
    of = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return f"{known.mean():.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}") + of


def means(results: pd.DataFrame) -> pd.DataFrame:
    """One row per setting: `n` runs, and for each metric its mean, standard deviation and in how many it is defined."""
    logged = [name for name in results.columns if "/" in name]
    rows = []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        row: dict[str, object] = {SWEEP: sweep, SETTING: setting, "n": len(runs)}
        for name in logged:
            row |= {f"{name} mean": runs[name].mean(), f"{name} std": runs[name].std(), f"{name} n": runs[name].count()}
        rows.append(row)
    return pd.DataFrame(rows)
