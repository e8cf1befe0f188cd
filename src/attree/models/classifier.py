"""What node and graph classification share: loss, optimiser, metrics and what is logged under which name."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Data
from torchmetrics import Metric

from attree.errors import expect

Stage = Literal["train", "val", "test"]


class Classifier(LightningModule):
    """Trains a network to classify something and logs `train/loss`, `val/loss`, `val/acc`, `test/loss`, `test/acc`.

    The loss is cross-entropy over the examples of a step, plus the network's own loss on its attention in training if
    it has one (SuperGAT). The optimiser is Adam. A subclass says what the examples of a batch are.

    In a distributed run every process evaluates its share of the examples; the logged metrics are those of all
    examples together, also if the shares differ in size or some are empty.

    Args:
        net: The network, with an integer attribute `out_channels`: the number of classes.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
    """

    def __init__(self, net: nn.Module, lr: float = 0.005, weight_decay: float = 0.0) -> None:
        super().__init__()
        expect(lr > 0, "lr", "a number > 0", lr)
        expect(weight_decay >= 0, "weight_decay", "a number >= 0", weight_decay)
        num_classes = getattr(net, "out_channels", None)
        expect(isinstance(num_classes, int), "net", "a module with an integer `out_channels`", type(net).__name__)
        assert isinstance(num_classes, int)
        self.save_hyperparameters(ignore=["net"])
        self.net = net
        self.num_classes = num_classes
        self.lr = lr
        self.weight_decay = weight_decay
        self.val_totals = ClassificationTotals()
        self.test_totals = ClassificationTotals()

    @abstractmethod
    def examples(self, batch: Data, stage: Stage) -> tuple[Tensor, Tensor]:
        """Class scores [n, classes] and labels [n] of what this stage classifies in the batch."""

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        scores, y = self.examples(batch, "train")
        loss = F.cross_entropy(scores, y)
        attention_loss = getattr(self.net, "attention_loss", lambda: None)()
        if attention_loss is not None:
            loss = loss + attention_loss
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=y.numel(), sync_dist=True)
        return loss

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        self.val_totals.update(*self.examples(batch, "val"))

    def on_validation_epoch_end(self) -> None:
        self._log_totals("val", self.val_totals)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        self.test_totals.update(*self.examples(batch, "test"))

    def on_test_epoch_end(self) -> None:
        self._log_totals("test", self.test_totals)

    def _log_totals(self, stage: Stage, totals: ClassificationTotals) -> None:
        loss, accuracy = totals.compute()
        totals.reset()
        self.log(f"{stage}/loss", loss, sync_dist=True)
        self.log(f"{stage}/acc", accuracy, sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)


class ClassificationTotals(Metric):
    """Mean cross-entropy and accuracy over all examples of all processes, however many each has, even none.

    One metric with two states rather than two metrics, as what is measured in every epoch must cost little beside a
    full-batch epoch on a small graph. (Lightning's own mean of logged losses would not do: it divides by the
    processes' mean number of examples, rounded down.)
    """

    full_state_update = False
    loss: Tensor
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("loss", default=torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("counts", default=torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, scores: Tensor, y: Tensor) -> None:
        """Add examples: class scores [n, classes] and labels [n]."""
        self.loss = self.loss + F.cross_entropy(scores, y, reduction="sum")
        correct = (scores.argmax(dim=-1) == y).sum()
        self.counts = self.counts + torch.stack([correct, torch.full_like(correct, y.numel())])

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return mean loss and accuracy; NaN if there was no example at all."""
        correct, examples = self.counts
        return self.loss / examples, correct / examples
