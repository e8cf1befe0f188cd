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
from torchmetrics.classification import MulticlassAccuracy

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
        self.val_metrics = EvaluationMetrics(num_classes)
        self.test_metrics = EvaluationMetrics(num_classes)

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
        self._evaluate(batch, "val", self.val_metrics)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        self._evaluate(batch, "test", self.test_metrics)

    def _evaluate(self, batch: Data, stage: Stage, metrics: EvaluationMetrics) -> None:
        scores, y = self.examples(batch, stage)
        # A process may have no examples: nothing to count, and the mean of no losses would be NaN for all.
        if y.numel():
            metrics.loss.update(F.cross_entropy(scores, y), y.numel())
            metrics.acc.update(scores, y)
        self.log(f"{stage}/loss", metrics.loss, batch_size=y.numel())
        self.log(f"{stage}/acc", metrics.acc, batch_size=y.numel(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)


class MeanLoss(Metric):
    """Mean loss over all examples of all processes, however many each has.

    Lightning's own mean divides by the processes' mean number of examples, rounded down; `torchmetrics.MeanMetric`
    adds in place, which fails on states that were reset in inference mode, as `validate` before `fit` does.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", default=torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, loss: Tensor, examples: int) -> None:
        """Add the mean loss over some examples."""
        self.total = self.total + loss * examples
        self.count = self.count + examples

    def compute(self) -> Tensor:
        """Return the mean; NaN if there was no example at all."""
        return self.total / self.count


class EvaluationMetrics(nn.Module):
    """What is measured in validation or test."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.loss = MeanLoss()
        self.acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
