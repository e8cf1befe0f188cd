"""The page of a sweep: one HTML file with charts, tables and figures.

It opens with charts of the runs (quality against accuracy and against any setting, coloured by any setting) and shows
the best settings, the importance of parameters, every setting with links to its runs, and all figures.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from attree.attribution import method_label
from attree.evaluation.metric_names import MetricName
from attree.report.plain_page import PagePart, inline, plain_page, plain_table
from attree.report.style import count, method_looks
from attree.report.sweep_figures import SETTING, metric_title, short_name
from attree.sweep.plan import RUN, SEED, SWEEP, value_text
from attree.sweep.results import FRONT, ParetoFront, parameter_columns, setting_text
from attree.sweep.tables import IMPORTANCE, OVER_SEEDS, about_front, mean_and_spread, number_text, objective_cells

TITLES = {
    "results": "Metrics by setting",
    "pareto": "Explanation quality against accuracy",
    "over_uniform": "What attention adds to uniform attention",
    "curves": "One setting at each value of the other",
    "heat_map": "Two settings together",
    "frontier": "All settings, and the best of them",
}
"""Headings of the figures, by the names of their files."""


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
        cells = objective_cells(row, frontier)
        rows.append((name, *cells, f'<a href="{config}">{config}</a>' if (folder / config).is_file() else ""))
    return _html_table(heads, rows, f"{about_front(frontier)} {OVER_SEEDS}")


def _importance_html(objectives: Mapping[str, Mapping[str, float]]) -> str:
    first = next(iter(objectives.values()))
    rows = [(escape(key), *(number_text(shares.get(key, math.nan)) for shares in objectives.values())) for key in first]
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
