"""Run a model with other attention weights: uniform, permuted, or as different as possible with equal predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.eval_mode import eval_mode, score_tensor
from attree.attention.instruments import LayerCall, Softmax, Watcher, instrument
from attree.errors import UnsupportedModelError
from attree.subject import Subject

Change = Callable[[int, Tensor, Tensor, Softmax], Tensor]
"""Function `change(number, destination, scores, softmax)` that replaces the softmax `number` of a forward pass.

`destination` is the destination node of each scored edge. It returns the attention weights that the model then uses.
"""


def run_with(subject: Subject, change: Change) -> Tensor:
    """Return the model's output with every attention softmax replaced by `change`. Gradients work if enabled."""
    with eval_mode(subject.model), instrument(subject.model, _ChangedAttention(change)):
        return score_tensor(subject.call.run())


class _ChangedAttention(Watcher):
    """Replaces every softmax by a function."""

    def __init__(self, change: Change) -> None:
        self._change, self._num_softmaxes = change, 0

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        edges = call.scored_edges(scores.shape[0])
        if edges is None:
            raise UnsupportedModelError(
                f"Expected {type(call.conv).__name__} to apply its softmax to one score per edge of its input graph, "
                f"but {scores.shape[0]} scores do not match the edges: its attention cannot be replaced."
            )
        self._num_softmaxes += 1
        return self._change(self._num_softmaxes - 1, edges[1], scores, softmax)


def uniform(number: int, destination: Tensor, scores: Tensor, softmax: Softmax) -> Tensor:
    """Return uniform attention weights."""
    return softmax(torch.zeros_like(scores))


def permuted(seed: int) -> Change:
    """Return a function that permutes attention weights among the edges of each destination, equally in all heads."""

    def change(number: int, destination: Tensor, scores: Tensor, softmax: Softmax) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1000 + number)
        shuffled = torch.randperm(destination.numel(), generator=generator).to(destination.device)
        places = destination.argsort(stable=True)
        sources = shuffled[destination[shuffled].argsort(stable=True)]
        weights = softmax(scores)
        return torch.zeros_like(weights).index_copy(0, places, weights[sources])

    return change


@dataclass
class Adversary:
    """Searches for attention that differs from the model's own as much as possible, with nearly equal predictions.

    Each score before softmax gets its own shift, for every edge, head and layer. Adam maximises the distance between
    the shifted and the model's own weights (total variation per destination, mean over destinations with more than one
    edge), minus a penalty on predictions that move beyond `budget`. After Jain and Wallace, "Attention is not
    Explanation" (NAACL 2019), section 4.2. As Wiegreffe and Pinter (EMNLP 2019) note, training need not be able to
    reach such weights. They show that the predictions do not determine the attention.

    Attributes:
        budget: Largest allowed mean change of the predictions, as a total variation.
        steps: Number of steps of Adam.
        rate: Learning rate of Adam, in units of scores.
        penalty: Factor of the penalty on predictions that move beyond the budget.
    """

    budget: float = 0.01
    steps: int = 60
    rate: float = 0.3
    penalty: float = 50.0

    def search(self, subject: Subject, distance: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
        """Return the largest distance of attention that was found, and the model's output with that attention.

        Args:
            subject: The model call to explain.
            distance: Returns the distance of some outputs' predictions from the model's own.
        """
        shifts: list[Tensor] = []
        moved: list[Tensor] = []

        def change(number: int, destination: Tensor, scores: Tensor, softmax: Softmax) -> Tensor:
            if number == len(shifts):
                generator = torch.Generator().manual_seed(number)
                start = 0.01 * torch.randn(scores.shape, generator=generator)
                shifts.append(start.to(scores).requires_grad_())
            weights = softmax(scores + shifts[number])
            moved.append(_attention_distance(destination, softmax(scores), weights))
            return weights

        best = 0.0, subject.output
        with torch.inference_mode(False), torch.enable_grad():
            optimizer: torch.optim.Adam | None = None
            for _ in range(self.steps):
                moved.clear()
                output = run_with(subject, change)
                apart, attention = distance(output), torch.stack(moved).mean()
                if float(apart.detach()) <= self.budget and float(attention.detach()) > best[0]:
                    best = float(attention.detach()), output.detach()
                loss = self.penalty * torch.relu(apart - self.budget) - attention
                optimizer = torch.optim.Adam(shifts, lr=self.rate) if optimizer is None else optimizer
                gradients = torch.autograd.grad(loss, shifts, allow_unused=True)
                for shift, gradient in zip(shifts, gradients, strict=True):
                    shift.grad = torch.zeros_like(shift) if gradient is None else gradient
                optimizer.step()
        return best


def _attention_distance(destination: Tensor, usual: Tensor, other: Tensor) -> Tensor:
    """Return the total variation of a destination's weights, mean over heads and destinations with several edges."""
    count = int(destination.max()) + 1 if destination.numel() else 0
    apart = (usual - other).abs().reshape(destination.numel(), -1).mean(dim=1) / 2
    by_node = apart.new_zeros(count).index_add(0, destination, apart)
    several = destination.bincount(minlength=count) > 1
    return by_node[several].mean() if bool(several.any()) else by_node.sum()
