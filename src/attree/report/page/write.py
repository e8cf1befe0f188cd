"""Write the page: one self-contained HTML file that opens from disk and needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from attree.attention import Attention
from attree.data import GroundTruth
from attree.evaluation import Evaluation
from attree.io.files import json_ready, write_text
from attree.report.page.content import MAX_EDGES, MAX_TARGETS, Curves, page_content

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
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

    If the evaluation has its model, and the model is a stack of GATConv, GATv2Conv, GCNConv or SAGEConv, the file holds
    its weights: readers take several edges out, and the page computes the prediction. The page says if it cannot.

    The file is written whole or not at all. Names are shown literally. Arguments that are not given are taken from the
    evaluation, which has predictions, true classes, names, attention and ground truth if they are known.

    Args:
        path: Where to write.
        evaluation: The evaluation to show. If its reductions have class probabilities, the page says which class is
            predicted after a reduction; otherwise it says whether the class changes.
        title: Heading of the page; by default the dataset and the network.
        attention: The captured attention. With it, the page draws computation trees of nodes.
        predictions: Class probabilities before any reduction, one row per target, [T, classes].
        true_classes: True class of each target, [T].
        class_names: Names of the classes; by default their numbers.
        node_names: Names of the nodes; by default their ids.
        truth: Ground truth, if there is one.
        curves: Logged scalars by name, as (step, value). Scalars that end in the same word share a panel.
        summary: Facts to print at the top, such as the dataset and the model.
        max_targets: Most targets on the page. It keeps the most instructive ones (correct, with true edges, small,
            confident), shows them first, and says how many there were.
        max_edges: Most edges of a target. The page keeps the true and the highest-scored edges, and says how many are
            left out.

    Returns:
        The path of the file.
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
        has_network=True,
    )
    return write_text(Path(path), page_html(content))


def page_html(content: dict[str, Any]) -> str:
    """Return the page as HTML, from the content that `page_content` returns."""
    script = asset("explorer.js")
    return PAGE.format(
        title=escape(content["title"]),
        style=asset("explorer.css"),
        content=safe_json(content),
        script=script,
        policy=content_policy(script, "'self'" if content.get("serves") else "'none'"),
    )


def content_policy(script: str, connect: str = "'none'") -> str:
    """Return the security policy of a page: no script but this one, by its checksum, and nothing from elsewhere.

    Args:
        script: The script of the page.
        connect: What the page may query; a live page queries the server that it came from.
    """
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{checksum}'; "
        f"connect-src {connect}"
    )


def asset(name: str) -> str:
    """Return the text of a static file of the page."""
    return files("attree.report.page").joinpath("static", name).read_text(encoding="utf-8")


def safe_json(content: Any) -> str:
    """Return JSON that is safe inside a script element: characters that could end the element are escaped.

    >>> print(safe_json({"name": "</script>", "undefined": float("nan")}))
    {"name":"\\u003c/script\\u003e","undefined":null}
    """
    text = json.dumps(json_ready(content), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
