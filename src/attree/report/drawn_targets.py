"""Choose what a figure or a page shows: which targets come first, and which edges around a target are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order
from torch import Tensor

from attree.attention import Graph
from attree.evaluation import Evaluation
from attree.report.style import count
from attree.tensors.arrays import Bools, Floats, Ints
from attree.tensors.precision import exact_dtype


@dataclass(frozen=True)
class DrawnPart:
    """Subgraph around a target, with its own node numbers.

    Attributes:
        edges: Edge ids in the whole graph, [m].
        nodes: Node ids in the whole graph, ascending, [n].
        source: Source of each edge, as a position in `nodes`, [m].
        destination: Destination of each edge, as a position in `nodes`, [m].
        is_true: Whether each edge is a true edge of the target, [m].
        target: The target, as a position in `nodes`; None if the target is the whole graph.
    """

    edges: Ints
    nodes: Ints
    source: Ints
    destination: Ints
    is_true: Bools
    target: int | None

    @classmethod
    def of(cls, graph: Graph, edges: Ints, is_true: Bools, target: int | None) -> DrawnPart:
        """Return the subgraph that consists of some edges, given by their ids, and the target."""
        ends = graph.edge_index[:, torch.as_tensor(edges, device=graph.device)].cpu().numpy()
        named = ends.ravel() if target is None else np.append(ends.ravel(), target)
        nodes, local = np.unique(named, return_inverse=True)
        source, destination = local[: ends.size].reshape(2, -1)
        return cls(edges, nodes, source, destination, is_true, None if target is None else int(local[-1]))

    def only(self, positions: Ints) -> DrawnPart:
        """Return the part with only some of the edges, given by their positions, and the nodes at their ends."""
        source, destination = self.source[positions], self.destination[positions]
        target_node = [] if self.target is None else [self.target]
        places = np.unique(np.concatenate([source, destination, np.array(target_node, dtype=np.int64)]))
        return DrawnPart(
            self.edges[positions],
            self.nodes[places],
            np.searchsorted(places, source),
            np.searchsorted(places, destination),
            self.is_true[positions],
            None if self.target is None else int(np.searchsorted(places, self.target)),
        )

    def choose(self, strength: Floats, most: int) -> Ints:
        """Return the positions of at most `most` edges, each with a path to the target.

        True edges come first, then the edges with the largest scores, for or against the prediction.

        Args:
            strength: Sizes of scores between 0 and 1 of each method, [methods, m].
            most: Most edges to keep.
        """
        if len(self.edges) <= most:
            return np.arange(len(self.edges))
        ranked = np.lexsort((self.edges, -strength.max(axis=0), ~self.is_true))
        if self.target is None:
            return np.sort(ranked[:most])
        onward = self._edges_onward(self.target)
        chosen_edges: set[int] = set()
        for edge in ranked.tolist():
            if len(chosen_edges) == most:
                break
            path = {edge}
            node = int(self.destination[edge])
            while node != self.target and node in onward:
                path.add(onward[node])
                node = int(self.destination[onward[node]])
            path -= chosen_edges
            if len(chosen_edges) + len(path) <= most:
                chosen_edges |= path
        return np.array(sorted(chosen_edges), dtype=np.int64)

    def _edges_onward(self, target: int) -> dict[int, int]:
        """Return, for each node except the target, the first edge of a shortest path to the target."""
        size = len(self.nodes)
        backward = csr_matrix((np.ones(len(self.edges)), (self.destination, self.source)), shape=(size, size))
        _, towards = breadth_first_order(backward, target, directed=True, return_predecessors=True)
        steps = np.flatnonzero(towards[self.source] == self.destination)
        return dict(zip(self.source[steps].tolist(), steps.tolist(), strict=True))


def strength_of(scores: Floats) -> Floats:
    """Scale the sizes of scores so that the largest becomes 1. Undefined scores become 0.

    >>> strength_of(np.array([0.2, -0.4, np.nan])).tolist()
    [0.5, 1.0, 0.0]
    """
    sizes = np.abs(np.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0))
    return sizes / sizes.max() if sizes.size and sizes.max() > 0 else sizes


def strongest_first(scores: Tensor, effects: Tensor | None = None) -> Tensor:
    """Return the positions of scores by descending size, [n]: an edge against a prediction counts like one for it.

    Args:
        scores: One score per edge, [n]; undefined scores come last.
        effects: One effect per edge, [n]; scores of equal size are ordered by its size.

    >>> strongest_first(torch.tensor([0.1, -0.5, float("nan"), 0.2])).tolist()
    [1, 3, 0, 2]
    """
    order = torch.arange(scores.numel(), device=scores.device)
    if effects is not None:
        order = effects.abs().nan_to_num(nan=0.0).argsort(descending=True, stable=True)
    sizes = scores.detach().to(exact_dtype(scores.device)).abs().nan_to_num(nan=-1.0)
    return order[sizes[order].argsort(descending=True, stable=True)]


def left_out(part: DrawnPart, drawn_part: DrawnPart) -> str:
    """Return a note on the edges that a picture does not show; empty if it shows all.

    >>> edges = np.arange(3)
    >>> graph = Graph(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    >>> whole = DrawnPart.of(graph, edges, edges < 0, target=2)
    >>> left_out(whole, whole.only(edges[1:])), left_out(whole, whole)
    ('1 lower-scored edge not shown', '')
    """
    hidden = len(part.edges) - len(drawn_part.edges)
    return f"{count(hidden, 'lower-scored edge')} not shown" if hidden else ""


READABLE = (4, 60)
"""Fewest and most edges of a neighbourhood that is easy to read."""

LARGE = 200
CONFIDENT = 0.8


def instructive_order(
    evaluation: Evaluation,
    predictions: Tensor | None = None,
    true_classes: Tensor | None = None,
    has_truth: Tensor | None = None,
) -> Tensor:
    """Return the positions of an evaluation's targets, the most instructive first.

    The order prefers correct predictions, then targets with true edges, then small neighbourhoods, then confident
    predictions, then targets whose prediction depends most on a single edge. Targets with an unknown true class come
    between correct and wrong predictions.

    Args:
        evaluation: The evaluation.
        predictions: Class probabilities of the targets, [T, classes]; None takes the evaluation's.
        true_classes: True classes of the targets, [T], negative if unknown; None takes the evaluation's.
        has_truth: Whether each target has true edges, [T]; None if unknown.

    Returns:
        A permutation of the targets, [T].
    """
    pairs = evaluation.pairs
    zeros = torch.zeros(pairs.targets.numel(), device=pairs.ptr.device)
    effect = zeros.clone()
    for reduction in evaluation.reductions.values():
        strength = reduction.delta_pc.abs().nan_to_num(nan=0.0).to(effect)
        largest = zeros.clone().scatter_reduce(0, pairs.owner, strength, "amax", include_self=True)
        effect = torch.maximum(effect, largest)
    return order_targets(
        pairs.ptr.diff(),
        evaluation.predictions if predictions is None else predictions,
        evaluation.target_labels.labels if true_classes is None else true_classes,
        has_truth,
        effect,
    )


def order_targets(
    sizes: Tensor,
    predictions: Tensor | None = None,
    true_classes: Tensor | None = None,
    has_truth: Tensor | None = None,
    effect: Tensor | None = None,
) -> Tensor:
    """Compute `instructive_order` from these numbers. Ties keep their order.

    Args:
        sizes: Number of edges around each target, [T].
        predictions: Class probabilities, [T, classes], or None.
        true_classes: True classes, [T], negative if unknown, or None.
        has_truth: Whether each target has true edges, [T], or None.
        effect: Largest effect of a single edge on each target, [T], or None.
    """
    device = sizes.device
    keys = []
    if predictions is not None:
        confidence, predicted = predictions.to(device).max(dim=1)
        if true_classes is not None:
            true = true_classes.to(device)
            keys.append(torch.where(true < 0, 1.0, 2.0 * (predicted != true)))
    if has_truth is not None:
        keys.append((~has_truth.to(device)).float())
    keys.append(torch.where(sizes > LARGE, 2.0, ((sizes < READABLE[0]) | (sizes > READABLE[1])).float()))
    if predictions is not None:
        keys.append((confidence < CONFIDENT).float())
    if effect is not None:
        keys.append(-effect)
    order = torch.arange(sizes.numel(), device=device)
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order
