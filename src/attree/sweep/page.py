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

from attree.report.style import count
from attree.report.sweep_figure import SETTING
from attree.sweep.frontier import FRONT, ParetoFront, setting_text
from attree.sweep.plan import RUN, SEED, SWEEP

STYLE = """
:root { color-scheme: light dark; --line: #d9d9d9; --muted: #666; --back: #fff; --ink: #222; --mark: #eaf3fb; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --muted: #aaa; --back: #16181c; --ink: #e8e8e8; --mark: #1d2c3a; }
  img { background: #fff; border-radius: 4px; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--back);
  white-space: normal; min-width: 8.5rem; overflow-wrap: anywhere; }
tr.front td:first-child { background: var(--mark); }
th { white-space: normal; overflow-wrap: anywhere; min-width: 5.5rem; vertical-align: bottom; }
tr.front { background: var(--mark); }
img { max-width: 100%; height: auto; }
p.note { color: var(--muted); }
"""

TITLES = {
    "results": "Metrics by setting",
    "pareto": "Explanation quality against accuracy",
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
    parts = [f"<h1>{escape(name)}</h1>", f'<p class="note">{count(runs, "run")}, {count(seeds, "seed")}</p>']
    if frontier is not None:
        parts += ["<h2>Best trade-offs</h2>", _frontier(frontier, own)]
    for block, objectives in importance.items():
        parts += [f"<h2>What matters: {escape(block)}</h2>", _importance(objectives)]
    for figure in figures:
        title = TITLES.get(figure.stem, figure.stem.replace("_", " ").capitalize())
        parts += [f"<h2>{escape(title)}</h2>", _image(figure, title)]
    parts += ["<h2>All settings</h2>", _settings(results, metrics, frontier, own)]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(name)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _frontier(frontier: ParetoFront, own: Path) -> str:
    heads = ["setting", *(f"{name} ({direction})" for name, direction in frontier.objectives.items()), "config"]
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
    return _table(["parameter", *objectives], rows, words)


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
    return _table(["setting", *metrics, "runs, by seed"], rows, "Marked: the best trade-offs.", marked)


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
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    lines = []
    for place, row in enumerate(rows):
        kind = ' class="front"' if marked is not None and marked[place] else ""
        lines.append(f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>")
    body = "\n".join(lines)
    return (
        f'<p class="note">{escape(caption)}</p>\n'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>"
    )


def _number(mean: float, spread: float = math.nan) -> str:
    if math.isnan(mean):
        return "undefined"
    return f"{mean:.3f}" + ("" if math.isnan(spread) else f"±{spread:.3f}")
