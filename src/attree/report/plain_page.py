"""Plain pages for reports and sweeps: one HTML file with a table of contents, tables and figures.

The pages work on narrow screens, in dark mode and with a screen reader. Wide tables scroll and keep their first column
visible; figures keep a white background. The page of a sweep also has charts of its runs to choose from; others have no
scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from attree.report.page.write import asset, content_policy, safe_json

STYLE = """
:root { color-scheme: light dark; --line: #d9d9d9; --muted: #5a5f66; --back: #fff; --raised: #f4f5f7; --ink: #222;
  --link: #00588a; --mark: #eaf3fb; --close: #cdebc8; --near: #e8f5d8; --far: #fdeec4; --beyond: #f8cfc4; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --muted: #a9b0ba; --back: #16181c; --raised: #20242a; --ink: #e8e8e8; --link: #7cc4f0;
    --mark: #1d2c3a; --close: #1d4a2a; --near: #2f451f; --far: #534312; --beyond: #5c2a1f; }
  img { background: #fff; border-radius: 4px; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 80rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; scroll-margin-top: 1rem; }
h1, h2, p, li { overflow-wrap: anywhere; }
p, nav, li { max-width: 66rem; }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
nav ol { columns: 22rem; padding-left: 1.4rem; margin: .4rem 0; }
code { background: var(--raised); padding: 0 .2em; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.note, small { color: var(--muted); } .note { font-size: 13px; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; white-space: nowrap; }
thead th { font-weight: 600; vertical-align: bottom; white-space: normal; overflow-wrap: break-word; min-width: 5.5rem;
  background: var(--raised); }
tbody th { font-weight: 400; text-align: left; }
tr > :first-child { text-align: left; position: sticky; left: 0; z-index: 1; background: var(--back); }
tbody tr > :first-child { white-space: normal; min-width: min(15rem, 40vw); max-width: 50vw; overflow-wrap: anywhere; }
thead tr > :first-child { background: var(--raised); }
tr.front > * { background: var(--mark); }
.close { background: var(--close); } .near { background: var(--near); } .far { background: var(--far); }
.beyond { background: var(--beyond); }
.key span { padding: .1rem .5rem; margin-right: .4rem; border: 1px solid var(--line); font-size: 12px; }
@media print { nav { display: none; } .scroll { overflow: visible; } }
"""

FEWEST_CONTENTS = 3
"""Fewest parts for which a page has a table of contents."""


@dataclass(frozen=True)
class PagePart:
    """A part of a page.

    Attributes:
        heading: Heading, as text; text between backticks becomes code.
        body: Content, as HTML.
    """

    heading: str
    body: str


def plain_page(title: str, intro: str, parts: Sequence[PagePart], runs: Mapping[str, Any] | None = None) -> str:
    """Return a page as HTML.

    Args:
        title: Heading and title, as text; text between backticks becomes code.
        intro: Content below the heading, as HTML.
        parts: The parts, which the table of contents lists.
        runs: Runs to compare in charts above the parts, as plain values: `runs` with name, settings, metrics and page,
            and `methods` with name, label and color.
    """
    sections = [
        f'<section aria-labelledby="part-{place}">\n'
        f'<h2 id="part-{place}">{inline(part.heading)}</h2>\n{part.body}\n</section>'
        for place, part in enumerate(parts, start=1)
    ]
    links = [
        f'<li><a href="#part-{place}">{inline(part.heading)}</a></li>' for place, part in enumerate(parts, start=1)
    ]
    contents = f'<nav aria-label="Contents"><ol>{"".join(links)}</ol></nav>' if len(parts) >= FEWEST_CONTENTS else ""
    charts, script, style, policy = "", "", STYLE, ""
    if runs is not None:
        code = asset("tab.js")
        charts = '<div id="attree"></div>'
        style = f"{STYLE}{asset('explorer.css')}"
        policy = f'<meta http-equiv="Content-Security-Policy" content="{content_policy(code)}">\n'
        script = (
            f'<script type="application/json" id="attree-runs">{safe_json(runs)}</script>\n'
            f'<script type="module">{code}</script>\n'
        )
    body = "\n".join([f"<h1>{inline(title)}</h1>", intro, charts, contents, *sections])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{policy}<title>{escape(title.replace('`', ''))}</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n{script}</body>\n</html>\n"
    )


def inline(words: str) -> str:
    """Return text as HTML; text between backticks becomes code.

    >>> inline("a < b by `weight`")
    'a &lt; b by <code>weight</code>'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(words))


def plain_table(heads: Sequence[str], rows: Sequence[str], label: str) -> str:
    """Return a table as HTML, which scrolls if it is wider than the screen.

    Args:
        heads: Headings of the columns, as text.
        rows: Rows as HTML, each a `tr`.
        label: Label of the table for screen readers, as text.
    """
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in heads)
    body = "\n".join(rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )
