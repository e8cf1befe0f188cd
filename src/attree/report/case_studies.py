"""Case studies of an evaluator's targets, and histograms of an evaluation's scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from attree.attention import Graph
from attree.attribution import subject_pairs
from attree.evaluation import Evaluation, Evaluator
from attree.evaluation.names import MetricName
from attree.evaluation.node_scores import scores_of_nodes, walk_among
from attree.report.case_study import case_study
from attree.report.score_figures import score_histogram
from attree.report.selection import order_targets
from attree.source.target_labels import one_line
from attree.subject import Subject

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
        number = labels.id_of(target)
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
    called = [str(root) if names is None else one_line(names[root]) for root in roots]
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
