"""The strongest paths into a target: "why node 17" as a walk of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.method import as_subject
from attree.errors import expect, expect_instance, expect_int, expect_ints
from attree.subject import Subject
from attree.subject.roots import Roots
from attree.tensors.ragged import expand, pointers


@dataclass(frozen=True)
class AttentionPath:
    """A walk through all layers of a network into a target.

    Attributes:
        nodes: The nodes, from the one that the output reads to the one whose features enter the first layer; L + 1.
        edges: The edges between them, as ids in `graph.edge_index`, the last layer's first; L. Self-loops count.
        attention: The attention on each edge.
        weight: The product of attention along the walk, times the weight that the output gives to the first node.
        effects: By protocol, what reducing each edge alone does to the prediction (dPC), where it was measured.
        names: What the nodes are called.
    """

    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    attention: tuple[float, ...]
    weight: float
    effects: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    names: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """As a sentence of nodes: `17 <- 4 <- 9 (0.31)`."""
        names = self.names or tuple(str(node) for node in self.nodes)
        return f"{' <- '.join(names)} ({self.weight:.2g})"


class _Level(NamedTuple):
    """The best walks down to one layer: the node that each has come to, and how it came there.

    Attributes:
        node: The node, [walks].
        weight: The product of attention so far, [walks].
        before: The walk of the level before that it continues, [walks].
        edge: The edge that it took, [walks].
    """

    node: Tensor
    weight: Tensor
    before: Tensor
    edge: Tensor


def strongest_paths(
    subject: Subject | Attention, target: int, k: int = 5, heads: Sequence[int] | None = None
) -> list[AttentionPath]:
    r"""The k walks into a target with the largest product of attention, strongest first.

    .. math:: \max_{v = i_L, i_{L-1}, \ldots, i_0} \; \prod_{m=1}^{L} [\mathbf{A}(m)]_{i_m, i_{m-1}}

    Exact, without listing walks: from the last layer to the first, each node keeps the k best walks that reach it, as
    what a walk takes from there on depends on the node alone. GAtt sums these products over all walks.

    Args:
        subject: What is explained, or its attention alone.
        target: A node, a pair of nodes, or a graph; the walks of the latter two start at any node that they read.
        k: How many walks; fewer are returned where there are fewer of weight other than 0.
        heads: The head to read in each layer; None averages all heads.

    >>> from attree.attention import Graph
    >>> graph = Graph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> attention = Attention.from_weights(graph, [torch.tensor([0.8, 0.2, 1.0]), torch.tensor([0.25, 0.75, 1.0])])
    >>> [str(path) for path in strongest_paths(attention, 0, k=2)]
    ['0 <- 0 <- 1 (0.6)', '0 <- 1 <- 1 (0.25)']
    """
    subject = as_subject(subject)
    if heads is not None:
        heads = expect_ints(heads, "heads", "head numbers, one a layer, or None")
    return paths_from(subject.attention, subject.roots([expect_int(target, "target")]), k, heads)


def paths_from(
    attention: Attention, roots: Roots, k: int = 5, heads: Sequence[int] | None = None
) -> list[AttentionPath]:
    """As `strongest_paths`, from the roots of one target."""
    expect_instance(attention, "attention", Attention)
    attention.check_chain()
    expect(roots.targets.numel() == 1, "roots", "those of one target", f"{roots.targets.numel()} targets")
    expect_int(k, "k", 1)
    graph, alphas = attention.graph, [alpha.to(roots.weight.dtype) for alpha in attention.per_edge(heads)]
    none = torch.full_like(roots.node, -1)
    levels = [_Level(roots.node, roots.weight, none, none)]
    for alpha in reversed(alphas):
        last = levels[-1]
        before, place = expand(graph.entering.ptr, last.node)
        edge = graph.entering.items[place]
        # An edge that the layer does not use has weight 0.
        taken = _best(graph.source[edge], last.weight[before] * alpha[edge], k)
        edge = edge[taken]
        levels.append(_Level(graph.source[edge], last.weight[before[taken]] * alpha[edge], before[taken], edge))
    end = levels[-1].weight.abs().argsort(descending=True, stable=True)[:k]
    return [_trace(levels, alphas, walk) for walk in end.tolist()]


def _best(node: Tensor, weight: Tensor, k: int) -> Tensor:
    """Which walks to keep: of each node the k strongest, ties by the order that they come in."""
    strength = weight.abs()
    order = strength.argsort(descending=True, stable=True)
    order = order[strength[order] > 0]
    order = order[node[order].argsort(stable=True)]
    _, sizes = node[order].unique_consecutive(return_counts=True)
    begin = pointers(sizes)[:-1].repeat_interleave(sizes)
    rank = torch.arange(order.numel(), device=order.device) - begin
    return order[rank < k]


def _trace(levels: Sequence[_Level], alphas: Sequence[Tensor], walk: int) -> AttentionPath:
    """Follow a walk of the last level back to the target."""
    weight = float(levels[-1].weight[walk])
    nodes, edges, attention = [int(levels[-1].node[walk])], [], []
    for layer in range(1, len(levels)):
        level = levels[-layer]
        edges.append(int(level.edge[walk]))
        attention.append(float(alphas[layer - 1][edges[-1]]))
        walk = int(level.before[walk])
        nodes.append(int(levels[-layer - 1].node[walk]))
    return AttentionPath(tuple(nodes[::-1]), tuple(edges[::-1]), tuple(attention[::-1]), weight)
