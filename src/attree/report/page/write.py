"""Write the page: one HTML file that opens anywhere, from disk and without a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from attree.attention import Attention
from attree.data import GroundTruth
from attree.evaluation import Evaluation
from attree.io.files import write_text
from attree.report.page.content import MAX_EDGES, MAX_TARGETS, Curves, page_content
from attree.report.page.encode import safe_json

# Nothing is loaded from anywhere, and no script runs but the explorer itself: the policy names it by its checksum. A
# live page may ask the server that it came from.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
script-src 'sha256-{checksum}'; connect-src {connect}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>body {{ margin: 0; }}
{style}</style>
</head>
<body>
<div id="attree"><noscript>This page needs JavaScript.</noscript></div>
<script type="application/json" id="attree-data">{content}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def write_page(
    path: str | Path,
    evaluation: Evaluation,
    *,
    title: str | None = None,
    attention: Attention | None = None,
    predictions: Tensor | None = None,
    true_classes: Tensor | None = None,
    class_names: Sequence[str] | None = None,
    node_names: Sequence[str] | None = None,
    truth: GroundTruth | None = None,
    curves: Curves | None = None,
    summary: Mapping[str, str] | None = None,
    max_targets: int = MAX_TARGETS,
    max_edges: int = MAX_EDGES,
) -> Path:
    """Write one self-contained HTML file: a summary, training curves, and an explorer of every target's explanation.

    It is written whole or not at all. Names are shown as the text they are, whatever they hold. What is not given is
    taken from the evaluation, which knows predictions, true classes, names, attention and ground truth.

    Args:
        path: Where to write.
        evaluation: The result to look at. Where its reductions hold class probabilities, the page says which class is
            predicted after a reduction; without them, whether it is another.
        title: Heading of the page; by default the dataset and the network.
        attention: What the model attended to; with it the page draws computation trees of nodes.
        predictions: Class probabilities before any reduction, a row each of `evaluation.targets`, [T, classes].
        true_classes: The true class of each of `evaluation.targets`, [T].
        class_names: What classes are called; by default their numbers.
        node_names: What nodes of the graph are called; by default their ids.
        truth: True edges of the targets that have some.
        curves: Logged scalars by name, as (step, value); those that end in the same word share a panel.
        summary: Facts to print at the top, such as the dataset and the model.
        max_targets: Most targets on the page; the most telling are taken (right, with true edges, small, confident),
            which the page also begins with, and it says how many there were.
        max_edges: Most edges of a target; of more, the true and the highest-scored ones are kept, and the page says
            how many are left out.

    Returns:
        The path.
    """
    content = page_content(
        evaluation,
        title=title,
        attention=attention,
        predictions=predictions,
        true_classes=true_classes,
        class_names=class_names,
        node_names=node_names,
        truth=truth,
        curves=curves,
        summary=summary,
        max_targets=max_targets,
        max_edges=max_edges,
    )
    return write_text(Path(path), page_html(content))


def page_html(content: dict[str, Any]) -> str:
    """The page as text, of what `page_content` gathered."""
    script = asset("explorer.js")
    return PAGE.format(
        title=escape(content["title"]),
        style=asset("explorer.css"),
        content=safe_json(content),
        script=script,
        connect="'self'" if content.get("serves") else "'none'",
        checksum=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def asset(name: str) -> str:
    """The text of a file that the page is made of."""
    return files("attree.report.page").joinpath("static", name).read_text(encoding="utf-8")
