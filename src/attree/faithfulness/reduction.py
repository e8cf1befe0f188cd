"""What a network's output does when an edge's attention is reduced: the measures of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attribution.pairs import Pairs

Progress = Callable[[int, int], None]
"""Called as `progress(done, total)` with numbers of pairs each time some have been reduced."""


@dataclass(frozen=True)
class Reduction:
    """The effect of reducing each pair's edge on the prediction of the pair's target.

    Attributes:
        pairs: The pairs.
        probability: Class probabilities after the reduction, [P, classes]; None if they were not asked for.
        delta_pc: Decline of the predicted class's probability, p[k] - p'[k], [P].
        delta_ne: Change of negative entropy, -sum p' log p' + sum p log p, [P].
        changed: Whether the predicted class changed, [P].
    """

    pairs: Pairs
    delta_pc: Tensor
    delta_ne: Tensor
    changed: Tensor
    probability: Tensor | None = None

    @classmethod
    def unchanged(cls, pairs: Pairs, logits: Tensor, with_probability: bool = False) -> Reduction:
        """The effect of reducing nothing: where pairs start, and where those whose edge carries no flow stay.

        Args:
            pairs: The pairs.
            logits: Class scores of all targets before a reduction, one row per target id.
            with_probability: Also hold class probabilities.
        """
        delta = torch.zeros(len(pairs), dtype=logits.dtype, device=logits.device)
        probability = logits.softmax(dim=-1)[pairs.targets[pairs.owner]] if with_probability else None
        return cls(pairs, delta, delta.clone(), torch.zeros_like(delta, dtype=torch.bool), probability)

    def fill(self, chosen: Tensor, logits: Tensor, reduced_logits: Tensor) -> None:
        """Set the effect on the chosen pairs from the class scores before and after, one row per pair."""
        self.delta_pc[chosen], self.delta_ne[chosen], self.changed[chosen], probability = measure(
            logits, reduced_logits.to(logits.dtype)
        )
        if self.probability is not None:
            self.probability[chosen] = probability


def measure(logits: Tensor, reduced_logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compare predictions before and after a reduction, row by row.

    Args:
        logits: Class scores before, [n, classes].
        reduced_logits: Class scores after, [n, classes].

    Returns:
        dPC, dNE, dP (bool), and the class probabilities after.

    >>> before, after = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> pc, ne, changed, _ = measure(before, after)
    >>> round(pc.item(), 4), round(ne.item(), 4), changed.item()
    (0.7616, 0.0, True)
    """
    log_p, log_q = logits.log_softmax(dim=-1), reduced_logits.log_softmax(dim=-1)
    p, q = log_p.exp(), log_q.exp()
    predicted = p.argmax(dim=-1, keepdim=True)
    delta_pc = (p.gather(-1, predicted) - q.gather(-1, predicted)).squeeze(-1)
    # xlogy-like: a probability of exactly 0 adds nothing.
    delta_ne = torch.where(p > 0, p * log_p, 0.0).sum(-1) - torch.where(q > 0, q * log_q, 0.0).sum(-1)
    return delta_pc, delta_ne, q.argmax(dim=-1) != predicted.squeeze(-1), q
