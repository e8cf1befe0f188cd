"""GAtt by four calculations: the paper's three and attree's, timed on the same targets and checked to agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from attree.attention.capture import Attention, capture_attention
from attree.attribution import ComputationTree, GAtt
from attree.attribution.subject_pairs import subgraph_pairs
from attree.errors import expect
from attree.paper.cells.base import Cell, Result
from attree.paper.cells.workshop import Workshop
from attree.paper.net import Net

Calculate = Callable[[Attention, Tensor], list[Tensor]]
"""Scores of every edge of the graph for each target, by one calculation, from attention that is at hand."""


def by_subtree(attention: Attention, targets: Tensor) -> list[Tensor]:
    """The definition: build the rooted subtree, and add the product of attention along every flow."""
    found = []
    for target in targets.tolist():
        tree = ComputationTree(attention, target)
        scores = torch.zeros(attention.graph.num_edges)
        products = [1.0] * len(tree)
        for position, node in enumerate(tree.nodes):
            if node.parent >= 0:
                products[position] = products[node.parent] * node.attention
                scores[node.edge] += products[position]
        found.append(scores)
    return found


def by_matrix(attention: Attention, targets: Tensor) -> list[Tensor]:
    """The paper's proposition: powers of attention matrices once, then a sum over layers for every single edge."""
    source, destination = attention.graph.edge_index
    matrices = _matrices(attention)
    carried = _carried(matrices)
    near = subgraph_pairs(attention.graph, targets, attention.num_layers)
    found = []
    for position, target in enumerate(targets.tolist()):
        scores = torch.zeros(attention.graph.num_edges)
        for edge in near.edges[int(near.ptr[position]) : int(near.ptr[position + 1])].tolist():
            i, j = int(source[edge]), int(destination[edge])
            scores[edge] = sum(
                float(carry[target, j]) * float(matrix[j, i]) for carry, matrix in zip(carried, matrices, strict=True)
            )
        found.append(scores)
    return found


def by_batch(attention: Attention, targets: Tensor) -> list[Tensor]:
    """The paper's batch calculation: whole matrices times whole matrices, target by target."""
    source, destination = attention.graph.edge_index
    matrices = _matrices(attention)
    carried = _carried(matrices)
    found = []
    for target in targets.tolist():
        total = torch.zeros_like(matrices[0])
        for carry, matrix in zip(carried, matrices, strict=True):
            total += carry[target].unsqueeze(1) * matrix
        found.append(total[destination, source])
    return found


def by_attree(attention: Attention, targets: Tensor) -> list[Tensor]:
    """attree: one sparse walk back from all targets together."""
    result = GAtt().attribute(attention, targets)
    return [result.dense(target) for target in targets.tolist()]


def _matrices(attention: Attention) -> list[Tensor]:
    """A(l)[j, i] of every layer, dense."""
    source, destination = attention.graph.edge_index
    matrices = []
    for weights in attention.per_edge():
        matrix = torch.zeros(attention.graph.num_nodes, attention.graph.num_nodes)
        matrix[destination, source] = weights
        matrices.append(matrix)
    return matrices


def _carried(matrices: list[Tensor]) -> list[Tensor]:
    """C_L(L - m) of every layer m, dense: what of a node at the end of layer m arrives at each target."""
    carried = [torch.eye(matrices[0].shape[0])]
    for matrix in reversed(matrices[1:]):
        carried.append(carried[-1] @ matrix)
    return carried[::-1]


CALCULATIONS: dict[str, tuple[str, Calculate]] = {
    "subtree": ("rooted subtree", by_subtree),
    "matrix": ("matrix form, edge by edge", by_matrix),
    "batch": ("batch calculation", by_batch),
    "attree": ("attree", by_attree),
}
"""The calculations by name: what they are called, and what they do."""


@dataclass(frozen=True)
class Calculation(Cell):
    """Seconds that one calculation of GAtt takes for some targets, once attention is at hand.

    Attributes:
        net: The network.
        calculation: One of `CALCULATIONS`.
        targets: How many of the targets with ground truth are explained; None for all.
    """

    net: Net
    calculation: str
    targets: int | None = None
    kind: ClassVar[str] = "calculation"

    def __str__(self) -> str:
        return f"GAtt by {CALCULATIONS[self.calculation][0]} on {self.net}"

    @property
    def dataset(self) -> str:
        return self.net.dataset

    def measure(self, shop: Workshop) -> Result:
        expect(self.calculation in CALCULATIONS, "calculation", f"one of {', '.join(CALCULATIONS)}", self.calculation)
        model, _ = shop.model(self.net)
        data = shop.node_data(self.net.dataset, self.net.layers, self.net.seed)
        assert data.truth is not None
        every = data.truth.targets
        targets = every[: every.numel() if self.targets is None else self.targets]
        attention = capture_attention(model, data.graph.x, data.graph.edge_index)
        expected = by_attree(attention, targets)
        began = perf_counter()
        found = CALCULATIONS[self.calculation][1](attention, targets)
        taken = perf_counter() - began
        gap = max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))
        return {"runtime": taken, "targets": targets.numel(), "of": every.numel(), "largest_gap": gap}
