"""Case studies: figures of the neighbourhoods of targets, with edges coloured by the scores of each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm, Normalize, PowerNorm, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from attree.attention import Graph
from attree.attribution import method_label, subgraph_pairs, subject_pairs
from attree.attribution.node_scores import scores_of_nodes, walk_among
from attree.errors import expect, expect_int
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.metric_names import MetricName
from attree.report.drawn_targets import DrawnPart, left_out, order_targets, strength_of
from attree.report.graph_drawing import draw_edges, draw_nodes, sketch
from attree.report.score_figures import score_histogram
from attree.report.style import (
    AGAINST,
    BLUE,
    FOR,
    INK,
    MUTED,
    ORANGE,
    SCORE_COLORS,
    SIGNED_COLORS,
    SMALL_SIZE,
    count,
    grid_shape,
    method_looks,
    method_title,
    new_figure,
    panel_grid,
    picture_axes,
    plain_legend,
)
from attree.source.target_labels import one_line
from attree.subject import Subject
from attree.tensors.arrays import Floats

PANEL_INCHES = 3.4
SINGLE_PANEL_INCHES = 5.2
MOST_COLUMNS = 4
MOST_NAMED_NODES = 36
MOST_LETTERS = 10
LETTERS_OF_A_LINE = 6

TYPE_FILLS = ("#9ED1F0", "#F7DC8C", "#B5E0B8", "#E9B8D6", "#C9BDF2", "#D9D2BD", "#A9DEDB", "#C3CCD6")
"""Colours of node types, as on the page; all further types share the last."""

LEAST_INK, INK_SHARE = 20.0, 0.1
"""Limit on the sum of edge strengths in a panel: `LEAST_INK`, or `INK_SHARE` of its number of edges if that is more."""

MOST_CONTRAST = 12.0
"""Highest power of strengths. A higher one would make nearly equal scores look different."""


def case_study(
    graph: Graph,
    target: int | None,
    num_layers: int,
    scores: Mapping[str, Tensor],
    truth: Tensor | None = None,
    max_edges: int = 200,
    *,
    name: str = "",
    caption: str = "",
    node_names: Sequence[str] | None = None,
    edges: Tensor | None = None,
    roots: Sequence[int] = (),
    node_scores: Tensor | None = None,
) -> Figure:
    """Draw how different methods explain one target, as the paper's case study does.

    Every panel shows the same subgraph in the same layout: the nodes within `num_layers` hops of the target (against
    the direction of the edges) and all edges between them, self-loops included. Colour and width of an edge show the
    size of its score, from 0 to the largest of the panel: red edges speak for the prediction, green edges (negative
    scores) against it. The target is orange, and true edges have a blue halo. If nodes have types, the other nodes are
    coloured by type.

    A method that scores very many edges highly, as `random` does, would cover its panel with dark lines. In such a
    panel only the highest scores are dark, as its colour bar says.

    The neighbourhood of a hub can be too large to draw. Then the true edges and the edges with the largest scores are
    kept, each with a shortest path to the target, and the title says how many edges are not shown.

    Args:
        graph: The graph.
        target: The explained node; None to draw the whole graph.
        num_layers: Depth of the network.
        scores: One score per edge of `graph.edge_index`, [num_edges], of each method
            (`attree.attribution.Attribution.dense`).
        truth: The true edges as (source, destination), [2, m]; None if unknown.
        max_edges: Most edges to draw.
        name: Name of the target, for the title; by default the node, or the whole graph.
        caption: A line below the title, such as the prediction.
        node_names: Names of the nodes of `graph`; by default their ids.
        edges: Ids of the edges to draw; by default those of the neighbourhood, or of the whole graph.
        roots: Further nodes that are explained, such as both nodes of a pair; they are orange too.
        node_scores: A score for every node, [num_nodes], that paints it: the redder the larger, green if negative. A
            graph with several node types keeps the colours of its types.
    """
    is_node = target is None or 0 <= target < graph.num_nodes
    expect(is_node, "target", f"a node id in [0, {graph.num_nodes}), or None", target)
    expect(len(scores) > 0, "scores", "scores of at least one method", dict(scores))
    expect_int(max_edges, "max_edges", 1)
    if node_names is not None:
        number = graph.num_nodes
        expect(len(node_names) == number, "node_names", f"{number} names, one per node", len(node_names))
    for method, dense in scores.items():
        expect(dense.shape == (graph.num_edges,), f"scores[{method!r}]", f"of shape [{graph.num_edges}]", dense.shape)
    part = _neighbourhood(graph, target, num_layers, truth, edges)
    values = {method: dense.detach().cpu().double().numpy()[part.edges] for method, dense in scores.items()}
    drawn_edges = part.choose(np.stack([strength_of(edge_scores) for edge_scores in values.values()]), max_edges)
    drawn_part = part.only(drawn_edges)

    layout = sketch(drawn_part.source, drawn_part.destination, len(drawn_part.nodes))
    half_width, half_height = layout.half_size
    rows, columns = grid_shape(len(scores), MOST_COLUMNS)
    panel = PANEL_INCHES if columns > 1 else SINGLE_PANEL_INCHES
    height = panel * half_height / half_width + 0.75
    title = _title(part, drawn_part, num_layers, name) + (f"\n{caption}" if caption else "")
    figure = new_figure(max(panel * columns, 4.6), height * rows + 0.5 + 0.2 * title.count("\n"), title)
    truth_nodes = np.zeros(len(drawn_part.nodes), dtype=bool)
    truth_nodes[drawn_part.source[drawn_part.is_true]] = truth_nodes[drawn_part.destination[drawn_part.is_true]] = True
    named = len(drawn_part.nodes) <= MOST_NAMED_NODES
    texts = _node_texts(graph, drawn_part.nodes.tolist(), node_names)
    is_target = np.isin(drawn_part.nodes, [*roots] if target is None else [target, *roots])
    names = [text if named or is_root else "" for text, is_root in zip(texts, is_target, strict=True)]
    kinds = [] if graph.types is None else graph.types.type_of_nodes(torch.as_tensor(drawn_part.nodes)).tolist()
    fills = [TYPE_FILLS[min(kind, len(TYPE_FILLS) - 1)] for kind in kinds] or None
    if node_scores is not None:
        shape, number = tuple(node_scores.shape), graph.num_nodes
        expect(shape == (number,), "node_scores", f"of shape [{number}]", shape)
        painted = node_scores.detach().cpu().double().numpy()
        fills = fills or node_fills(painted[drawn_part.nodes], float(np.abs(painted).max()))
    looks = method_looks(scores)
    for axes, (method, edge_scores) in zip(panel_grid(figure, len(scores), MOST_COLUMNS), values.items(), strict=True):
        picture_axes(axes, "", half_width, half_height)
        method_title(axes, looks[method], method_label(method))
        strength = strength_of(edge_scores)[drawn_edges]
        power = contrast(strength)
        ink = strength**power
        draw_edges(axes, layout, ink, _edge_colors(ink, edge_scores[drawn_edges]), drawn_part.is_true)
        draw_nodes(axes, layout, is_target, truth_nodes, names, fills)
        _color_bar(figure, axes, edge_scores, power, alone=len(scores) == 1)
    types = (
        {graph.types.node_types[kind]: fill for kind, fill in zip(kinds, fills or [], strict=True)}
        if graph.types
        else {}
    )
    _legend(figure, int(is_target.sum()), bool(drawn_part.is_true.any()), types)
    return figure


def _neighbourhood(
    graph: Graph, target: int | None, num_layers: int, truth: Tensor | None, edges: Tensor | None
) -> DrawnPart:
    """Return the part of the graph to draw in a case study: the given edges, the neighbourhood, or all edges."""
    if edges is not None:
        edges = edges.sort().values
    elif target is None:
        edges = torch.arange(graph.num_edges, device=graph.device)
    else:
        edges = subgraph_pairs(graph, torch.tensor([target], device=graph.device), num_layers).edges
    ends = graph.edge_index[:, edges].tolist()
    true_pairs = set() if truth is None else set(zip(*truth.tolist(), strict=True))
    is_true = np.array([pair in true_pairs for pair in zip(*ends, strict=True)], dtype=bool)
    return DrawnPart.of(graph, edges.cpu().numpy(), is_true, target)


def contrast(strength: NDArray[np.float64]) -> float:
    """Return the power of strengths (between 0 and 1) that leaves few edges dark; 1 if they are few already.

    >>> contrast(np.array([1.0, 0.2, 0.0])), round(contrast(np.linspace(0, 1, 200)), 1)
    (1.0, 9.2)
    """
    most = max(LEAST_INK, INK_SHARE * len(strength))
    low, high = 1.0, MOST_CONTRAST
    if strength.sum() <= most:
        return low
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if (strength**middle).sum() > most else (low, middle)
    return high


def _node_texts(graph: Graph, nodes: list[int], names: Sequence[str] | None) -> list[str]:
    """Return the texts on nodes: names or ids. For a default name such as `paper 18`, only the number."""
    if graph.types is not None:
        ids = torch.tensor(nodes, dtype=torch.int64)
        plain, local = graph.types.names(ids), graph.types.local(ids).tolist()
        called = plain if names is None else [names[node] for node in nodes]
        return [
            str(number) if name == default else _short(name)
            for name, default, number in zip(called, plain, local, strict=True)
        ]
    return [str(number) for number in graph.whole_ids(nodes)] if names is None else [_short(names[i]) for i in nodes]


def _short(name: str) -> str:
    """Shorten a name so that it fits a disc: long names get two lines, and long lines are cut.

    >>> _short("mosquito 1291")
    'mosquito\\n1291'
    """
    words = one_line(name)
    lines = words.rsplit(" ", 1) if len(words) > LETTERS_OF_A_LINE else [words]
    return "\n".join(
        line if len(line) <= MOST_LETTERS else line[: MOST_LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}" for line in lines
    )


def _color_bar(figure: Figure, axes: Axes, scores: NDArray[np.float64], power: float, alone: bool) -> None:
    """Add the colour bar of one panel's scores to a case study, with the highest score as a tick."""
    finite = scores[np.isfinite(scores)]
    largest = float(np.abs(finite).max(initial=0.0)) or 1.0
    has_sign = bool((finite < 0).any())
    norm = _signed_norm(power, largest) if has_sign else PowerNorm(power, 0.0, largest)
    scale = ScalarMappable(norm, SIGNED_COLORS if has_sign else SCORE_COLORS)
    bar = figure.colorbar(scale, ax=axes, orientation="horizontal", fraction=0.04, pad=0.01, shrink=0.75)
    bar.outline.set_visible(False)
    # The largest score is a tick, because panels have different scales.
    ticks = largest * np.linspace(0.0, 1.0, 3 if power == 1.0 else 4) ** (1 / power)
    ticks = np.concatenate([-ticks[:0:-1], ticks]) if has_sign else ticks
    bar.set_ticks(ticks.tolist(), labels=[f"{tick:.3g}" for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=SMALL_SIZE, colors=MUTED, labelcolor=INK, length=2)
    undefined = len(scores) - len(finite)
    label = ("score" if alone else "score, own scale") + ("" if power == 1.0 else ": large ones stand out")
    label += f" ({undefined} undefined)" if undefined else ""
    bar.set_label(f"against  ←  {label}  →  for" if has_sign else label)
    bar.ax.xaxis.label.set(fontsize=SMALL_SIZE, color=INK)


def _edge_colors(ink: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the colour of each edge by its strength between 0 and 1: red for the prediction, green against it."""
    signed = SIGNED_COLORS((1 + np.where(scores < 0, -ink, ink)) / 2)
    return np.where((scores < 0)[:, None], signed, SCORE_COLORS(ink))


def _signed_norm(power: float, largest: float) -> Normalize:
    """Return the scale of a colour bar from `-largest` to `largest`, with sizes raised to a power."""
    steps = (
        lambda values: np.sign(values) * np.abs(values) ** power,
        lambda values: np.sign(values) * np.abs(values) ** (1 / power),
    )
    return FuncNorm(steps, -largest, largest)


def node_fills(scores: Floats, largest: float) -> list[str]:
    """Return colours of nodes by their scores, from white for 0 to red (green if negative) for the largest size.

    >>> node_fills(np.array([0.0, 2.0, -2.0]), 2.0)
    ['#ffffff', '#e49659', '#59c0a4']
    """
    strength = np.abs(scores) / largest if largest > 0 else np.zeros_like(scores)
    colors = np.where((scores < 0)[:, None], to_rgb(AGAINST), to_rgb(FOR))
    share = 0.65 * strength[:, None]  # names must stay readable on the darkest
    return [to_hex(color) for color in (1 - share) + share * colors]


def _title(part: DrawnPart, drawn_part: DrawnPart, num_layers: int, name: str) -> str:
    if not name:
        is_whole_graph = part.target is None
        name = "Whole graph" if is_whole_graph else f"{num_layers}-hop neighbourhood of node {part.nodes[part.target]}"
    title = f"{name}: {count(len(part.nodes), 'node')}, {count(len(part.edges), 'edge')}"
    note = left_out(part, drawn_part)
    return f"{title}\n({note})" if note else title


def _legend(figure: Figure, num_targets: int, has_truth: bool, types: Mapping[str, str]) -> None:
    """Add the legend of a case study to its figure: targets, true explanation and node types."""
    disc: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 9, "color": MUTED}
    entries: dict[str, Line2D] = {}
    if num_targets:
        entries["target" if num_targets == 1 else "targets"] = Line2D([], [], markerfacecolor=ORANGE, **disc)
    if has_truth:
        entries["true explanation"] = Line2D([], [], linewidth=6, color=BLUE, alpha=0.45)
    for name, color in types.items():
        entries[name] = Line2D([], [], markerfacecolor=color, **disc)
    if entries:
        plain_legend(figure, list(entries.values()), list(entries), loc="outside lower center", ncols=len(entries))


MOST_CANDIDATES = 200
"""Number of targets among which those that are easy to read are chosen."""


def draw_case_studies(
    evaluator: Evaluator,
    count: int,
    targets: Tensor | None = None,
) -> dict[str, Figure]:
    """Draw one figure for each of a few targets, with the current weights of the model.

    Args:
        evaluator: The model, its inputs, the targets and the methods.
        count: Number of targets to draw.
        targets: The targets; None takes targets with ground truth, or any of the evaluator's targets if there are none.
            Neighbourhoods that are easy to read come first. The choice does not depend on the weights.

    Returns:
        The figures, by name.
    """
    subject, truth, labels = evaluator.subject, evaluator.truth, evaluator.labels
    with_truth = set() if truth is None else set(truth.targets.tolist())
    if targets is None:
        candidates = evaluator.explained[:MOST_CANDIDATES]
        sizes = subject_pairs(subject, candidates.tolist()).ptr.diff()
        targets = candidates[order_targets(sizes).to(candidates.device)]
    figures = {}
    for target in targets[:count].tolist():
        pairs = subject_pairs(subject, [target])
        scores = {}
        for name, method in evaluator.methods.items():  # edges outside the target's pairs score 0
            values = method.score_pairs(subject, pairs)
            scores[name] = values.new_zeros(subject.graph.num_edges).index_copy_(0, pairs.edges, values)
        (number,) = [labels.id_of(target)] if subject.batch is not None else subject.graph.whole_ids([target])
        caption = labels.prediction(subject, target)
        if subject.batch is None:
            true = truth.edges_of(target) if truth is not None and target in with_truth else None
            roots = subject.roots([target]).node.tolist()
            figure = case_study(
                subject.graph,
                roots[0] if subject.level == "node" else None,
                subject.num_layers,
                scores,
                true,
                name=neighbourhood_name(subject, target, number, labels.node_names),
                caption=caption,
                node_names=labels.node_names,
                edges=pairs.edges,
                roots=roots,
            )
        else:
            nodes = subject.batch == target
            walk = walk_among(evaluator.methods)
            read = (
                None if walk is None else scores_of_nodes(subject, subject.targets([target]), [walk.name], len(pairs))
            )
            painted = None if read is None else read.dense(target)
            name = f"Graph {number}"
            figure = _draw_graph(subject.graph, nodes, scores, name, caption, labels.node_names, painted)
        figures[f"case_study_{number}"] = figure
    return figures


def neighbourhood_name(subject: Subject, target: int, number: int, names: Sequence[str] | None) -> str:
    """Return a title for the drawing of a target: its graph, or the neighbourhood of its node or link.

    Args:
        subject: The explained model and its inputs.
        target: The target: a node, a link or a graph.
        number: Id of the target in its dataset.
        names: Names of the nodes of the graph; None for their ids.
    """
    if subject.level == "graph":
        return f"Graph {number}"
    roots = subject.roots([target]).node.tolist()
    numbers = subject.graph.whole_ids(roots)
    called = [str(number) for number in numbers] if names is None else [one_line(names[root]) for root in roots]
    if subject.level == "node":
        whose = f"node {called[0]}" if names is None else called[0]
    else:
        ends = " \N{EN DASH} ".join(called * 2 if len(called) == 1 else called)  # one root: a node with itself
        whose = f"link {ends}"
    return f"{subject.num_layers}-hop neighbourhood of {whose}"


def draw_score_histograms(evaluation: Evaluation) -> dict[str, Figure]:
    """Draw one score histogram per protocol; return the figures by name.

    The AUROC above a panel is the evaluation's: over all draws of a random method and all processes.
    """
    figures = {}
    for protocol, reduction in evaluation.reductions.items():
        names = {method: str(MetricName(method, "p_auroc", protocol)) for method in evaluation.pair_scores}
        aurocs = {method: evaluation.metrics[name] for method, name in names.items() if name in evaluation.metrics}
        figures[f"scores_{protocol}"] = score_histogram(evaluation.pair_scores, reduction.changed, aurocs)
    return figures


def _draw_graph(
    graph: Graph,
    nodes: Tensor,
    scores: dict[str, Tensor],
    name: str,
    caption: str,
    node_names: Sequence[str] | None,
    node_scores: Tensor | None,
) -> Figure:
    """Draw one graph of a batch, with its nodes numbered from 0 and painted by their scores, if they have some."""
    number = nodes.cumsum(0) - 1
    inside = nodes[graph.source]
    proper = inside & (graph.source != graph.destination)
    alone = Graph(number[graph.edge_index[:, proper]], int(nodes.sum()))
    loops = inside & (graph.source == graph.destination)
    cut = {name: torch.cat([values[proper], values[loops]]) for name, values in scores.items()}
    graph_names = None if node_names is None else [node_names[node] for node in nodes.nonzero().view(-1).tolist()]
    painted = None if node_scores is None else node_scores[nodes]
    return case_study(alone, None, 0, cut, name=name, caption=caption, node_names=graph_names, node_scores=painted)
