"""Cells for explanation accuracy: a method's AUROC and runtime, and the runtime of four ways to compute GAtt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

import torch
from scipy.sparse import csr_matrix, identity
from torch import Tensor

from attree.attention.capture import Attention, capture_attention
from attree.attribution import METHODS, AttributionMethod, ComputationTree, GAtt
from attree.attribution.subgraphs import subgraph_pairs
from attree.errors import expect
from attree.evaluation import EvaluationConfig, Evaluator, MetricName
from attree.evaluation.metric_names import TRUTH
from attree.paper.cells.base import CellContext, NetCell, Result
from attree.subject import Subject


@dataclass(frozen=True)
class Explanation(NetCell):
    """AUROC of a method against ground truth, over all targets with ground truth, and its runtime.

    Attributes:
        method: Name of the method.
        self_loops: Also mask self-loops, if the method can, as on graphs that contain self-loops as edges.
    """

    method: str
    self_loops: bool = False
    kind: ClassVar[str] = "explanation"

    def __str__(self) -> str:
        return f"{self.method}{' with self-loops' if self.self_loops else ''} on {self.net}"

    def measure(self, context: CellContext) -> Result:
        """Return the method's AUROC against ground truth, its runtime, and the network's test accuracy."""
        expect(self.method in METHODS, "method", f"one of {', '.join(METHODS)}", self.method)
        model, accuracy = context.model(self.net)
        data = context.node_data(self.net)
        assert data.truth is not None
        settings: dict[str, Any] = {"self_loops": True} if self.self_loops else {}
        make: Callable[..., AttributionMethod] = METHODS[self.method]
        subject = Subject.of_data(model, data.graph)
        evaluator = Evaluator(subject, data.truth.targets[:1], EvaluationConfig([make(**settings)], ()), data.truth)
        began = perf_counter()
        evaluation = evaluator.evaluate()
        seconds = perf_counter() - began
        return {
            "accuracy": accuracy,
            "targets": data.truth.num_targets,
            "auroc": evaluation.metrics[str(MetricName(self.method, TRUTH))],
            "runtime": seconds,
        }


Explain = Callable[[int], Tensor]
"""Returns the scores of all edges of the graph for a target."""

Prepare = Callable[[Attention], Explain]
"""Does the work that all targets share, and returns the function that explains a target."""


def by_subtree(attention: Attention) -> Explain:
    """GAtt by definition: build the rooted subtree, and add the product of attention along every flow."""

    def explain(target: int) -> Tensor:
        tree = ComputationTree(attention, target)
        scores = torch.zeros(attention.graph.num_edges)
        products = [1.0] * len(tree)
        for position, node in enumerate(tree.nodes):
            if node.parent >= 0:
                products[position] = products[node.parent] * node.attention
                scores[node.edge] += products[position]
        return scores

    return explain


def by_matrix(attention: Attention) -> Explain:
    """GAtt in matrix form (the paper's proposition): matrix products once, then a sum over layers for each edge."""
    source, destination = attention.graph.edge_index
    matrices, carried = _matrices(attention)

    def explain(target: int) -> Tensor:
        scores = torch.zeros(attention.graph.num_edges)
        for edge in subgraph_pairs(attention.graph, target, attention.num_layers).edges.tolist():
            i, j = int(source[edge]), int(destination[edge])
            layers = zip(carried, matrices, strict=True)
            scores[edge] = sum(float(carry[target, j]) * float(matrix[j, i]) for carry, matrix in layers)
        return scores

    return explain


def by_batch(attention: Attention) -> Explain:
    """GAtt by the paper's batch calculation: for each target, products of whole matrices."""
    source, destination = attention.graph.edge_index
    matrices, carried = _matrices(attention)

    def explain(target: int) -> Tensor:
        total = torch.zeros_like(matrices[0])
        for carry, matrix in zip(carried, matrices, strict=True):
            total += carry[target].unsqueeze(1) * matrix
        return total[destination, source]

    return explain


def _matrices(attention: Attention) -> tuple[list[Tensor], list[Tensor]]:
    """Return A(m) of every layer m, and C_L(L - m), the weight of each node after layer m in each target."""
    size = attention.graph.num_nodes
    source, destination = attention.graph.edge_index.numpy()
    sparse = [csr_matrix((weights.numpy(), (destination, source)), (size, size)) for weights in attention.per_edge()]
    carried = [identity(size, sparse[0].dtype, "csr")]
    for matrix in reversed(sparse[1:]):
        carried.append(carried[-1] @ matrix)
    return [torch.from_numpy(matrix.toarray()) for matrix in sparse], [
        torch.from_numpy(matrix.toarray()) for matrix in carried[::-1]
    ]


CALCULATIONS: dict[str, tuple[str, Prepare | None]] = {
    "subtree": ("rooted subtree", by_subtree),
    "matrix": ("matrix form, edge by edge", by_matrix),
    "batch": ("batch calculation", by_batch),
    "attree": ("attree", None),
}
"""Label and function of each calculation by name. attree needs no function, as it explains all targets together."""


@dataclass(frozen=True)
class Calculation(NetCell):
    """Runtime of a calculation of GAtt for some targets, from captured attention.

    Attributes:
        calculation: One of `CALCULATIONS`.
        targets: Number of targets with ground truth to explain; None for all.
    """

    calculation: str
    targets: int | None = None
    kind: ClassVar[str] = "calculation"

    def __str__(self) -> str:
        return f"GAtt by {CALCULATIONS[self.calculation][0]} on {self.net}"

    def measure(self, context: CellContext) -> Result:
        """Return the runtime of one calculation of GAtt, and the largest difference from attree's scores."""
        expect(self.calculation in CALCULATIONS, "calculation", f"one of {', '.join(CALCULATIONS)}", self.calculation)
        model, _ = context.model(self.net)
        data = context.node_data(self.net)
        assert data.truth is not None
        all_targets = data.truth.targets
        targets = all_targets[: all_targets.numel() if self.targets is None else self.targets]
        attention = capture_attention(model, data.graph.x, data.graph.edge_index)
        began = perf_counter()
        result = GAtt().attribute(attention, targets)
        seconds, preparing, gap = perf_counter() - began, 0.0, 0.0
        prepare = CALCULATIONS[self.calculation][1]
        if prepare is not None:
            began = perf_counter()
            explain = prepare(attention)
            preparing = perf_counter() - began
            dense_scores = [explain(target) for target in targets.tolist()]
            seconds = perf_counter() - began - preparing
            pairs = zip(dense_scores, targets.tolist(), strict=True)
            gap = max(float((scores - result.dense(target)).abs().max()) for scores, target in pairs)
        return {
            "preparing": preparing,
            "runtime": seconds,
            "targets": targets.numel(),
            "of": all_targets.numel(),
            "largest_gap": gap,
        }
