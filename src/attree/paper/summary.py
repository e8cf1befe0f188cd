"""One page that leads to all reports."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from attree.io.files import write_text
from attree.paper.render import STYLE
from attree.paper.sections import Report


def write_summary(reports: Sequence[Report], folder: Path) -> Path:
    """Write `index.html` with a line for each report; returns its path."""
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
