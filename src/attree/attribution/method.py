"""The one verb of every attribution method: `attribute`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph, expand_rows
from attree.attribution.flows import DEFAULT_MEMORY, Frontier, Start, stream_frontiers
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.errors import expect

Targets = int | Sequence[int] | Tensor | Literal["all"]
"""What can be explained: one node, several, or every node of the graph."""


@dataclass(frozen=True)
class EdgeBlock:
    """The edges that carry flows to some targets, listed row by row, with all that a score can depend on.

    Attributes:
        frontier: The walk.
        owner: For each edge, the frontier entry whose node it enters.
        place: For each edge, its position among the entering edges.
        edges: For each edge, its id in `graph.edge_index`.
        alpha_rows: Attention by position among the entering edges, [num_edges, L].
        used_rows: 1 where the layer uses the edge, else 0; None if flows are not counted.
    """

    frontier: Frontier
    owner: Tensor
    place: Tensor
    edges: Tensor
    alpha_rows: Tensor
    used_rows: Tensor | None

    def weighted(self) -> Tensor:
        """Sum over the layers of r[destination] * attention."""
        weight = self.frontier.weight.T.to(self.alpha_rows.dtype).contiguous()
        return (weight[self.owner] * self.alpha_rows[self.place]).sum(dim=1)

    def flows(self) -> Tensor:
        """Number of flows that start with each edge."""
        assert self.frontier.count is not None
        assert self.used_rows is not None
        count = self.frontier.count.T.contiguous()
        return (count[self.owner] * self.used_rows[self.place]).sum(dim=1)


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

    def attribute(self, attention: Attention, targets: Targets = "all", memory: int = DEFAULT_MEMORY) -> Attribution:
        """Score, for every target, all edges that carry a flow to it.

        Args:
            attention: What the network attended to.
            targets: Nodes to explain.
            memory: Bytes of working memory; the result itself comes on top.
        """
        parts = list(self.stream(attention, targets, memory))
        return parts[0] if len(parts) == 1 else Attribution.concat(parts)

    def score_pairs(self, attention: Attention, pairs: Pairs) -> Tensor:
        """Score the pairs that explanations are judged on, [P]; pairs without a flow score 0."""
        return pairs.scores(self.attribute(attention, pairs.targets))

    def stream(
        self, attention: Attention, targets: Targets = "all", memory: int = DEFAULT_MEMORY
    ) -> Iterator[Attribution]:
        """As `attribute`, but yields the result in parts of consecutive targets that fit into `memory` bytes."""
        yield from self.stream_from(attention, Start.at_nodes(as_targets(targets, attention.graph)), memory)

    def stream_from(self, attention: Attention, start: Start, memory: int = DEFAULT_MEMORY) -> Iterator[Attribution]:
        """As `stream`, from any start of the walk, such as a readout over the nodes of a graph."""
        graph, alphas = attention.graph, attention.per_edge(self.heads)
        used = [
            torch.ones_like(alpha) if present is None else present.to(alpha.dtype)
            for alpha, present in zip(alphas, attention.present, strict=True)
        ]
        partial = any(present is not None for present in attention.present)
        frontiers = stream_frontiers(
            graph,
            start,
            self.walk_weights(alphas, used),
            used if self.counts_flows or partial else None,
            memory,
        )
        # In the order of the entering edges, so that a row is one run of memory.
        alpha_rows = torch.stack(alphas, dim=1)[graph.entering.edges]
        used_rows = torch.stack(used, dim=1)[graph.entering.edges] if self.counts_flows or partial else None
        empty = True
        for frontier in frontiers:
            empty = False
            owner, place = expand_rows(graph.entering, frontier.node)
            block = EdgeBlock(frontier, owner, place, graph.entering.edges[place], alpha_rows, used_rows)
            yield self._score_part(graph, block, partial)
        if empty:
            none = start.targets.new_zeros(0)
            yield Attribution(self.name, graph, start.targets, start.targets.new_zeros(1), none, alphas[0].new_zeros(0))

    def _score_part(self, graph: LoopedGraph, block: EdgeBlock, partial: bool) -> Attribution:
        scores, edges, frontier = self.score(block), block.edges, block.frontier
        if partial:
            carries = block.flows() > 0
            edges, scores = edges[carries], scores[carries]
            sizes = frontier.owner[block.owner[carries]].bincount(minlength=frontier.targets.numel())
        else:
            degree = graph.entering.degree[frontier.node]
            sizes = degree.new_zeros(frontier.targets.numel()).index_add_(0, frontier.owner, degree)
        ptr = sizes.new_zeros(sizes.numel() + 1)
        torch.cumsum(sizes, dim=0, out=ptr[1:])
        return Attribution(self.name, graph, frontier.targets, ptr, edges, scores)

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
