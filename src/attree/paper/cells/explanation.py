"""How well one method finds the true edges, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

import torch

from attree.attribution import METHODS
from attree.data import GroundTruth
from attree.errors import expect
from attree.evaluation import Evaluator, MetricName
from attree.evaluation.names import TRUTH
from attree.paper.cells.base import Cell, Result
from attree.paper.cells.workshop import Workshop
from attree.paper.net import Net
from attree.subject import Subject


@dataclass(frozen=True)
class Explanation(Cell):
    """AUROC of one method against ground truth over all targets that have some, and the seconds it takes.

    Attributes:
        net: The network.
        method: Name of the method.
        targets: How many of the targets are explained, evenly spread over them; None for all.
    """

    net: Net
    method: str
    targets: int | None = None
    kind: ClassVar[str] = "explanation"

    def __str__(self) -> str:
        return f"{self.method} on {self.net}"

    @property
    def dataset(self) -> str:
        return self.net.dataset

    def measure(self, shop: Workshop) -> Result:
        expect(self.method in METHODS, "method", f"one of {', '.join(METHODS)}", self.method)
        model, accuracy = shop.model(self.net)
        data = shop.node_data(self.net.dataset, self.net.layers, self.net.seed)
        assert data.truth is not None
        truth = some_of(data.truth, self.targets)
        subject = Subject.of_data(model, data.graph)
        evaluator = Evaluator(subject, truth.targets[:1], [self.method], (), truth)
        began = perf_counter()
        evaluation = evaluator.evaluate()
        taken = perf_counter() - began
        return {
            "accuracy": accuracy,
            "targets": truth.num_targets,
            "of": data.truth.num_targets,
            "auroc": evaluation.metrics[str(MetricName(self.method, TRUTH))],
            "runtime": taken,
        }


def some_of(truth: GroundTruth, count: int | None) -> GroundTruth:
    """The ground truth of `count` targets, evenly spread; of all if None or if there are no more."""
    if count is None or count >= truth.num_targets:
        return truth
    places = (torch.arange(count) * truth.num_targets) // count
    if truth.ptr is None:
        return GroundTruth(truth.targets[places], truth.edges)
    kept = [torch.arange(int(truth.ptr[place]), int(truth.ptr[place + 1])) for place in places.tolist()]
    ptr = torch.tensor([0, *(one.numel() for one in kept)]).cumsum(0)
    return GroundTruth(truth.targets[places], truth.edges[:, torch.cat(kept)], ptr)
