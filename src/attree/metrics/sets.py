"""Metrics of sets of edges as `torchmetrics.Metric` classes; `attree.metrics.functional.sets` has the functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from attree.metrics.functional.sets import characterization_score, fidelity, unfaithfulness


class _MeanOverTargets(Metric):
    """Mean of one value per target, over all processes."""

    is_differentiable = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def add(self, values: Tensor) -> None:
        """Add the values of some targets."""
        self.total = self.total + values.sum().to(self.total)
        self.count = self.count + values.numel()

    def compute(self) -> Tensor:
        """Return the mean; NaN without targets."""
        return self.total / self.count


class Fidelity(_MeanOverTargets):
    """Share of targets whose prediction changes when edges are masked: fidelity+ or fidelity-.

    >>> metric = Fidelity()
    >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 2]))
    >>> metric.compute()
    tensor(0.5000)
    """

    def update(self, predicted: Tensor, predicted_after: Tensor) -> None:
        """Add targets: their predicted classes with all edges and with some edges masked."""
        self.add(fidelity(predicted, predicted_after))


class Unfaithfulness(_MeanOverTargets):
    """Distance of the predictions from the chosen edges alone to the predictions from all edges, mean over targets.

    >>> metric = Unfaithfulness()
    >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    higher_is_better = False

    def update(self, probability: Tensor, probability_after: Tensor) -> None:
        """Add targets: their class probabilities with all edges and with the chosen edges alone."""
        self.add(unfaithfulness(probability, probability_after))


class CharacterizationScore(Metric):
    """Weighted harmonic mean of fidelity+ and 1 - fidelity-.

    Args:
        weight: Weight of fidelity+, in (0, 1).
        kwargs: Arguments of `torchmetrics.Metric`.

    >>> metric = CharacterizationScore()
    >>> metric.update(torch.tensor([0, 1]), without=torch.tensor([0, 2]), alone=torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.6667)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, weight: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = weight
        self.positive, self.negative = Fidelity(**kwargs), Fidelity(**kwargs)

    def update(self, predicted: Tensor, without: Tensor, alone: Tensor) -> None:
        """Add targets: their predicted classes with all edges, without the chosen edges, and with these alone."""
        self.positive.update(predicted, without)
        self.negative.update(predicted, alone)

    def compute(self) -> Tensor:
        """Return the score over all targets."""
        return characterization_score(self.positive.compute(), self.negative.compute(), self.weight)

    def reset(self) -> None:
        """Remove all targets."""
        super().reset()
        self.positive.reset()
        self.negative.reset()
