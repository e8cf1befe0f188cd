"""An evaluation as a short table, a full table, printed text, and HTML for notebooks.

The columns are the true edges, if they are known, and what happens when an edge is deleted or its weight is set to 0.
Terminal, notebook, TensorBoard and page show the same numbers, those of the leading statistic (`names.WITHIN`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attree.evaluation.metric_names import OF_CLASSES, TRUTH, WITHIN, MetricName, number_and_interval, truth_note
from attree.metrics.functional.intervals import UNKNOWN, Interval
from attree.subject.target_roots import Level

if TYPE_CHECKING:
    import pandas as pd

    from attree.evaluation.result import Evaluation


HEADERS = {
    "truth": "true edges",
    "removal": "edge deleted",
    "weight": "weight set to 0",
    "coefficient": "score set to 0",
}
"""Names of the columns, by the group of their metric; a protocol that is not listed has its own name."""

BLOCKS = 5
"""Number of characters of a full bar."""


class TableCell(NamedTuple):
    """One number of the table.

    Attributes:
        value: The number; NaN if it is undefined, None if it was not measured.
        text: The number with half the width of its interval.
        is_best: Whether no method has a larger number in this column.
    """

    value: float | None
    text: str
    is_best: bool

    @property
    def bar(self) -> str:
        """The number as a bar, full at 1, and empty at 0 and below.

        >>> TableCell(0.61, "", False).bar
        '\N{FULL BLOCK}\N{FULL BLOCK}\N{FULL BLOCK}  '
        """
        size = 0 if self.value is None or math.isnan(self.value) else round(BLOCKS * min(1.0, max(0.0, self.value)))
        return ("\N{FULL BLOCK}" * size).ljust(BLOCKS)


class ShortTable(NamedTuple):
    """The short table.

    Attributes:
        headers: Names of the columns.
        rows: The cells of each method, by its name in tables.
    """

    headers: list[str]
    rows: dict[str, list[TableCell]]

    @property
    def note(self) -> str:
        """What the numbers are."""
        truth = HEADERS["truth"]
        meanings = [EFFECTS_NOTE] if set(self.headers) - {truth} else []
        return "; ".join([*meanings, *([f"{truth}: AUROC"] if truth in self.headers else [])])

    @property
    def lines(self) -> list[str]:
        """The table as lines of text."""
        first = max([len("method"), *map(len, self.rows)])
        widths = [
            max(len(header), *(BLOCKS + 1 + len(cells[place].text) for cells in self.rows.values()))
            for place, header in enumerate(self.headers)
        ]
        head = "  ".join(["method".ljust(first), *map(str.ljust, self.headers, widths)])
        body = [
            "  ".join(
                [label.ljust(first), *(f"{cell.bar} {cell.text}".ljust(w) for cell, w in zip(row, widths, strict=True))]
            )
            for label, row in self.rows.items()
        ]
        return [line.rstrip() for line in [head, *body]]


def short_table(
    metrics: Mapping[str, float], labels: Mapping[str, str], intervals: Mapping[str, Interval] | None = None
) -> ShortTable:
    """Return the short table of metrics.

    Args:
        metrics: Metrics by logged name.
        labels: Names of the methods in tables.
        intervals: Intervals by logged name; None leaves them out.

    >>> metrics = {"explain/gatt/removal/within_pearson": 0.4, "explain/gatt/truth_auroc": 0.99}
    >>> print(*short_table(metrics, {"gatt": "GAtt"}).lines, sep="\\n")  # doctest: +NORMALIZE_WHITESPACE
    method  true edges  edge deleted
    GAtt    █████ 0.99  ██    0.40
    """
    interval_by_name = {} if intervals is None else intervals
    parsed = [metric for name in metrics if (metric := MetricName.parse(name)) is not None]
    leading = [metric for metric in parsed if metric.statistic in (TRUTH, WITHIN)]
    groups = list(dict.fromkeys(metric.group for metric in leading))
    groups.sort(key=lambda group: list(HEADERS).index(group) if group in HEADERS else len(HEADERS))
    by_place = {(metric.method, metric.group): metrics[str(metric)] for metric in leading}
    names = {(metric.method, metric.group): str(metric) for metric in leading}
    best = {
        group: max(
            (value for (_, other), value in by_place.items() if other == group and not math.isnan(value)),
            default=math.nan,
        )
        for group in groups
    }
    rows: dict[str, list[TableCell]] = {}
    for method in dict.fromkeys(metric.method for metric in leading):
        cells = []
        for group in groups:
            value = by_place.get((method, group))
            if value is None:
                cells.append(TableCell(None, "", False))
            else:
                text = number_and_interval(value, interval_by_name.get(names[method, group], UNKNOWN), digits=2)
                cells.append(TableCell(value, text, value == best[group]))
        rows[labels.get(method, method)] = cells
    return ShortTable([HEADERS.get(group, group) for group in groups], rows)


NOUNS: dict[Level, str] = {"node": "node", "edge": "link", "graph": "graph"}
"""What targets of each level are called in texts."""


TableKind = Literal["short", "full"]
"""Which table is printed: a few numbers of each method, or every statistic."""

EFFECTS_NOTE = "Mean over targets of the correlation of scores with effects"
"""What the numbers of the short table are, but for those of true edges."""

HALF_WIDTH_NOTE = "\N{PLUS-MINUS SIGN}: half of the 95 % interval (targets drawn at random)"
"""What the second number of a cell is."""

FULL_HINT = 'All statistics and findings: print(result.table("full"))'
"""How to see everything else."""


def half_width_notes(intervals: Mapping[str, Interval] | None) -> list[str]:
    """Return the line that explains the second number of a cell; none if no interval is defined, so no cell has one."""
    return [HALF_WIDTH_NOTE] if any(math.isfinite(low) for low, _ in (intervals or {}).values()) else []


def metrics_frame(
    metrics: Mapping[str, float], labels: Mapping[str, str], intervals: Mapping[str, Interval] | None = None
) -> pd.DataFrame:
    """Return a table with one row per statistic and protocol, and one column per method.

    Args:
        metrics: Metrics by logged name.
        labels: Names of the methods in tables.
        intervals: Intervals by logged name. Their ends are two more columns per method.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, metric, label in _known(metrics, labels):
        row = rows.setdefault((metric.group, metric.statistic), {})
        row[label] = metrics[name]
        if intervals is not None:
            row[f"{label} low"], row[f"{label} high"] = intervals.get(name, UNKNOWN)
    return _frame(rows)


def as_text(evaluation: Evaluation, table: TableKind = "short") -> str:
    """Return the printed form: headline, table, what its columns mean, findings.

    Args:
        evaluation: The evaluation.
        table: `short` prints one row per method and the findings that limit the headline; `full` prints every statistic
            and every finding.
    """
    verdict, pairs = evaluation.verdict, len(evaluation.pairs)
    about = f"{measured_targets(evaluation)}, {_several(pairs, 'pair')}"
    head = [*wrapped(verdict.headline), ""] if verdict.headline else []
    if table == "short":
        short = short_table(evaluation.metrics, evaluation.method_labels, evaluation.intervals)
        body = short.lines if short.rows else []
        notes = [short.note] if short.rows else []
        findings, more = verdict.cautions, [FULL_HINT]
    else:
        counts = {name: evaluation.num_changed(name) for name in evaluation.reductions}
        # In a regression no class can change.
        if any(counts.values()) or (counts and evaluation.predictions is not None):
            about += "; changed predictions: " + ", ".join(f"{count:,} ({name})" for name, count in counts.items())
        body = [_cells(evaluation).to_string(na_rep="undefined")]
        notes = [
            f"{name}: {evaluation.meanings[name]}" for name in evaluation.reductions if name in evaluation.meanings
        ]
        findings, more = verdict.sentences, []
    notes += half_width_notes(evaluation.intervals)
    if evaluation.num_true_targets is not None:
        notes.append(truth_note(evaluation.num_true_targets))
    bullets = [line for sentence in findings for line in wrapped(f"- {sentence}", indent="  ")]
    tail = ["", *bullets, *more] if bullets else more
    return "\n".join([*head, about, *body, *notes, *tail])


def measured_targets(evaluation: Evaluation) -> str:
    """Return how many targets were measured, and out of how many: "100 of 2,708 nodes", "all 183 nodes"."""
    noun, count, population = target_noun(evaluation), evaluation.num_targets, evaluation.population
    if population is None or count > population:
        return _several(count, noun)
    return f"all {_several(count, noun)}" if count == population > 1 else f"{count:,} of {_several(population, noun)}"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text, broken between words so that they fit 80 columns.

    Args:
        text: The text.
        indent: Put before every line that continues another.
    """
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    paragraphs = text.splitlines()
    return [line for paragraph in paragraphs for line in wrap(paragraph, 80, subsequent_indent=indent, **options)]


def target_noun(evaluation: Evaluation) -> str:
    """Return what one target of an evaluation is: node, link or graph."""
    return NOUNS["graph" if evaluation.pairs.num_layers is None else evaluation.pairs.level]


def as_html(evaluation: Evaluation) -> str:
    """Return headline, short table and findings as HTML, for notebooks; all statistics are folded away."""
    verdict = evaluation.verdict
    short = short_table(evaluation.metrics, evaluation.method_labels, evaluation.intervals)
    head = "".join(f"<th>{escape(header)}</th>" for header in ("method", *short.headers))
    rows = "".join(
        f"<tr><th>{escape(label)}</th>"
        + "".join(f"<td>{'<b>' if c.is_best else ''}{escape(c.text)}{'</b>' if c.is_best else ''}</td>" for c in cells)
        + "</tr>"
        for label, cells in short.rows.items()
    )
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in verdict.sentences)
    every: str = _cells(evaluation).to_html(na_rep="undefined")
    return (
        f"<p><b>{escape(verdict.headline).replace(chr(10), '<br>')}</b></p>"
        + (f"<table><tr>{head}</tr>{rows}</table>" if rows else "")
        + (f"<ul>{items}</ul>" if items else "")
        + f"<details><summary>all statistics</summary>{every}</details>"
    )


def _cells(evaluation: Evaluation) -> pd.DataFrame:
    """Return the table of numbers as text, each with half the width of its interval."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    names = evaluation.statistic_labels
    for name, metric, label in _known(evaluation.metrics, evaluation.method_labels):
        if evaluation.predicts_numbers and metric.statistic in OF_CLASSES:
            continue
        row = rows.setdefault((metric.group, names.get(metric.statistic, metric.statistic)), {})
        row[label] = number_and_interval(evaluation.metrics[name], evaluation.intervals.get(name, UNKNOWN))
    return _frame(rows)


def _known(metrics: Mapping[str, float], labels: Mapping[str, str]) -> list[tuple[str, MetricName, str]]:
    """Return the logged name of each metric of a method, its parsed name, and the name of the method in tables."""
    parsed = [(name, MetricName.parse(name)) for name in metrics]
    return [(name, metric, labels.get(metric.method, metric.method)) for name, metric in parsed if metric is not None]


def _frame(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows as a data frame, grouped by protocol."""
    import pandas as pd

    groups = list(dict.fromkeys(group for group, _ in rows))
    ordered = sorted(rows, key=lambda row: groups.index(row[0]))
    index = pd.MultiIndex.from_tuples(ordered, names=["protocol", "statistic"])
    return pd.DataFrame([rows[row] for row in ordered], index=index)


def _several(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
