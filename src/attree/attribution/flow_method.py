"""Methods that follow the flows of the computation tree: one walk for all targets, one score an edge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.wiring import Wiring
from attree.attribution.blocks import EdgeBlock, LayerTable, edge_blocks
from attree.attribution.flows import Frontier, stream_frontiers
from attree.attribution.method import AttributionMethod, as_subject
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.errors import expect, expect_ints, expect_memory
from attree.subject import Subject
from attree.subject.roots import Roots, Targets
from attree.tensors.limits import WALK_MEMORY
from attree.tensors.ragged import pointers

Skips = Literal["ignore", "follow"]
"""What a walk does with ways around layers."""


class FlowMethod(AttributionMethod):
    """Scores the edges that carry flows to a target, from attention.

    A method says how a walk is weighted (`walk_weights`) and what an edge that carries a flow scores (`score`); the
    walk over all targets, the memory bound and the result are the same for all. `counts_flows` is whether it needs the
    number of flows, `weighs_branches` whether flows through branches take the factors of these.

    Args:
        heads: The head to read in each layer; None averages all heads.
        skips: What goes around layers (residuals, jumping knowledge): `ignore` walks through the layers alone, `follow`
            also takes the ways around them, each with the factor that it was combined with. Skips that are not
            combined linearly (a maximum, an LSTM) are ignored.
    """

    counts_flows: ClassVar[bool] = False
    weighs_branches: ClassVar[bool] = True

    def __init__(self, heads: Sequence[int] | None = None, skips: Skips = "ignore") -> None:
        self.heads = None if heads is None else expect_ints(heads, "heads", "head numbers, one a layer, or None")
        expect(skips in ("ignore", "follow"), "skips", "'ignore' or 'follow'", skips)
        self.skips: Skips = skips

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        return cls(heads)

    def table(self, attention: Attention) -> LayerTable:
        """What the method reads: by default the attention of the chosen heads."""
        return LayerTable.of(attention, self.heads)

    def walk_weights(self, alphas: list[Tensor], used: list[Tensor]) -> list[Tensor]:
        """The factor that a flow takes on each edge of each layer; by default its attention."""
        return alphas

    @abstractmethod
    def score(self, block: EdgeBlock) -> Tensor:
        """Scores of the listed edges."""

    def attribute(
        self, subject: Subject | Attention, targets: Targets = "all", memory: int = WALK_MEMORY
    ) -> Attribution:
        """Score, for every target, all edges that carry a flow to it.

        Args:
            subject: What is explained, or its attention alone.
            targets: Nodes, or graphs of a graph-level subject.
            memory: Bytes of working memory; the result itself comes on top.
        """
        subject = as_subject(subject)
        return self.attribute_from(subject.attention, subject.roots(targets), memory)

    def stream(
        self, subject: Subject | Attention, targets: Targets = "all", memory: int = WALK_MEMORY
    ) -> Iterator[Attribution]:
        """As `attribute`, but yields the result in parts of consecutive targets that fit into `memory` bytes."""
        subject = as_subject(subject)
        yield from self.stream_from(subject.attention, subject.roots(targets), memory)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """Score the pairs, [P]; those without a flow score 0. Their walks are found once and kept with them."""
        subject = as_subject(subject)
        attention = subject.attention
        pairs.check(attention.graph, attention.num_layers)
        walk = None if any(present is not None for present in attention.present) else pairs.walk
        if walk is None:
            return super().score_pairs(subject, pairs)
        table = self.table(attention)
        weights = self.walk_weights(table.alphas, table.used)
        frontier = walk.walk.pull(weights, table.used if self.counts_flows else None, self._wiring(table))
        score = self.score(EdgeBlock(table, frontier, walk.entry, walk.place, walk.edges))
        return score.new_zeros(len(pairs)).index_copy_(0, walk.pair, score)

    def attribute_from(self, attention: Attention, roots: Roots, memory: int = WALK_MEMORY) -> Attribution:
        """As `attribute`, from any roots."""
        table = self.table(attention)
        scored = self._score(table, roots.targets, list(self._walk(table, roots, memory)))
        return replace(scored, node_type=roots.node_type)

    def stream_from(self, attention: Attention, roots: Roots, memory: int = WALK_MEMORY) -> Iterator[Attribution]:
        """As `stream`, from any roots."""
        table = self.table(attention)
        for frontier in self._walk(table, roots, memory):
            yield replace(self._score(table, frontier.targets, [frontier]), node_type=roots.node_type)

    def hops(self, num_layers: int) -> int:
        """How far around a target the network must see the graph for scores to be those of the full graph."""
        return num_layers

    def _walk(self, table: LayerTable, roots: Roots, memory: int) -> Iterator[Frontier]:
        expect_memory(memory)
        counted = self.counts_flows or table.used_rows is not None
        weights = self.walk_weights(table.alphas, table.used)
        counts = table.used if counted else None
        return stream_frontiers(table.graph, roots, weights, counts, memory, self._wiring(table))

    def _wiring(self, table: LayerTable) -> Wiring:
        wiring = (table.wiring.followed if self.skips == "follow" else None) or table.wiring
        return wiring if self.weighs_branches else wiring.without_factors()

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
