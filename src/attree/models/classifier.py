"""What node and graph classification share: loss, optimiser, metrics and what is logged under which name."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Data
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
        self.lr = lr
        self.weight_decay = weight_decay
        self.val_acc = _accuracy(num_classes)
        self.test_acc = _accuracy(num_classes)

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
        self._evaluate(batch, "val", self.val_acc)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        self._evaluate(batch, "test", self.test_acc)

    def _evaluate(self, batch: Data, stage: Stage, accuracy: MulticlassAccuracy) -> None:
        scores, y = self.examples(batch, stage)
        accuracy.update(scores, y)
        # The mean of no losses would be NaN, and NaN for all processes; their sum is 0 and weighs nothing.
        loss = F.cross_entropy(scores, y, reduction="sum") / max(y.numel(), 1)
        self.log(f"{stage}/loss", loss, batch_size=y.numel(), sync_dist=True)
        self.log(f"{stage}/acc", accuracy, batch_size=y.numel(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)


def _accuracy(num_classes: int) -> MulticlassAccuracy:
    return MulticlassAccuracy(num_classes, average="micro", validate_args=False)
