"""Write reports: Markdown, CSV, pictures, and an HTML page coloured by the difference from the paper."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd

from attree.attribution import method_label
from attree.io.files import replacing, write_text
from attree.paper.item import CLOSE, FAR, NEAR, Picture, Report, Section, Table

SLIP = "†"
FEW_CHANGED = 30
STATISTICS = {
    "pc_pearson": "dPC Pearson",
    "pc_kendall": "dPC Kendall",
    "pc_spearman": "dPC Spearman",
    "ne_pearson": "dNE Pearson",
    "ne_kendall": "dNE Kendall",
    "ne_spearman": "dNE Spearman",
    "p_auroc": "dP AUROC",
    "faithfulness": "mean of seven",
    "truth_auroc": "AUROC",
}
LEGEND = (
    "Each cell: ours (mean over seeds, ± standard deviation), then in brackets the paper's number and the difference. "
    f"{SLIP}: a known slip in print, the difference is from what was meant. n: changed predictions where fewer than "
    f"{FEW_CHANGED} a network."
)
COLORS = ((CLOSE, "#cdebc8"), (NEAR, "#e8f5d8"), (FAR, "#fdeec4"), (math.inf, "#f8cfc4"))
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 115rem; padding: 0 1rem; }
h1, h2, p { max-width: 66rem; }
code { background: #f1f1f1; padding: 0 .2em; }
table { border-collapse: collapse; font-size: 13px; margin: .6rem 0; }
th, td { border: 1px solid #ddd; padding: .25rem .5rem; text-align: right; white-space: nowrap; }
th { background: #f4f4f4; text-align: left; font-weight: 600; }
td small { color: #666; }
figure { margin: 1rem 0; } img { max-width: 100%; }
.wide { overflow-x: auto; } .note { color: #555; font-size: 13px; }
.key span { padding: .1rem .5rem; margin-right: .4rem; border: 1px solid #ddd; font-size: 12px; }
"""


def write_report(report: Report, folder: Path) -> Path:
    """Write a report's files to `folder/<name>`, and return the path of its HTML page."""
    own = folder / report.name
    for section in report.sections:
        if isinstance(section, Table):
            write_text(own / f"{section.name}.csv", section.rows.to_csv(index=False, float_format="%.6g"))
        else:
            with replacing(own / f"{section.name}.png") as temporary:
                section.figure.savefig(temporary, format="png")
    write_text(own / "report.md", markdown(report))
    return write_text(own / "index.html", _page(report))


def markdown(report: Report) -> str:
    """Return a report as Markdown."""
    parts = [f"# {report.title}", *(f"{note}" for note in report.notes)]
    for section in report.sections:
        parts.append(f"## {section.title}")
        if isinstance(section, Picture):
            parts.append(f"![{section.title}]({section.name}.png)")
        elif section.csv_only:
            parts.append(f"{len(section.rows):,} rows in [{section.name}.csv]({section.name}.csv).")
        else:
            parts.append(_markdown_table(section))
        parts += list(section.notes)
    if any(_compares(section) for section in report.sections):
        parts.append(LEGEND)
    return "\n\n".join(parts) + "\n"


def _compares(section: Section) -> bool:
    return isinstance(section, Table) and "paper" in section.rows and bool(section.rows["paper"].notna().any())


def label(column: str, value: object) -> str:
    """Return the heading for a value of a column."""
    if column == "method":
        return method_label(str(value))
    if column == "statistic":
        return STATISTICS.get(str(value), str(value))
    units = {"layers": "layers", "heads": "heads" if value != 1 else "head"}
    return f"{value} {units[column]}" if column in units else str(value)


def text(row: pd.Series, digits: int) -> str:
    """Return the text of a cell."""
    ours = row["ours"]
    if isinstance(ours, str):
        return ours
    parts = ["undefined" if not _finite(ours) else f"{ours:.{digits}f}"]
    if _finite(row.get("spread")):
        parts.append(f"± {row['spread']:.{digits}f}")
    if _finite(row.get("paper")):
        mark = SLIP if isinstance(row.get("slip"), str) else ""
        difference = f", {row['difference']:+.{digits}f}" if _finite(row.get("difference")) else ""
        parts.append(f"({row['paper']:.{digits}f}{mark}{difference})")
    if row.get("statistic") == "p_auroc" and _finite(row.get("changed")) and row["changed"] < FEW_CHANGED:
        parts.append(f"n={row['changed']:.0f}")
    return " ".join(parts)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _grid(
    table: Table,
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]], dict[tuple[object, ...], pd.Series]]:
    """Return the row headings and column headings, in order of appearance, and the row of numbers of each cell."""
    index, columns = list(table.index), list(table.columns)
    heads: dict[tuple[object, ...], None] = {}
    sides: dict[tuple[object, ...], None] = {}
    cells: dict[tuple[object, ...], pd.Series] = {}
    for _, row in table.rows.iterrows():
        side, head = tuple(row[name] for name in index), tuple(row[name] for name in columns)
        sides[side], heads[head] = None, None
        cells[(*side, *head)] = row
    return list(sides), list(heads), cells


def _markdown_table(table: Table) -> str:
    sides, heads, cells = _grid(table)
    headings = [" ".join(label(name, one) for name, one in zip(table.columns, head, strict=True)) for head in heads]
    lines = [
        "| " + " | ".join([*table.index, *headings]) + " |",
        "|" + "---|" * (len(table.index) + len(heads)),
    ]
    for side in sides:
        names = [label(name, one) for name, one in zip(table.index, side, strict=True)]
        values = [text(cells[(*side, *head)], table.digits) if (*side, *head) in cells else "" for head in heads]
        lines.append("| " + " | ".join([*names, *values]) + " |")
    return "\n".join(lines)


def _page(report: Report) -> str:
    parts = [f"<h1>{_inline(report.title)}</h1>", *(f"<p>{_inline(note)}</p>" for note in report.notes)]
    if any(_compares(section) for section in report.sections):
        bounds = ["within 0.02", "within 0.05", "within 0.1", "beyond"]
        spans = [
            f'<span style="background:{color}">{words}</span>' for words, (_, color) in zip(bounds, COLORS, strict=True)
        ]
        parts.append(f'<p class="key">Difference from the paper: {"".join(spans)}</p>')
        parts.append(f'<p class="note">{_inline(LEGEND)}</p>')
    for section in report.sections:
        parts.append(f"<h2>{_inline(section.title)}</h2>")
        if isinstance(section, Picture):
            parts.append(f'<figure><img src="{section.name}.png" alt="{escape(section.title)}"></figure>')
        else:
            if not section.csv_only:
                parts.append(f'<div class="wide">{_html_table(section)}</div>')
            parts.append(f'<p class="note"><a href="{section.name}.csv">{section.name}.csv</a></p>')
        parts += [f'<p class="note">{_inline(note)}</p>' for note in section.notes]
    body = "\n".join(parts)
    title = escape(report.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _inline(words: str) -> str:
    """Return a sentence as HTML, with code in backticks."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(words))


def _html_table(table: Table) -> str:
    sides, heads, cells = _grid(table)
    headings = [" ".join(label(name, one) for name, one in zip(table.columns, head, strict=True)) for head in heads]
    lines = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in [*table.index, *headings]) + "</tr>"]
    for side in sides:
        line = "".join(f"<th>{escape(label(name, one))}</th>" for name, one in zip(table.index, side, strict=True))
        for head in heads:
            row = cells.get((*side, *head))
            line += "<td></td>" if row is None else _html_cell(row, table.digits)
        lines.append(f"<tr>{line}</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _html_cell(row: pd.Series, digits: int) -> str:
    difference = row.get("difference")
    color = ""
    if _finite(difference):
        assert difference is not None
        color = f' style="background:{next(color for bound, color in COLORS if abs(difference) <= bound)}"'
    hint = "; ".join(str(row[name]) for name in ("slip", "reason") if isinstance(row.get(name), str) and row[name])
    title = f' title="{escape(hint)}"' if hint else ""
    return f"<td{color}{title}>{escape(text(row, digits))}</td>"


def write_summary(reports: Sequence[Report], folder: Path) -> Path:
    """Write `index.html` with a line for each report, and return its path."""
    lines = []
    for report in reports:
        notes = " ".join(note for section in report.sections for note in section.notes[:1])
        left_out = " ".join(report.notes[1:])
        link = f'<a href="{report.name}/index.html">{escape(report.title)}</a>'
        lines.append(f"<li>{link}<br><span class='note'>{escape(notes)} {escape(left_out)}</span></li>")
    body = f"<h1>The paper's tables and figures</h1><ul>{''.join(lines)}</ul>"
    return write_text(
        folder / "index.html",
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>attree paper</title>'
        f"<style>{STYLE}</style></head><body>{body}</body></html>\n",
    )
