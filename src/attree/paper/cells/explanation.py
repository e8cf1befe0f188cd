"""How well one method finds the true edges, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

from attree.attribution import METHODS, AttributionMethod
from attree.errors import expect
from attree.evaluation import EvaluationConfig, Evaluator, MetricName
from attree.evaluation.names import TRUTH
from attree.paper.cells.base import Cell, Result
from attree.paper.cells.cell_context import CellContext
from attree.paper.net import Net
from attree.subject import Subject


@dataclass(frozen=True)
class Explanation(Cell):
    """AUROC of one method against ground truth over all targets that have some, and the seconds it takes.

    Attributes:
        net: The network.
        method: Name of the method.
        self_loops: Mask self-loops too where the method can, as on graphs that hold them as edges.
    """

    net: Net
    method: str
    self_loops: bool = False
    kind: ClassVar[str] = "explanation"

    def __str__(self) -> str:
        return f"{self.method}{' with self-loops' if self.self_loops else ''} on {self.net}"

    @property
    def dataset(self) -> str:
        return self.net.dataset

    def measure(self, context: CellContext) -> Result:
        expect(self.method in METHODS, "method", f"one of {', '.join(METHODS)}", self.method)
        model, accuracy = context.model(self.net)
        data = context.node_data(self.net.dataset, self.net.layers, self.net.seed)
        assert data.truth is not None
        settings: dict[str, Any] = {"self_loops": True} if self.self_loops else {}
        make: Callable[..., AttributionMethod] = METHODS[self.method]
        subject = Subject.of_data(model, data.graph)
        evaluator = Evaluator(subject, data.truth.targets[:1], EvaluationConfig([make(**settings)], ()), data.truth)
        began = perf_counter()
        evaluation = evaluator.evaluate()
        taken = perf_counter() - began
        return {
            "accuracy": accuracy,
            "targets": data.truth.num_targets,
            "auroc": evaluation.metrics[str(MetricName(self.method, TRUTH))],
            "runtime": taken,
        }
