"""The content of a page for one target: its neighbourhood with scores and effects, and where its nodes stand."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from attree.attention import Attention
from attree.attribution import global_pairs
from attree.evaluation import Evaluation
from attree.faithfulness import Reduction
from attree.report.drawn_targets import DrawnPart, left_out, strength_of
from attree.report.layout import place, spacing
from attree.tensors.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from attree.report.page.network import PageNetwork

GRID = 65535
"""Positions are integers from 0 to this number: finer than any screen, and half the size of floats."""


MOST_ARCS = 30
"""Most pairs of attention over all nodes on a page, for each target."""

TYPES = {"f4": "<f4", "u1": "<u1", "u2": "<u2", "i4": "<i4"}
"""Types of numbers that the page reads, little-endian as in browsers."""


@dataclass(frozen=True)
class Explained:
    """Makes the content of each target of an evaluation.

    Attributes:
        evaluation: The evaluation.
        attention: The captured attention, for the computation tree; None leaves the tree out.
        is_true: Whether each pair's edge is a true edge of its target, [P]; None if unknown.
        max_edges: Most edges of a target.
        node_names: Names of the nodes, if the targets are graphs of a batch.
        groups: The group of each node of the graph, [N]; None if there are none.
        is_live: Whether to add the target's position and the edges' ids, which the page sends in queries to the model.
        network: The network of the page; targets are added whose neighbourhood is whole. None if there is none.
    """

    evaluation: Evaluation
    attention: Attention | None
    is_true: Bools | None
    max_edges: int
    node_names: Sequence[str] | None = None
    groups: Tensor | None = None
    is_live: bool = False
    network: PageNetwork | None = None

    def target(self, position: int) -> dict[str, Any]:
        """Return the content of the target at a position in `evaluation.targets`."""
        pairs = self.evaluation.pairs
        begin, end = pairs.ptr[position : position + 2].tolist()
        is_node = pairs.num_layers is not None
        roots = self.roots(position)
        is_true = np.zeros(end - begin, dtype=bool) if self.is_true is None else self.is_true[begin:end]
        whole = DrawnPart.of(pairs.graph, pairs.edges[begin:end].cpu().numpy(), is_true, roots[0] if roots else None)
        scores = {name: _floats(values[begin:end]) for name, values in self.evaluation.pair_scores.items()}
        strength = np.stack([strength_of(values) for values in scores.values()])
        edges_on_page = whole.choose(strength, self.max_edges)
        part = whole.only(edges_on_page)
        places = edges_on_page + begin
        positions = place(part.source, part.destination, len(part.nodes), part.target)
        about = self.evaluation.target_labels
        first = 0 if is_node or about.first_nodes is None else int(about.first_nodes[position])
        more: dict[str, Any] = {}
        if self.is_live:
            more |= {"position": position, "edges": packed(part.edges, "i4")}
        if self.network is not None and len(part.edges) == len(whole.edges):
            rows = self.network.add(position, part)
            more |= {} if rows is None else {"inputs": packed(rows, "i4")}
        if self.groups is not None:
            more["group"] = packed(self.groups[torch.as_tensor(part.nodes)].numpy(), "u1")
        more |= self._nodes(position, part)
        if (relation := self._relation(part.edges)) is not None:
            more["relation"] = packed(relation, "u2")
        if is_node and (pairs.level == "edge" or pairs.graph.types is not None):
            more["name"] = self.evaluation.target_name(position)
        return {
            "id": int(self.evaluation.targets[position]) if about.ids is None else int(about.ids[position]),
            "nodes": packed(pairs.graph.whole_nodes(torch.as_tensor(part.nodes)).numpy() - first, "i4"),
            "names": self._names(part.nodes),
            "x": packed(np.rint((positions[:, 0] + 1) / 2 * GRID), "u2"),
            "y": packed(np.rint((positions[:, 1] + 1) / 2 * GRID), "u2"),
            "spacing": round(spacing(positions), 5),
            "hops": packed((hops(part) if len(roots) == 1 else np.full(len(part.nodes), -1)) % 256, "u1"),
            "target": -1 if part.target is None else part.target,
            "roots": [place for place, node in enumerate(part.nodes.tolist()) if node in roots],
            "source": packed(part.source, "u2"),
            "destination": packed(part.destination, "u2"),
            "truth": packed(part.is_true, "u1") if part.is_true.any() else None,
            "scores": {name: packed(values[edges_on_page], "f4") for name, values in scores.items()},
            "effects": {name: _effect(reduction, places) for name, reduction in self.evaluation.reductions.items()},
            "layers": self._layers(part),
            "treeSize": self._tree_size(whole),
            "wholeNodes": len(whole.nodes),
            "wholeEdges": len(whole.edges),
            "leftOut": left_out(whole, part),
            **more,
        }

    def roots(self, position: int) -> list[int]:
        """Return the nodes that a target's prediction is read from; none for a graph, or if they are unknown."""
        pairs, roots = self.evaluation.pairs, self.evaluation.target_labels.roots
        if roots is not None:
            return list(dict.fromkeys(roots[position].tolist()))
        is_node_id = pairs.num_layers is not None and pairs.level == "node" and pairs.graph.types is None
        return [int(pairs.targets[position])] if is_node_id else []

    def _nodes(self, position: int, part: DrawnPart) -> dict[str, Any]:
        """Return the nodes' scores by a walk, and the strongest pairs of attention over all nodes; may be empty."""
        subject, node_scores = self.evaluation.subject, self.evaluation.nodes
        if node_scores is None:
            return {}
        target = int(self.evaluation.pairs.targets[position])
        scores = node_scores.dense(target)
        pairs = None if subject is None else global_pairs(subject, target, MOST_ARCS)
        content: dict[str, Any] = {"nodeScores": packed(_floats(scores.cpu()[torch.as_tensor(part.nodes)]), "f4")}
        if subject is None or pairs is None or not pairs.score.numel():
            return content
        place = torch.full((subject.graph.num_nodes,), -1)
        place[torch.as_tensor(part.nodes)] = torch.arange(len(part.nodes))
        ends = torch.stack([place[pairs.key.cpu()], place[pairs.query.cpu()]])
        is_drawn = (ends >= 0).all(dim=0)
        arcs = {
            "from": packed(ends[0][is_drawn].numpy(), "u2"),
            "to": packed(ends[1][is_drawn].numpy(), "u2"),
            "score": packed(_floats(pairs.score.cpu()[is_drawn]), "f4"),
        }
        return content | {"arcs": arcs}

    def _names(self, nodes: Ints) -> list[str] | None:
        """Return names of nodes of a batch or of a typed graph; None if the page has one list for all targets."""
        if self.node_names is not None:
            return [str(self.node_names[node]) for node in nodes.tolist()]
        types = self.evaluation.pairs.graph.types
        return None if types is None else types.names(torch.as_tensor(nodes))

    def _relation(self, edges: Ints) -> Ints | None:
        """Return the position of each edge's relation in `relations_of`; None for a graph with one node type."""
        graph = self.evaluation.pairs.graph
        if graph.types is None:
            return None
        ids = torch.as_tensor(edges)
        place = graph.types.type_of_edges(ids.clamp(max=max(graph.num_proper_edges - 1, 0)))
        relation: Ints = torch.where(ids < graph.num_proper_edges, place, len(graph.types.edge_types)).numpy()
        return relation

    @cached_property
    def _weights(self) -> list[Tensor]:
        """For each layer, one weight per edge: the mean over heads, as GAtt uses it."""
        return [] if self.attention is None else self.attention.per_edge()

    def _has_tree(self, part: DrawnPart) -> bool:
        """Return whether a tree can be drawn: the target is one node, and each layer feeds the next."""
        if self.attention is None or part.target is None or self.evaluation.pairs.level != "node":
            return False
        # Where messages do not run along the edges that they come from, the page has no edge to draw for them.
        return self.attention.layout.is_chain and self.attention.of_messages is None

    def _layers(self, part: DrawnPart) -> list[dict[str, Any]] | None:
        """Return, for each layer, the weights of the edges and whether the layer uses them; None without a tree."""
        if not self._has_tree(part):
            return None
        assert self.attention is not None
        return [
            {
                "weight": packed(_floats(weight[part.edges]), "f4"),
                "present": None if present is None else packed(present[part.edges].cpu().numpy(), "u1"),
            }
            for weight, present in zip(self._weights, self.attention.present, strict=True)
        ]

    def _tree_size(self, whole: DrawnPart) -> float | None:
        """Return the number of nodes of the computation tree; the neighbourhood has all of its edges."""
        if not self._has_tree(whole):
            return None
        assert self.attention is not None
        assert whole.target is not None
        count = np.zeros(len(whole.nodes))
        count[whole.target] = 1.0
        size = 1.0
        for present in reversed(self.attention.present):
            used = 1.0 if present is None else present[whole.edges].cpu().numpy()
            reached = np.bincount(whole.source, count[whole.destination] * used, minlength=len(count))
            count = reached.astype(np.float64)
            size += float(count.sum())
        return size


def relations_of(evaluation: Evaluation) -> list[str] | None:
    """Return the names of the relations, with added self-loops last; None for a graph with one node type.

    If several relations have the same name, their names include the node types.
    """
    types = evaluation.pairs.graph.types
    if types is None:
        return None
    words = [word for _, word, _ in types.edge_types]
    names = [word if words.count(word) == 1 else f"{a} {word} {b}" for a, word, b in types.edge_types]
    return [*names, "self-loop"]


def _effect(reduction: Reduction, places: Ints) -> dict[str, Any]:
    """Return the effects of reducing some pairs, with the class and its probability after the reduction if known."""
    content: dict[str, Any] = {
        "pc": packed(_floats(reduction.delta_pc[places]), "f4"),
        "ne": packed(_floats(reduction.delta_ne[places]), "f4"),
        "changed": packed(reduction.changed[places].cpu().numpy(), "u1"),
    }
    if reduction.probability is not None:
        after = _floats(reduction.probability[places])
        content["after"] = packed(after.argmax(axis=1), "u2")
        content["confidence"] = packed(after.max(axis=1), "f4")
    return content


def _floats(values: Tensor) -> Floats:
    read: Floats = values.detach().cpu().double().numpy()
    return read


def packed(values: ArrayLike, kind: str) -> dict[str, str]:
    """Return an array as base64 text, by the name of its type.

    >>> packed([1, 2, 258], "u2")
    {'u2': 'AQACAAIB'}
    """
    array = np.ascontiguousarray(values, dtype=TYPES[kind])
    return {kind: base64.b64encode(array.tobytes()).decode("ascii")}


def hops(part: DrawnPart) -> Ints:
    """Return the distance from each node to the target along the edges; -1 without a path or a target."""
    if part.target is None:
        return np.full(len(part.nodes), -1, dtype=np.int64)
    size = len(part.nodes)
    backward = csr_matrix((np.ones(len(part.edges)), (part.destination, part.source)), shape=(size, size))
    steps = shortest_path(backward, unweighted=True, indices=part.target)
    return np.where(np.isfinite(steps), steps, -1).astype(np.int64)
