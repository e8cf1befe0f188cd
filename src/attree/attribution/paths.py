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
    """A walk through the layers of a network into a target, from the last of them to a first one.

    Attributes:
        nodes: The nodes, from the one that the output reads to the one whose features enter a first layer; L + 1.
        edges: The edges between them, as ids in `graph.edge_index`, the last layer's first; L. Self-loops count.
        attention: The attention on each edge.
        weight: The product of attention along the walk, times the factors with which layers and the output read one
            another.
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


class _Walks(NamedTuple):
    """Walks that end at the same place of a network: the node that each has come to, and how it came there.

    Attributes:
        node: The node, [walks].
        weight: The product of attention so far, [walks].
        trace: The number of the last step of each, among all steps that were kept, [walks].
    """

    node: Tensor
    weight: Tensor
    trace: Tensor

    def times(self, factor: float) -> _Walks:
        """The same walks with another factor."""
        return self._replace(weight=self.weight * factor)

    @classmethod
    def concat(cls, parts: Sequence[_Walks]) -> _Walks:
        """Walks that came different ways."""
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


class _Step(NamedTuple):
    """A step that some walk took: from the step before it, along an edge of a layer, to a node."""

    before: int
    layer: int
    edge: int
    node: int


def strongest_paths(
    subject: Subject | Attention, target: int, k: int = 5, heads: Sequence[int] | None = None
) -> list[AttentionPath]:
    r"""The k walks into a target with the largest product of attention, strongest first.

    .. math:: \max_{v = i_L, i_{L-1}, \ldots, i_0} \; \prod_{m=1}^{L} [\mathbf{A}(m)]_{i_m, i_{m-1}}

    Exact, without listing walks: from the last layer to the first, each node keeps the k best walks that reach it, as
    what a walk takes from there on depends on the node alone. GAtt sums these products over all walks. Layers side by
    side are walked as they feed one another; skips are not followed.

    Args:
        subject: What is explained, or its attention alone.
        target: A node, a pair of nodes, or a graph; the walks of the latter two start at any node that they read.
        k: How many walks; fewer are returned where there are fewer of weight other than 0.
        heads: The head to read in each layer; None averages all heads.

    >>> from attree.attention import Graph
    >>> graph = Graph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> attention = Attention.from_weights(graph, [torch.tensor([0.8, 0.2, 1.0]), torch.tensor([0.25, 0.75, 1.0])])
    >>> for path in strongest_paths(attention, 0, k=2):
    ...     print(path)
    0 <- 0 <- 1 (0.6)
    0 <- 1 <- 1 (0.25)
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
    expect(roots.targets.numel() == 1, "roots", "those of one target", f"{roots.targets.numel()} targets")
    expect_int(k, "k", 1)
    graph, wiring = attention.graph, attention.layout
    alphas = [alpha.to(roots.weight.dtype) for alpha in attention.per_edge(heads)]
    steps = [_Step(-1, -1, -1, node) for node in roots.node.tolist()]
    start = _Walks(roots.node, roots.weight, torch.arange(len(steps), device=graph.device))
    taken: dict[int, _Walks] = {}
    for layer in reversed(range(len(alphas))):
        # Walks that come to what the layer returned: from the output that reads it, and from later layers that do.
        parts = [taken[later].times(factor) for later, factor in wiring.feeds[layer]]
        parts += [start.times(wiring.shares[layer])] if wiring.shares[layer] else []
        walks = _Walks.concat(parts) if parts else start.times(0.0)
        before, place = expand(graph.entering.ptr, walks.node)
        edge = graph.entering.items[place]
        weight = walks.weight[before] * alphas[layer][edge]  # 0 on edges that the layer does not use
        kept = _best(graph.source[edge], weight, k)
        node, edge, last = graph.source[edge[kept]], edge[kept], walks.trace[before[kept]]
        trace = torch.arange(len(steps), len(steps) + kept.numel(), device=graph.device)
        columns = (last.tolist(), [layer] * kept.numel(), edge.tolist(), node.tolist())
        steps += [_Step(*one) for one in zip(*columns, strict=True)]
        taken[layer] = _Walks(node, weight[kept], trace)
    fed = {later for feeds in wiring.feeds for later, _ in feeds}
    ends = _Walks.concat([walks for layer, walks in sorted(taken.items()) if layer not in fed])
    strongest = ends.weight.abs().argsort(descending=True, stable=True)[:k]
    return [_trace(steps, alphas, int(ends.trace[walk]), float(ends.weight[walk])) for walk in strongest.tolist()]


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


def _trace(steps: Sequence[_Step], alphas: Sequence[Tensor], last: int, weight: float) -> AttentionPath:
    """Follow a walk from its last step back to the node that the output reads."""
    taken = [steps[last]]
    while taken[-1].before >= 0:
        taken.append(steps[taken[-1].before])
    root, *walk = reversed(taken)
    return AttentionPath(
        (root.node, *(step.node for step in walk)),
        tuple(step.edge for step in walk),
        tuple(float(alphas[step.layer][step.edge]) for step in walk),
        weight,
    )
