"""Baselines for GAtt: average attention, uniform attention and random scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from attree.attention.alignment import Aligned, even_weights
from attree.attention.capture import Attention
from attree.attention.graph import Graph
from attree.attribution.gatt import EdgeBlock, FlowMethod, GAtt, LayerTable, score_dtype
from attree.attribution.method import as_subject
from attree.attribution.pairs import Pairs
from attree.errors import expect_seed
from attree.subject import Subject
from attree.subject.local_and_global_layers import GlobalTrace


class AvgAtt(FlowMethod):
    """AvgAtt (Ying et al., 2019): attention averaged over layers and heads, the same for every target."""

    name = "avgatt"
    label = "AvgAtt"
    reads_edges_only = True

    def score(self, block: EdgeBlock) -> Tensor:
        rows = block.table.alpha_rows
        return sum((row.index_select(0, block.place) for row in rows), rows.new_zeros(())) / rows.shape[0]

    def table(self, attention: Attention) -> LayerTable:
        """Return the attention layers; other layers carry flows, but have no attention to average."""
        table = super().table(attention)
        if attention.attends is None:
            return table
        attending = torch.tensor(attention.attends, device=table.alpha_rows.device)
        scale = attending.numel() / int(attending.sum())
        return replace(table, alpha_rows=table.alpha_rows * (attending.to(table.alpha_rows.dtype) * scale).unsqueeze(1))

    def hops(self, num_layers: int) -> int:
        """Return about twice the reach of flows: the method also reads late layers at nodes that flows reach early."""
        return 2 * num_layers - 1

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """Score every pair by its attention; edges without a flow to the target keep their score."""
        subject = as_subject(subject)
        attention = subject.attention
        self.check_subject(subject, subject.global_trace)
        pairs.check(attention.graph)
        return torch.stack(_of_attention_layers(attention, attention.per_edge(self.heads))).mean(dim=0)[pairs.edges]


class Uniform(GAtt):
    """GAtt with uniform attention: all edges of a softmax have the same weight.

    The score shows how much the computation tree explains by itself. An edge weighs 1 / the number of edges that enter
    its destination, including the self-loop if the layer uses it.

    Args:
        heads: Unused; accepted so that all methods have the same arguments.
    """

    name = "uniform"
    label = "Uniform"

    def walk_everywhere(self, trace: GlobalTrace) -> GlobalTrace:
        return trace.uniform()

    def table(self, attention: Attention) -> LayerTable:
        attention = attention.walked
        uniform_weights = attention.uniform_weights or (None,) * len(attention.weights)
        layers = zip(attention.weights, attention.present, uniform_weights, strict=True)
        weights = tuple(even_weights(Aligned(*layer), attention.graph).unsqueeze(1) for layer in layers)
        return LayerTable.of(replace(attention, weights=weights), None)


class Structure(Uniform):
    """The computation tree alone: a walk by the fixed factors of the layers, for any network.

    An edge's factor is 1 in a sum, 1 / n in a mean of n messages, the normalisation of a GCN, the share of the channels
    in which a maximum takes it. Attention layers count as uniform. The score holds nothing that the network learned: it
    is a baseline.
    """

    name = "structure"
    label = "Structure"
    needs_attention = False


def _of_attention_layers(attention: Attention, values: list[Tensor]) -> list[Tensor]:
    """Return the values of the layers that have attention."""
    if attention.attends is None:
        return values
    return [value for value, attends in zip(values, attention.attends, strict=True) if attends]


class Random(FlowMethod):
    """Uniform random scores in [0, 1).

    A score depends only on the seed, the target and the edge. So a pair gets the same score for any split of targets
    into chunks, processes or devices.

    Args:
        seed: Seed of the scores.
        heads: Unused; accepted so that all methods have the same arguments.
    """

    name = "random"
    label = "Random"
    is_random = True
    needs_attention = False

    def __init__(self, seed: int = 0, heads: Sequence[int] | None = None) -> None:
        super().__init__(heads)
        self.seed = expect_seed(seed)

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        return cls(seed, heads)

    def draws(self, count: int) -> list[Random]:
        return [Random(self.seed + draw, self.heads) for draw in range(count)]

    def score(self, block: EdgeBlock) -> Tensor:
        return self.draw_scores(block.table.graph, block.targets, block.edges, block.table.alpha_rows.dtype)

    def terms(self, block: EdgeBlock) -> tuple[Tensor, ...]:
        return (block.table.alpha_rows.new_zeros(block.edges.numel()),)

    def of_terms(self, terms: Sequence[Tensor], graph: Graph, targets: Tensor, edges: Tensor) -> Tensor:
        return self.draw_scores(graph, targets, edges, terms[0].dtype)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """Score every pair at random, with or without a flow."""
        attention = as_subject(subject).layers
        pairs.check(attention.graph)
        return self.draw_scores(pairs.graph, pairs.targets[pairs.owner], pairs.edges, score_dtype(attention))

    def draw_scores(self, graph: Graph, targets: Tensor, edges: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the scores of targets and edges, which are the same on a part of a graph as on the whole."""
        return hashed_uniform(self.seed, graph.whole_nodes(targets), graph.whole_edges(edges), dtype)


def hashed_uniform(seed: int, first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uniform numbers in [0, 1) as a fixed function of three integers (splitmix64's finaliser, chained).

    The numbers have as many random bits as the dtype can hold; with more, some would round up to 1.
    """
    state = _mix(torch.full_like(first, seed))
    state = _mix(state + first)
    state = _mix(state + second)
    bits = 1 - round(math.log2(torch.finfo(dtype).eps))
    return _shift(state, 64 - bits).to(dtype) * 2.0**-bits


def _mix(state: Tensor) -> Tensor:
    """Apply one splitmix64 step; int64 products wrap around as required."""
    state = state + _signed(0x9E3779B97F4A7C15)
    state = (state ^ _shift(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Shift right logically; torch's own shift keeps the sign."""
    return (state >> bits) & (2 ** (64 - bits) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
