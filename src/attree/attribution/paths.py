"""The strongest attention paths into a target."""

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
    """A path through the layers of a network into a target, from the last layer to a first one.

    Attributes:
        nodes: The nodes, from the one that the output reads to the one whose features enter a first layer; L + 1.
        edges: The edges between them, as ids in `graph.edge_index`, the last layer's first; L. Self-loops are included.
        attention: The attention on each edge.
        weight: The product of attention along the path, times the factors of branches and of the readout.
        effects: Effect of reducing each edge alone on the prediction (dPC), by protocol, if measured.
        names: Names of the nodes, if any.
    """

    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    attention: tuple[float, ...]
    weight: float
    effects: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    names: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """Return the path as text: `17 <- 4 <- 9 (0.31)`."""
        names = self.names or tuple(str(node) for node in self.nodes)
        return f"{' <- '.join(names)} ({self.weight:.2g})"


class _Walks(NamedTuple):
    """Partial paths that end at the same layer: the node that each has reached, and its last step.

    Attributes:
        node: The node, [walks].
        weight: The product of attention so far, [walks].
        trace: Position of the last step of each among all stored steps, [walks].
    """

    node: Tensor
    weight: Tensor
    trace: Tensor

    def times(self, factor: float) -> _Walks:
        """Return the same walks with their weights multiplied by a factor."""
        return self._replace(weight=self.weight * factor)

    @classmethod
    def concat(cls, parts: Sequence[_Walks]) -> _Walks:
        """Return the walks of several lists as one."""
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


class _Step(NamedTuple):
    """A step of a walk: from the step before, along an edge of a layer, to a node."""

    before: int
    layer: int
    edge: int
    node: int


def strongest_paths(
    subject: Subject | Attention, target: int, k: int = 5, heads: Sequence[int] | None = None
) -> list[AttentionPath]:
    r"""Return the k paths into a target with the largest product of attention, strongest first.

    .. math:: \max_{v = i_L, i_{L-1}, \ldots, i_0} \; \prod_{m=1}^{L} [\mathbf{A}(m)]_{i_m, i_{m-1}}

    The result is exact, without listing all paths: from the last layer to the first, each node keeps the k best paths
    that reach it, because the rest of a path depends on the node alone. GAtt sums these products over all paths.
    Branches are followed as they feed one another; skips are not followed.

    Args:
        subject: The subject to explain, or its attention alone.
        target: A node, a link, or a graph; paths of the latter two start at any node that they read.
        k: Maximum number of paths; paths of weight 0 are not returned.
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
        heads = expect_ints(heads, "heads", "head numbers, one per layer, or None")
    return paths_from(subject.attention, subject.roots([expect_int(target, "target")]), k, heads)


def paths_from(
    attention: Attention, roots: Roots, k: int = 5, heads: Sequence[int] | None = None
) -> list[AttentionPath]:
    """Do the same as `strongest_paths`, from the roots of one target."""
    expect_instance(attention, "attention", Attention)
    expect(roots.targets.numel() == 1, "roots", "those of one target", f"{roots.targets.numel()} targets")
    expect_int(k, "k", 1)
    graph, wiring = attention.graph, attention.layout
    alphas = [alpha.to(roots.weight.dtype) for alpha in attention.per_edge(heads)]
    steps = [_Step(-1, -1, -1, node) for node in roots.node.tolist()]
    start = _Walks(roots.node, roots.weight, torch.arange(len(steps), device=graph.device))
    walks_into: dict[int, _Walks] = {}
    for layer in reversed(range(len(alphas))):
        # Walks that reach the layer's output: from the output of the model and from later layers that read it.
        parts = [walks_into[later].times(factor) for later, factor in wiring.feeds[layer]]
        parts += [start.times(wiring.shares[layer])] if wiring.shares[layer] else []
        walks = _Walks.concat(parts) if parts else start.times(0.0)
        before, place = expand(graph.entering.ptr, walks.node)
        edge = graph.entering.items[place]
        weight = walks.weight[before] * alphas[layer][edge]  # 0 on edges that the layer does not use
        strongest_steps = _best(graph.source[edge], weight, k)
        node, edge, last = (
            graph.source[edge[strongest_steps]],
            edge[strongest_steps],
            walks.trace[before[strongest_steps]],
        )
        trace = torch.arange(len(steps), len(steps) + strongest_steps.numel(), device=graph.device)
        columns = (last.tolist(), [layer] * strongest_steps.numel(), edge.tolist(), node.tolist())
        steps += [_Step(*step) for step in zip(*columns, strict=True)]
        walks_into[layer] = _Walks(node, weight[strongest_steps], trace)
    fed = {later for feeds in wiring.feeds for later, _ in feeds}
    ends = _Walks.concat([walks for layer, walks in sorted(walks_into.items()) if layer not in fed])
    strongest = ends.weight.abs().argsort(descending=True, stable=True)[:k]
    return [_trace(steps, alphas, int(ends.trace[walk]), float(ends.weight[walk])) for walk in strongest.tolist()]


def _best(node: Tensor, weight: Tensor, k: int) -> Tensor:
    """Return the positions of each node's k strongest walks; ties keep their order."""
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
    steps_back = [steps[last]]
    while steps_back[-1].before >= 0:
        steps_back.append(steps[steps_back[-1].before])
    root, *walk = reversed(steps_back)
    return AttentionPath(
        (root.node, *(step.node for step in walk)),
        tuple(step.edge for step in walk),
        tuple(float(alphas[step.layer][step.edge]) for step in walk),
        weight,
    )
