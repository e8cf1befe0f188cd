"""Mean loss and accuracy over the examples of an epoch."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import Tensor


class Totals:
    """Sums over the examples of an epoch in this process, and their means over those of all processes.

    Plain tensors rather than metric objects, as what is measured in every epoch must cost little beside a full-batch
    epoch on a small graph. Lightning's own mean of logged losses would not do: it divides by the processes' mean
    number of examples, rounded down.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all examples."""
        self.loss: Tensor | float = 0.0
        self.correct: Tensor | int = 0
        self.examples = 0
        self.batches = 0

    def add(self, loss: Tensor, examples: int, correct: Tensor | int = 0) -> None:
        """Add examples.

        Args:
            loss: The sum of their losses, detached.
            examples: How many they are.
            correct: How many of them are classified correctly.
        """
        self.loss = self.loss + loss
        self.correct = self.correct + correct
        self.examples += examples
        self.batches += 1

    def means(self, module: LightningModule) -> tuple[Tensor, Tensor]:
        """Return mean loss and accuracy over the examples of all processes, be it none in some; NaN if in all.

        Args:
            module: The module that is trained or evaluated, the same in all processes.
        """
        loss, correct, examples = (
            torch.as_tensor(total, device=module.device) for total in (self.loss, self.correct, self.examples)
        )
        if module.trainer.world_size > 1:
            everywhere = module.trainer.strategy.reduce
            loss = everywhere(loss, reduce_op="sum")
            correct, examples = everywhere(torch.stack([correct, examples]), reduce_op="sum")
        return loss / examples, correct / examples
