"""The one verb of every attribution method: `attribute`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.attribution.blocks import EdgeBlock, LayerTable, edge_blocks
from attree.attribution.flows import Frontier, Start, stream_frontiers
from attree.attribution.pair_walk import PairWalk
from attree.attribution.pairs import Pairs
from attree.attribution.readout import Readout, readout_start
from attree.attribution.result import Attribution
from attree.errors import expect
from attree.memory import WALK_MEMORY
from attree.ragged import pointers

Targets = int | Sequence[int] | Tensor | Literal["all"]
"""What can be explained: one node, several, or every node of the graph."""


class AttributionMethod(ABC):
    """Scores edges from captured attention.

    A method says how a walk is weighted (`walk_weights`) and what an edge that carries a flow scores (`score`); the
    walk over all targets, the memory bound and the result are the same for all.

    Args:
        heads: The head to read in each layer; None averages all heads.
    """

    name: ClassVar[str]
    counts_flows: ClassVar[bool] = False

    def __init__(self, heads: Sequence[int] | None = None) -> None:
        self.heads = None if heads is None else tuple(heads)

    def attribute(self, attention: Attention, targets: Targets = "all", memory: int = WALK_MEMORY) -> Attribution:
        """Score, for every target, all edges that carry a flow to it.

        Args:
            attention: What the network attended to.
            targets: Nodes to explain.
            memory: Bytes of working memory; the result itself comes on top.
        """
        return self.attribute_from(attention, Start.at_nodes(as_targets(targets, attention.graph)), memory)

    def attribute_graphs(
        self,
        attention: Attention,
        batch: Tensor | None = None,
        readout: Readout = "sum",
        graphs: int | Sequence[int] | Tensor | None = None,
        memory: int = WALK_MEMORY,
    ) -> Attribution:
        """Score, for every graph of a batch, all its edges: the readout is the last step of the computation tree.

        Args:
            attention: What the network attended to.
            batch: The graph that each node belongs to, [num_nodes], as PyG batches graphs; None for a single graph.
            readout: How nodes become a graph: `sum` weighs each by 1, `mean` by 1 / n, `max` by the share of channels
                that it wins in `attention.embedding`; or any weights, [num_nodes].
            graphs: Ids of the graphs to explain; None explains all that have nodes.
            memory: Bytes of working memory; the result itself comes on top.

        Returns:
            A result whose targets are ids of graphs.
        """
        return self.attribute_from(attention, readout_start(attention, batch, readout, graphs), memory)

    def score_pairs(self, attention: Attention, pairs: Pairs, walk: PairWalk | None = None) -> Tensor:
        """Score the pairs that explanations are judged on, [P]; pairs without a flow score 0.

        Args:
            attention: What the network attended to.
            pairs: The pairs.
            walk: The walks behind the pairs, if they were kept from an earlier time.
        """
        if walk is None or any(present is not None for present in attention.present):
            return pairs.scores(self.attribute(attention, pairs.targets))
        fits = walk.pairs is pairs and len(walk.walk.places) == attention.num_layers
        expect(fits, "walk", "the walks of these pairs through as many layers", "others")
        table = LayerTable.of(attention, self.heads)
        weights = self.walk_weights(table.alphas, table.used)
        frontier = walk.walk.pull(weights, table.used if self.counts_flows else None)
        score = self.score(EdgeBlock(table, frontier, walk.entry, walk.place, walk.edges))
        return score.new_zeros(len(pairs)).index_copy_(0, walk.pair, score)

    def stream(
        self, attention: Attention, targets: Targets = "all", memory: int = WALK_MEMORY
    ) -> Iterator[Attribution]:
        """As `attribute`, but yields the result in parts of consecutive targets that fit into `memory` bytes."""
        yield from self.stream_from(attention, Start.at_nodes(as_targets(targets, attention.graph)), memory)

    def attribute_from(self, attention: Attention, start: Start, memory: int = WALK_MEMORY) -> Attribution:
        """As `attribute`, from any start of the walk, such as a readout over the nodes of a graph."""
        table = LayerTable.of(attention, self.heads)
        return self._score(table, start.targets, list(self._walk(table, start, memory)))

    def stream_from(self, attention: Attention, start: Start, memory: int = WALK_MEMORY) -> Iterator[Attribution]:
        """As `stream`, from any start of the walk, such as a readout over the nodes of a graph."""
        table = LayerTable.of(attention, self.heads)
        for frontier in self._walk(table, start, memory):
            yield self._score(table, frontier.targets, [frontier])

    def _walk(self, table: LayerTable, start: Start, memory: int) -> Iterator[Frontier]:
        counted = self.counts_flows or table.used_rows is not None
        weights = self.walk_weights(table.alphas, table.used)
        return stream_frontiers(table.graph, start, weights, table.used if counted else None, memory)

    def _score(self, table: LayerTable, targets: Tensor, frontiers: list[Frontier]) -> Attribution:
        """Score the walks of consecutive targets into one result."""
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
                found, score = block.edges, self.score(block)
                if table.used_rows is not None:
                    idle = block.flows() == 0
                    size.index_add_(0, block.frontier.owner.index_select(0, block.owner[idle]), -idle[idle].long())
                    found, score = found[~idle], score[~idle]
                begin, end = end, end + found.numel()
                edges[begin:end] = found
                scores[begin:end] = score
        if end < total:
            edges, scores = edges[:end].clone(), scores[:end].clone()
        ptr = pointers(torch.cat(sizes) if sizes else degree[:0])
        return Attribution(self.name, table.graph, targets, ptr, edges, scores)

    def hops(self, num_layers: int) -> int:
        """How far around a target the network must see the graph for scores to be those of the full graph."""
        return num_layers

    def walk_weights(self, alphas: list[Tensor], used: list[Tensor]) -> list[Tensor]:
        """The factor that a flow takes on each edge of each layer; by default its attention."""
        return alphas

    @abstractmethod
    def score(self, block: EdgeBlock) -> Tensor:
        """Scores of the listed edges."""


def as_targets(targets: Targets, graph: LoopedGraph) -> Tensor:
    """Node ids to explain as a tensor on the graph's device, checked."""
    if isinstance(targets, str):
        expect(targets == "all", "targets", "'all', an integer or several", targets)
        return torch.arange(graph.num_nodes, device=graph.device)
    nodes = torch.as_tensor(targets, device=graph.device)
    if nodes.dtype == torch.bool:
        expect(
            nodes.shape == (graph.num_nodes,),
            "targets",
            f"a mask of {graph.num_nodes} nodes",
            tuple(nodes.shape),
        )
        return nodes.nonzero().view(-1)
    nodes = nodes.reshape(-1)
    expect(nodes.numel() == 0 or not nodes.is_floating_point(), "targets", "integers", nodes.dtype)
    nodes = nodes.long()
    outside = nodes[(nodes < 0) | (nodes >= graph.num_nodes)]
    expect(outside.numel() == 0, "targets", f"node ids in [0, {graph.num_nodes})", outside[:3].tolist())
    expect(nodes.unique().numel() == nodes.numel(), "targets", "distinct node ids", "some more than once")
    return nodes
