"""What a network's output does when an edge's attention is reduced: the measures of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attree.attribution.pairs import Pairs
from attree.subject.head import Head
from attree.tensors.ragged import take_rows

Progress = Callable[[int, int], None]
"""Called as `progress(done, total)` with numbers of pairs each time some have been reduced."""


@dataclass(frozen=True)
class Reduction:
    """The effect of reducing each pair's edge on the prediction of the pair's target.

    Attributes:
        pairs: The pairs.
        delta_pc: Decline of the predicted class's probability, p[k] - p'[k], [P]; of a number, its decline.
        delta_ne: Change of negative entropy, -sum p' log p' + sum p log p, [P]; of a number, NaN.
        changed: Whether the predicted class changed, [P].
        probability: Class probabilities after the reduction, [P, classes]; None if they were not asked for.
    """

    pairs: Pairs
    delta_pc: Tensor
    delta_ne: Tensor
    changed: Tensor
    probability: Tensor | None = None


class ReductionWriter:
    """Fills in a `Reduction`, some pairs at a time.

    Args:
        pairs: The pairs; those that are never filled in, whose edge carries no flow, change nothing.
        output: What the model returned before any reduction, in the type to measure in.
        head: What the outputs mean.
        with_probability: Also hold class probabilities.
        effect_only: Fill in dPC alone; dNE and dP of the result mean nothing then.
    """

    def __init__(
        self,
        pairs: Pairs,
        output: Tensor,
        head: Head,
        with_probability: bool = False,
        effect_only: bool = False,
    ) -> None:
        self._effect_only = effect_only
        self._head = head if head.is_settled else head.resolve(output)
        self._measured = self._head.measured(output)
        self._logits = self._head.logits(output, self._measured)
        self._target = pairs.target_rows
        # Predictions before are those of targets, of which there are far fewer than pairs.
        self._owner = pairs.owner
        rows = pairs.targets if pairs.rows is None else pairs.rows
        self._before = Prediction.of(self._logits[rows])
        zeros = torch.zeros(len(pairs), dtype=output.dtype, device=output.device)
        is_number = self._head.mode == "regression"
        entropy = torch.full_like(zeros, math.nan) if is_number else zeros.clone()
        probability = self._logits.softmax(dim=-1)[self._target] if with_probability and not is_number else None
        self.result = Reduction(pairs, zeros, entropy, torch.zeros_like(zeros, dtype=torch.bool), probability)

    def fill(self, chosen: Tensor, output: Tensor) -> None:
        """Set the effect on the chosen pairs from the outputs of their targets after the reduction, one row a pair."""
        result, target = self.result, None
        if self._measured is not None or self._head.mode == "regression":
            target = take_rows(self._target, chosen)
        measured = None if self._measured is None else self._measured[target]
        after = self._head.logits(output.to(self._logits.dtype), measured)
        if self._head.mode == "regression":
            result.delta_pc[chosen] = (self._logits[target] - after).squeeze(1)
            return
        owner = take_rows(self._owner, chosen)
        if self._effect_only:
            result.delta_pc[chosen] = self._before.decline(owner, after)
            return
        effect = self._before.at(owner).compare(after)
        result.delta_pc[chosen], result.delta_ne[chosen], result.changed[chosen], probability = effect
        if result.probability is not None:
            result.probability[chosen] = probability


def measure(logits: Tensor, reduced_logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compare predictions before and after a reduction, row by row.

    Args:
        logits: Logits before, [n, classes].
        reduced_logits: Logits after, [n, classes].

    Returns:
        dPC, dNE, dP (bool), and the class probabilities after.

    >>> before, after = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> pc, ne, changed, _ = measure(before, after)
    >>> round(pc.item(), 4), round(ne.item(), 4), changed.item()
    (0.7616, 0.0, True)
    """
    return Prediction.of(logits).compare(reduced_logits)


class Prediction(NamedTuple):
    """What is compared of predictions, one row each.

    Attributes:
        predicted: The predicted class, [n].
        probability: Its probability, [n].
        negative_entropy: sum p log p over the classes, [n].
    """

    predicted: Tensor
    probability: Tensor
    negative_entropy: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> Prediction:
        """The predictions of logits, [n, classes]."""
        log_p = logits.log_softmax(dim=-1)
        p = log_p.exp()
        predicted = p.argmax(dim=-1)
        return cls(predicted, p.gather(-1, predicted.unsqueeze(-1)).squeeze(-1), _negative_entropy(p, log_p))

    def at(self, rows: Tensor) -> Prediction:
        """Some of the rows."""
        return Prediction(*(values.index_select(0, rows) for values in self))

    def decline(self, rows: Tensor, reduced_logits: Tensor) -> Tensor:
        """The dPC of some of the rows, with their logits after a reduction."""
        predicted = take_rows(self.predicted, rows).unsqueeze(-1)
        after = reduced_logits.log_softmax(dim=-1).gather(-1, predicted).squeeze(-1).exp_()
        return take_rows(self.probability, rows).sub_(after)

    def compare(self, reduced_logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `measure`, with the logits after a reduction."""
        log_q = reduced_logits.log_softmax(dim=-1)
        q = log_q.exp()
        delta_pc = self.probability - q.gather(-1, self.predicted.unsqueeze(-1)).squeeze(-1)
        delta_ne = self.negative_entropy - _negative_entropy(q, log_q)
        return delta_pc, delta_ne, q.argmax(dim=-1) != self.predicted, q


def _negative_entropy(p: Tensor, log_p: Tensor) -> Tensor:
    # xlogy-like: a probability of exactly 0 adds nothing.
    return torch.where(p > 0, p * log_p, 0.0).sum(-1)
