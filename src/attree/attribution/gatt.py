"""GAtt, its two ablations, and the base class of methods that follow the flows of the computation tree.

Shin et al., "Faithful and Accurate Self-Attention Attribution for Message Passing Neural Networks via the Computation
Tree Viewpoint", AAAI 2025.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.graph import Graph
from attree.attention.message_edges import MessageGraph
from attree.attention.wiring import Wiring
from attree.attribution.flows import Frontier, stream_frontiers
from attree.attribution.global_walk import GlobalWalk, stream_global_walks
from attree.attribution.method import AttributionMethod, as_subject
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.errors import UnsupportedModelError, expect, expect_ints, expect_memory
from attree.subject import Subject
from attree.subject.local_and_global_layers import GlobalTrace
from attree.subject.target_roots import Roots, Targets
from attree.tensors.arrays import expand, find, pointers
from attree.tensors.memory import WALK_MEMORY, chunk_bounds

CPU_BLOCK = 2**15
"""Scores per block on the CPU: small enough for the cache, and for operations that start no threads."""

GPU_BLOCK = 2**23
"""Scores per block on other devices: large enough to hide the launch cost."""


def score_dtype(attention: Attention) -> torch.dtype:
    """Return the dtype of scores: that of the attention, or float32 for half precision."""
    dtype = attention.weights[0].dtype
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass(frozen=True)
class LayerTable:
    """Attention of every layer, ordered by destination, so that the edges that enter a node are contiguous.

    Attributes:
        graph: The graph.
        alphas: Attention per layer in the order of `graph.edge_index`, [num_edges] each.
        used: 1 if the layer uses the edge, else 0, in the same order.
        alpha_rows: `alphas` in the order of `graph.entering.items`, [L, num_edges].
        used_rows: `used` in that order; None if every layer uses every edge.
        wiring: Which layer feeds which.
        everywhere: All layers of the network if some attend over all nodes; otherwise None.
    """

    graph: Graph
    alphas: list[Tensor]
    used: list[Tensor]
    alpha_rows: Tensor
    used_rows: Tensor | None
    wiring: Wiring
    everywhere: GlobalTrace | None = None

    @classmethod
    def of(cls, attention: Attention, heads: Sequence[int] | None) -> LayerTable:
        """Build the table; half-precision attention becomes float32, because scores sum many weights."""
        attention = attention.walked
        order = attention.graph.entering.items
        alphas = attention.per_edge(heads)
        alphas = [alpha.to(score_dtype(attention)) for alpha in alphas]
        used = [
            torch.ones_like(alpha) if present is None else present.to(alpha.dtype)
            for alpha, present in zip(alphas, attention.present, strict=True)
        ]
        complete = all(present is None for present in attention.present)
        alpha_rows = torch.stack([alpha.index_select(0, order) for alpha in alphas])
        used_rows = None if complete else torch.stack([row.index_select(0, order) for row in used])
        return cls(attention.graph, alphas, used, alpha_rows, used_rows, attention.layout)


@dataclass(frozen=True)
class EdgeBlock:
    """Some edges that carry flows to some targets, grouped by destination, with everything that a score may need.

    Attributes:
        table: Attention of every layer.
        frontier: The walk's entries whose entering edges are listed.
        owner: For each edge, the entry whose node it enters.
        place: For each edge, its position in `graph.entering.items`.
        edges: For each edge, its id in `graph.edge_index`.
    """

    table: LayerTable
    frontier: Frontier
    owner: Tensor
    place: Tensor
    edges: Tensor

    @property
    def targets(self) -> Tensor:
        """Id of the target of each edge."""
        return self.frontier.targets.index_select(0, self.frontier.owner).index_select(0, self.owner)

    def weighted(self) -> Tensor:
        """Return the sum over the layers of r[destination] * attention."""
        return self._sum(self.frontier.weight.to(self.table.alpha_rows.dtype), self.table.alpha_rows)

    def flows(self) -> Tensor:
        """Return the number of flows that start with each edge; the walk must have counted flows."""
        assert self.frontier.count is not None
        if self.table.used_rows is None:
            return self.frontier.count.sum(dim=0).index_select(0, self.owner)
        return self._sum(self.frontier.count, self.table.used_rows.to(self.frontier.count.dtype))

    def _sum(self, of_entry: Tensor, of_place: Tensor) -> Tensor:
        """Return the sum over the layers of an entry's factor times an edge's factor."""
        total = of_entry[0].index_select(0, self.owner).mul_(of_place[0].index_select(0, self.place))
        for layer in range(1, of_entry.shape[0]):
            total.addcmul_(of_entry[layer].index_select(0, self.owner), of_place[layer].index_select(0, self.place))
        return total


def edge_blocks(table: LayerTable, frontier: Frontier) -> Iterator[EdgeBlock]:
    """Split the edges that carry flows into blocks; all edges that enter an entry's node are in one block."""
    rows = table.graph.entering
    size = CPU_BLOCK if table.graph.device.type == "cpu" else GPU_BLOCK
    for first, last in chunk_bounds(rows.sizes.index_select(0, frontier.node), size):
        part = frontier.entries(first, last)
        owner, place = expand(rows.ptr, part.node)
        yield EdgeBlock(table, part, owner, place, rows.items.index_select(0, place))


Skips = Literal["ignore", "follow"]
"""Whether a walk ignores or follows skip connections."""


class FlowMethod(AttributionMethod):
    """Base class of methods that score the edges that carry flows to a target, from attention.

    A subclass defines how a walk is weighted (`walk_weights`) and how an edge with a flow scores (`score`). The walk
    over all targets, the memory bound and the result are shared. A subclass sets `counts_flows` if it needs the number
    of flows, `weighs_branches` if flows through branches are multiplied by the branches' factors, `needs_attention` to
    False if it also says something about networks without attention layers, and `reads_edges_only` if attention over
    all nodes is not the attention that it needs.

    Args:
        heads: The head to read in each layer; None averages all heads.
        skips: How paths around layers (residuals, jumping knowledge) are treated: `ignore` walks only through
            the layers, `follow` also around them, with the factor of each path. Skips that are not combined linearly
            (a maximum, an LSTM) are ignored.
    """

    counts_flows: ClassVar[bool] = False
    weighs_branches: ClassVar[bool] = True
    needs_attention: ClassVar[bool] = True
    reads_edges_only: ClassVar[bool] = False

    def __init__(self, heads: Sequence[int] | None = None, skips: Skips = "ignore") -> None:
        self.heads = None if heads is None else expect_ints(heads, "heads", "head numbers, one per layer, or None")
        expect(skips in ("ignore", "follow"), "skips", "'ignore' or 'follow'", skips)
        self.skips: Skips = skips

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        return cls(heads)

    def table(self, attention: Attention) -> LayerTable:
        """Return the attention that the method reads; default: that of the chosen heads."""
        return LayerTable.of(attention, self.heads)

    def check_attention(self, attention: Attention) -> None:
        """Raise if there is no tree to walk along, or if the method reads attention and the network has none."""
        attention.check_tree()
        if self.needs_attention and not attention.has_attention:
            raise UnsupportedModelError(
                f"Expected a network with attention layers for {self.label}, but none of its layers has attention. "
                "Methods for any network: occlusion, structure, message_gradient, saliency, integrated_gradients, "
                "gnn_explainer."
            )

    def walk_weights(self, alphas: list[Tensor], used: list[Tensor]) -> list[Tensor]:
        """Return the factor of a flow on each edge of each layer; default: the edge's attention."""
        return alphas

    @abstractmethod
    def score(self, block: EdgeBlock) -> Tensor:
        """Return the scores of the listed edges."""

    def terms(self, block: EdgeBlock) -> tuple[Tensor, ...]:
        """Return numbers of the listed messages that are added up over all messages of an edge; default: the scores."""
        return (self.score(block),)

    def of_terms(self, terms: Sequence[Tensor], graph: Graph, targets: Tensor, edges: Tensor) -> Tensor:
        """Return the scores of edges from the sums of `terms` over their messages.

        Args:
            terms: The sums.
            graph: The graph of the edges.
            targets: The target of each score.
            edges: The edge of each score.
        """
        return terms[0]

    def attribute(
        self, subject: Subject | Attention, targets: Targets | Roots = "all", memory: int = WALK_MEMORY
    ) -> Attribution:
        """Score, for every target, all edges that carry a flow to it.

        Args:
            subject: The subject to explain, or its attention alone.
            targets: Nodes, links, or graphs; or the roots of their trees.
            memory: Bytes of working memory, in addition to the result.
        """
        table, roots = self.start(subject, targets)
        attribution = self._score(table, roots.targets, list(self.walks(table, roots, memory)))
        return replace(attribution, node_type=roots.node_type)

    def stream(
        self, subject: Subject | Attention, targets: Targets | Roots = "all", memory: int = WALK_MEMORY
    ) -> Iterator[Attribution]:
        """Do the same as `attribute`, but yield the result in parts of consecutive targets that fit into `memory`."""
        table, roots = self.start(subject, targets)
        for frontier in self.walks(table, roots, memory):
            yield replace(self._score(table, frontier.targets, [frontier]), node_type=roots.node_type)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """Score the pairs, [P]; pairs without a flow score 0. The pairs keep their walks for later calls."""
        subject = as_subject(subject)
        attention = subject.attention
        pairs.check(attention.graph, attention.num_layers)
        if subject.global_trace is not None:
            return self._score_pairs_everywhere(subject, pairs)
        self.check_attention(attention)
        is_plain = attention.walked is attention and all(present is None for present in attention.present)
        walk = pairs.walk if is_plain else None
        if walk is None:
            return super().score_pairs(subject, pairs)
        table = self.table(attention)
        weights = self.walk_weights(table.alphas, table.used)
        frontier = walk.walk.pull(weights, table.used if self.counts_flows else None, self.wiring_of(table))
        score = self.score(EdgeBlock(table, frontier, walk.entry, walk.place, walk.edges))
        return score.new_zeros(len(pairs)).index_copy_(0, walk.pair, score)

    def hops(self, num_layers: int) -> int:
        """Return the number of hops around a target that the network must see for the same scores as the full graph."""
        return num_layers

    def start(self, subject: Subject | Attention, targets: Targets | Roots) -> tuple[LayerTable, Roots]:
        """Return the attention that the method reads, and the roots of the targets."""
        subject = as_subject(subject)
        roots = targets if isinstance(targets, Roots) else subject.roots(targets)
        trace = subject.global_trace
        self.check_subject(subject, trace)
        return replace(self.table(subject.attention), everywhere=trace), roots

    def check_subject(self, subject: Subject, trace: GlobalTrace | None) -> None:
        """Raise if the method reads attention that the network does not have.

        Args:
            subject: The subject.
            trace: All layers of the network if some attend over all nodes; otherwise None.
        """
        if trace is None:
            self.check_attention(subject.attention)
        elif self.reads_edges_only and not subject.attention.has_attention:
            raise UnsupportedModelError(
                f"Expected a network with attention along edges for {self.label}, but {subject.call.name} has "
                "attention over all nodes only: `gatt` and `uniform` walk through it."
            )

    def walk_everywhere(self, trace: GlobalTrace) -> GlobalTrace:
        """Return the layers over all nodes with the factor of a flow on each pair; default: their attention."""
        return trace

    def walks(self, table: LayerTable, roots: Roots, memory: int) -> Iterator[Frontier]:
        """Yield r of consecutive targets at the output of every layer, and the numbers of flows if they are needed."""
        expect_memory(memory)
        counted = self.counts_flows or table.used_rows is not None
        weights, wiring = self.walk_weights(table.alphas, table.used), self.wiring_of(table)
        if table.everywhere is None:
            yield from stream_frontiers(table.graph, roots, weights, table.used if counted else None, memory, wiring)
            return
        trace, num_layers = table.everywhere, len(weights)
        walks = stream_global_walks(table.graph, roots, weights, self.walk_everywhere(trace), wiring, memory)
        counts: Iterable[GlobalWalk | None] = repeat(None)
        if counted:
            ones = replace(roots, weight=(roots.weight != 0).to(roots.weight.dtype))
            every = trace.uniform(total=True)
            counts = stream_global_walks(table.graph, ones, table.used, every, wiring.without_factors(), memory)
        for walk, count in zip(walks, counts, strict=False):
            yield walk.frontier(trace, num_layers, count)

    def wiring_of(self, table: LayerTable) -> Wiring:
        """Return which layer feeds which, for the walks of this method."""
        wiring = table.wiring if table.everywhere is None else table.everywhere.wiring
        wiring = (wiring.followed if self.skips == "follow" else None) or wiring
        return wiring if self.weighs_branches else wiring.without_factors()

    def _score_pairs_everywhere(self, subject: Subject, pairs: Pairs) -> Tensor:
        """Score pairs of a network with attention over all nodes, by walks over all nodes."""
        table, roots = self.start(subject, pairs.targets)
        place = torch.empty_like(pairs.edges).new_empty(table.graph.num_edges)
        place[table.graph.entering.items] = torch.arange(place.numel(), device=place.device)
        scores, begin = [table.alpha_rows.new_zeros(0)], 0
        for frontier in self.walks(table, roots, WALK_MEMORY):
            end = begin + frontier.targets.numel()
            first, last = pairs.ptr[begin].item(), pairs.ptr[end].item()
            edges, owner = pairs.edges[first:last], pairs.owner[first:last] - begin
            keys = frontier.owner * table.graph.num_nodes + frontier.node
            entry, is_listed = find(keys, owner * table.graph.num_nodes + table.graph.destination[edges])
            flow_edges = edges[is_listed]
            part = scores[0].new_zeros(edges.numel())
            part[is_listed] = self.score(EdgeBlock(table, frontier, entry[is_listed], place[flow_edges], flow_edges))
            scores.append(part)
            begin = end
        return torch.cat(scores)

    def _score(self, table: LayerTable, targets: Tensor, frontiers: list[Frontier]) -> Attribution:
        """Score the walks of consecutive targets as one result."""
        if isinstance(table.graph, MessageGraph):
            return self._score_owners(table, table.graph, targets, frontiers)
        degree = table.graph.entering.sizes
        sizes = [
            degree.new_zeros(frontier.targets.numel()).index_add_(
                0, frontier.owner, degree.index_select(0, frontier.node)
            )
            for frontier in frontiers
        ]
        total = sum(int(size.sum()) for size in sizes)
        edges = degree.new_empty(total)
        scores = table.alpha_rows.new_empty(total)
        end = 0
        for frontier, size in zip(frontiers, sizes, strict=True):
            for block in edge_blocks(table, frontier):
                block_edges, score = block.edges, self.score(block)
                if table.used_rows is not None:
                    idle = block.flows() == 0
                    size.index_add_(0, block.frontier.owner.index_select(0, block.owner[idle]), -idle[idle].long())
                    block_edges, score = block_edges[~idle], score[~idle]
                begin, end = end, end + block_edges.numel()
                edges[begin:end] = block_edges
                scores[begin:end] = score
        if end < total:
            edges, scores = edges[:end].clone(), scores[:end].clone()
        ptr = pointers(torch.cat(sizes) if sizes else degree[:0])
        return Attribution(self.name, table.graph, targets, ptr, edges, scores)

    def _score_owners(
        self, table: LayerTable, graph: MessageGraph, targets: Tensor, frontiers: list[Frontier]
    ) -> Attribution:
        """Score walks along messages: terms of the messages that come from an edge are added up."""
        keys, columns, begin = [targets[:0]], list[tuple[Tensor, ...]](), 0
        for frontier in frontiers:
            for block in edge_blocks(table, frontier):
                owner = graph.owner[block.edges]
                is_listed = owner >= 0
                if table.used_rows is not None:
                    is_listed &= block.flows() != 0
                target = begin + block.frontier.owner[block.owner[is_listed]]
                keys.append(target * graph.num_data_edges + owner[is_listed])
                columns.append(tuple(term[is_listed] for term in self.terms(block)))
            begin += frontier.targets.numel()
        key, place = torch.cat(keys).unique(return_inverse=True)
        sums = [
            torch.cat(column).new_zeros(key.numel()).index_add_(0, place, torch.cat(column))
            for column in zip(*columns, strict=True)
        ]
        owner, edges = key // graph.num_data_edges, key % graph.num_data_edges
        scores = self.of_terms(sums, graph.data, targets[owner], edges) if sums else table.alpha_rows.new_zeros(0)
        ptr = pointers(owner.bincount(minlength=targets.numel()))
        return Attribution(self.name, graph.data, targets, ptr, edges, scores)


class GAtt(FlowMethod):
    r"""GAtt: attention summed over an edge's occurrences in the computation tree, weighted by the path to the root.

    .. math:: \phi^v_{i,j} = \sum_{m=1}^{L} [\mathbf{A}(L) \cdots \mathbf{A}(m+1)]_{v,j} \, [\mathbf{A}(m)]_{j,i}

    Here :math:`v` is the target, :math:`(i, j)` the edge from i to j and :math:`[\mathbf{A}(m)]_{j,i}` its attention
    weight in layer m.

    The paper's worked example: edge (40 -> 27), here (1 -> 0), occurs twice in the tree of target 27, here 0. Its
    weight is 0.25 in the last layer and 0.9 in the first layer; from there the flow passes the last layer's self-loop,
    0.25:

    >>> import torch
    >>> from attree.attention import Attention, Graph
    >>> graph = Graph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> attention = Attention.from_weights(graph, [torch.tensor([0.9, 0.1, 1.0]), torch.tensor([0.25, 0.25, 1.0])])
    >>> round(GAtt().attribute(attention, 0).dense(0)[0].item(), 6)  # 0.25 + 0.9 * 0.25
    0.475
    """

    name = "gatt"
    label = "GAtt"

    def score(self, block: EdgeBlock) -> Tensor:
        return block.weighted()


class GAttSim(FlowMethod):
    r"""GAtt without contribution adjustment: the sum of an edge's attention over its occurrences in the tree.

    .. math:: \sum_{m=1}^{L} n_m(j) \, [\mathbf{A}(m)]_{j,i}

    Here :math:`n_m(j)` is the number of flows from j to the target through layers m+1 ... L.
    """

    name = "gatt_sim"
    label = "GAtt-sim"
    weighs_branches = False

    def walk_weights(self, alphas: list[Tensor], used: list[Tensor]) -> list[Tensor]:
        return used

    def walk_everywhere(self, trace: GlobalTrace) -> GlobalTrace:
        return trace.uniform(total=True)

    def score(self, block: EdgeBlock) -> Tensor:
        return block.weighted()


class GAttAvg(FlowMethod):
    r"""GAtt without the proximity effect: GAtt divided by the number of flows that start with the edge."""

    name = "gatt_avg"
    label = "GAtt-avg"
    counts_flows = True

    def score(self, block: EdgeBlock) -> Tensor:
        return self.of_terms(self.terms(block), block.table.graph, block.edges, block.edges)

    def terms(self, block: EdgeBlock) -> tuple[Tensor, ...]:
        return block.weighted(), block.flows()

    def of_terms(self, terms: Sequence[Tensor], graph: Graph, targets: Tensor, edges: Tensor) -> Tensor:
        weighted, flows = terms
        # Edges without any flow divide 0 by 1; they are dropped from the result.
        return weighted / flows.clamp(min=1).to(weighted.dtype)
