"""Walk the computation trees of many targets at once, backwards and without building them.

For target v, r starts as the one-hot row of v and is pulled through the layers from the last to the first,

    r_L = onehot(v),    r_{m-1}[i] = sum over edges e = (i -> j) of r_m[j] * w_m[e],

so that r_m[j] sums, over all flows from j to v through layers m+1 ... L, the product of their weights w. The weights
are attention for GAtt, and 1 to count flows. If the layers are not a chain, r of layer c is a sum over the later layers
d that it feeds, plus the start if the output reads it,

    r_c = share_c * start + sum over d of factor_cd * pull_d(r_d),

and layers are visited in reverse order of the forward pass. All targets share one frontier of (target, node) entries.
It is expanded over the edges that enter each node, and equal entries are merged. Nothing of size N x N is built, and
targets are walked in chunks to bound memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attention.wiring import Wiring
from attree.errors import expect_memory
from attree.subject.target_roots import Roots
from attree.tensors.arrays import expand
from attree.tensors.memory import WALK_MEMORY, chunk_bounds
from attree.tensors.precision import exact_dtype

BYTES_PER_SCORE = 32
"""Bytes per streamed score: its edge id and value, twice, because one part is read while the next is computed."""

BYTES_PER_ENTRY = 96
"""Bytes per frontier entry while it is expanded and merged."""


@dataclass(frozen=True)
class Frontier:
    """Every (target, node) from which a flow reaches the target in at most L - 1 steps, with the value of r there.

    The edges that enter these nodes are exactly the edges that carry a flow.

    Attributes:
        targets: Ids of the targets, [T].
        owner: Position in `targets` of each entry's target, ascending.
        node: The node of each entry, ascending within a target.
        weight: r_m at each entry, [layers, entries], first layer first; 0 if there is no flow from there.
        count: Number of such flows, [layers, entries]; None if they were not counted.
    """

    targets: Tensor
    owner: Tensor
    node: Tensor
    weight: Tensor
    count: Tensor | None

    def slice(self, begin: int, end: int) -> Frontier:
        """Return the entries of targets `begin` to `end`."""
        first, last = torch.searchsorted(self.owner, torch.tensor([begin, end], device=self.owner.device)).tolist()
        part = self.entries(first, last)
        return replace(part, targets=self.targets[begin:end], owner=part.owner - begin)

    def entries(self, first: int, last: int) -> Frontier:
        """Return the entries `first` to `last`, of the same targets."""
        return Frontier(
            self.targets,
            self.owner[first:last],
            self.node[first:last],
            self.weight[:, first:last],
            None if self.count is None else self.count[:, first:last],
        )


@dataclass(frozen=True)
class Step:
    """One layer of a walk, in which every entry is followed over the edges that enter its node.

    Attributes:
        entry: For each listed edge, the entry that it is followed from.
        edges: The listed edges.
        reached: For each listed edge, the entry of the next level that it leads to.
    """

    entry: Tensor
    edges: Tensor
    reached: Tensor


@dataclass(frozen=True)
class Walk:
    """The entries of a walk. They do not depend on weights, so a walk can be reused for other weights.

    Attributes:
        roots: The start of the walk, r_L.
        owner: As in `Frontier`.
        node: As in `Frontier`.
        places: For each level, roots first, the positions of its entries among all entries.
        steps: The step from each level to the next.
    """

    roots: Roots
    owner: Tensor
    node: Tensor
    places: list[Tensor]
    steps: list[Step]

    @classmethod
    def of(cls, graph: Graph, roots: Roots, num_layers: int) -> Walk:
        """Find all entries of a walk through all layers except the first."""
        num_nodes, rows = max(graph.num_nodes, 1), graph.entering
        key = roots.owner * num_nodes + roots.node
        keys, steps = [key], []
        for _ in range(num_layers - 1):
            node = key % num_nodes
            entry, place = expand(rows.ptr, node)
            reached = (key - node).index_select(0, entry).add_(graph.entering_source.index_select(0, place))
            key, inverse = reached.unique(return_inverse=True)
            steps.append(Step(entry, rows.items.index_select(0, place), inverse))
            keys.append(key)
        # Every step also follows the self-loops (factor 0 if a layer has none), so the last level holds all others.
        places = [torch.searchsorted(key, level) for level in keys]
        return cls(roots, key // num_nodes, key % num_nodes, places, steps)

    def pull(
        self, weights: Sequence[Tensor], counts: Sequence[Tensor] | None = None, wiring: Wiring | None = None
    ) -> Frontier:
        """Pull r through the layers.

        Args:
            weights: Per layer and edge [num_edges], first layer first: the factor of a flow on that edge.
            counts: Per layer and edge, 1 if the layer uses the edge, else 0; flows are counted if given.
            wiring: Which layer feeds which; None for a chain.
        """
        wiring = Wiring.chain(range(len(weights))) if wiring is None else wiring
        pulled = self.roots.weight.new_zeros(1 if counts is None else 2, len(weights), self.node.numel())
        self._pull(self.roots.weight, weights, wiring, pulled[0])
        if counts is not None:
            start = (self.roots.weight != 0).to(self.roots.weight.dtype)
            self._pull(start, counts, wiring.without_factors(), pulled[1])
        return Frontier(self.roots.targets, self.owner, self.node, pulled[0], pulled[1] if counts is not None else None)

    def _pull(self, start: Tensor, weights: Sequence[Tensor], wiring: Wiring, pulled: Tensor) -> None:
        """Pull one start through the layers into `pulled`, [layers, entries]."""
        heights = wiring.heights
        moved: dict[int, Tensor] = {}
        for layer in reversed(range(len(weights))):
            height = heights[layer]
            terms = [(moved[later], heights[later] + 1, factor) for later, factor in wiring.feeds[layer]]
            if wiring.shares[layer]:
                terms.insert(0, (start, 0, wiring.shares[layer]))
            value: Tensor | None = None
            for term, level, factor in terms:
                term_at_height = self._at_level(term if factor == 1 else term * factor, level, height)
                value = term_at_height if value is None else value + term_at_height
            assert value is not None
            pulled[layer].index_copy_(0, self.places[height], value)
            if height < len(self.steps):
                step = self.steps[height]
                factor_of_edge = weights[layer].index_select(0, step.edges).to(value.dtype)
                flows = value.index_select(0, step.entry).mul_(factor_of_edge)
                size = self.places[height + 1].numel()
                moved[layer] = value.new_zeros(size).index_add_(0, step.reached, flows)

    def _at_level(self, value: Tensor, level: int, later_level: int) -> Tensor:
        """Expand values of one level's entries to the entries of a later level, which include them; others get 0."""
        if level == later_level:
            return value
        everywhere = value.new_zeros(self.node.numel()).index_copy_(0, self.places[level], value)
        return everywhere.index_select(0, self.places[later_level])


def walk_back(
    graph: Graph,
    roots: Roots,
    weights: Sequence[Tensor],
    counts: Sequence[Tensor] | None = None,
    wiring: Wiring | None = None,
) -> Frontier:
    """Find a walk and pull r through it; the arguments are those of `Walk.of` and `Walk.pull`."""
    depth = len(weights) if wiring is None else wiring.depth
    return Walk.of(graph, roots, depth).pull(weights, counts, wiring)


def frontier_bound(graph: Graph, num_layers: int) -> Tensor:
    """Return an upper bound on the size of each node's frontier: the number of walks of `num_layers` - 1 steps.

    Equal entries are merged before each step, so a step never lists more than all edges.
    """
    cap = float(graph.num_edges)
    bound = torch.ones(graph.num_nodes, dtype=exact_dtype(graph.device), device=graph.device)
    for _ in range(num_layers - 1):
        bound = (
            torch.zeros_like(bound)
            .index_add_(0, graph.destination, bound.index_select(0, graph.source))
            .clamp_(max=cap)
        )
    return bound


def stream_frontiers(
    graph: Graph,
    roots: Roots,
    weights: Sequence[Tensor],
    counts: Sequence[Tensor] | None = None,
    memory: int = WALK_MEMORY,
    wiring: Wiring | None = None,
) -> Iterator[Frontier]:
    """Yield frontiers of consecutive targets whose walks, and whose scores, each fit into `memory` bytes.

    A single target is never split, so it may take more.
    """
    expect_memory(memory)
    bound = frontier_bound(graph, len(weights) if wiring is None else wiring.depth)
    cost = bound.new_zeros(roots.targets.numel()).index_add_(0, roots.owner, bound[roots.node])
    for begin, end in chunk_bounds(cost, memory / BYTES_PER_ENTRY):
        frontier = walk_back(graph, roots.slice(begin, end), weights, counts, wiring)
        scores = cost.new_zeros(end - begin)
        scores.index_add_(0, frontier.owner, graph.entering.sizes[frontier.node].to(cost.dtype))
        parts = chunk_bounds(scores, memory / BYTES_PER_SCORE)
        if len(parts) == 1:
            yield frontier
        else:
            yield from (frontier.slice(first, last) for first, last in parts)
