"""One page for a sweep: what is best, what matters, every setting with links to its runs, and the figures.

The page is a single file without scripts: figures are in it, and it opens in any browser, light or dark.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from attree.report.plain_page import PagePart, plain_page, plain_table
from attree.report.style import count
from attree.report.sweep_figure import SETTING, metric_title
from attree.sweep.frontier import FRONT, ParetoFront, setting_text
from attree.sweep.plan import RUN, SEED, SWEEP

TITLES = {
    "results": "Metrics by setting",
    "pareto": "Explanation quality against accuracy",
    "over_uniform": "What attention adds to uniform attention",
    "curves": "One setting at each value of the other",
    "heat_map": "Two settings together",
    "frontier": "All settings, and the best of them",
}
"""What the figures are headed with, by the names of their files."""


def sweep_page(
    name: str,
    results: pd.DataFrame,
    metrics: Sequence[str],
    frontier: ParetoFront | None,
    importance: Mapping[str, Mapping[str, Mapping[str, float]]],
    figures: Iterable[Path],
    own: Path,
) -> str:
    """The page of a sweep as HTML. All names are text of users', and are escaped.

    Args:
        name: What the sweep is called.
        results: One row per run, as `collect` makes it.
        metrics: Names of the metrics to show.
        frontier: The settings judged by the objectives.
        importance: By block, objective and parameter, how much the parameter matters.
        figures: The figures' files, as PNG.
        own: The sweep's folder, which links start from.
    """
    runs, seeds = results[RUN].nunique(), results[SEED].nunique()
    parts = []
    if frontier is not None:
        parts.append(PagePart("Best trade-offs", _frontier(frontier, own)))
    for block, objectives in importance.items():
        parts.append(PagePart(f"What matters: {block}", _importance(objectives)))
    for figure in figures:
        title = TITLES.get(figure.stem, figure.stem.replace("_", " ").capitalize())
        parts.append(PagePart(title, _image(figure, title)))
    parts.append(PagePart("All settings", _settings(results, metrics, frontier, own)))
    return plain_page(name, f'<p class="note">{count(runs, "run")}, {count(seeds, "seed")}</p>', parts)


def _frontier(frontier: ParetoFront, own: Path) -> str:
    heads = [
        "setting",
        *(f"{metric_title(name)} ({direction})" for name, direction in frontier.objectives.items()),
        "config",
    ]
    rows = []
    for place, (_, row) in enumerate(frontier.best.iterrows(), start=1):
        config = f"best/{place:02d}.yaml"
        cells = [_number(row[f"{name} mean"], row[f"{name} std"]) for name in frontier.objectives]
        named = escape(_called(row, frontier.parameters))
        rows.append((named, *cells, f'<a href="{config}">{config}</a>' if (own / config).is_file() else ""))
    words = (
        "No other setting is as good in every objective and better in one. Mean ± standard deviation over the seeds."
    )
    return _table(heads, rows, words)


def _importance(objectives: Mapping[str, Mapping[str, float]]) -> str:
    first = next(iter(objectives.values()))
    rows = [(escape(key), *(_number(own.get(key, math.nan)) for own in objectives.values())) for key in first]
    words = "Share of an objective's variance that a parameter explains (fANOVA)."
    return _table(["parameter", *map(metric_title, objectives)], rows, words)


def _settings(results: pd.DataFrame, metrics: Sequence[str], frontier: ParetoFront | None, own: Path) -> str:
    best: set[tuple[object, object]] = set()
    if frontier is not None:
        front = frontier.settings[frontier.settings[FRONT]]
        best = set(zip(front[SWEEP], front[SETTING], strict=True))
    named = [name for name in results.columns if "/" not in name and name not in (SWEEP, SETTING, SEED, RUN)]
    rows, marked = [], []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        cells = [_number(runs[metric].mean(), runs[metric].std()) for metric in metrics]
        links = [_link(own, str(run), int(seed)) for run, seed in zip(runs[RUN], runs[SEED], strict=True)]
        rows.append((escape(_called(runs.iloc[0], named)), *cells, " ".join(links)))
        marked.append((sweep, setting) in best)
    heads = ["setting", *map(metric_title, metrics), "runs, by seed"]
    return _table(heads, rows, "Mean ± standard deviation over the seeds. Marked: the best trade-offs.", marked)


def _called(row: pd.Series, parameters: Sequence[str]) -> str:
    """What a setting is called: its block, its number where it was searched for, and its values."""
    values = setting_text(row, parameters)
    number = f" {row[SETTING]}" if str(row[SETTING]).isdigit() and "=" in values and len(parameters) > 1 else ""
    return f"{row[SWEEP]}{number}: {values}"


def _link(own: Path, run: str, seed: int) -> str:
    """A link to a run's page of explanations, or else to its folder; none where the run is on another machine."""
    if not (own / run).is_dir():
        return str(seed)
    pages = [page for page in ("explain/page.html", "page.html") if (own / run / page).is_file()]
    target = f"{quote(run)}/{pages[0] if pages else ''}"
    return f'<a href="{escape(target)}" title="{escape(run)}">{seed}</a>'


def _image(figure: Path, title: str) -> str:
    drawn = figure.with_suffix(".svg")
    content = base64.b64encode(drawn.read_bytes()).decode()
    return (
        f'<p><img src="data:image/svg+xml;base64,{content}" alt="{escape(title)}: the numbers are in the tables"></p>'
    )


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str, marked: Sequence[bool] | None = None
) -> str:
    lines = []
    for place, (first, *rest) in enumerate(rows):
        kind = ' class="front"' if marked is not None and marked[place] else ""
        lines.append(f'<tr{kind}><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>')
    return f'<p class="note">{escape(caption)}</p>\n{plain_table(heads, lines, caption)}'


def _number(mean: float, spread: float = math.nan) -> str:
    if math.isnan(mean):
        return "undefined"
    return f"{mean:.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}")
