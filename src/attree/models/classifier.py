"""What node and graph classification share: loss, optimiser, metrics and what is logged under which name."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.data.base import DatasetModule
from attree.errors import expect, expect_number
from attree.models.data_check import check_data
from attree.models.scalars import TimedSaves, publish
from attree.models.totals import Totals

Stage = Literal["train", "val", "test"]


class Classifier(LightningModule):
    """Trains a network to classify something and logs `train/loss`, `val/loss`, `val/acc`, `test/loss`, `test/acc`.

    The loss is cross-entropy over the examples of a step, plus the network's own loss on its attention in training if
    it has one (SuperGAT). The optimiser is Adam. A subclass says what the examples of a batch are, what they are called
    (`classified`) and which of attree's data modules have them (`data_class`).

    In a distributed run every process evaluates its share of the examples; the logged metrics are those of all
    examples together, also if the shares differ in size or some are empty.

    Args:
        net: The network, with an integer attribute `out_channels`: the number of classes.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
    """

    data_class: ClassVar[type[DatasetModule]]
    classified: ClassVar[str]

    def __init__(self, net: nn.Module, lr: float = 0.005, weight_decay: float = 0.0) -> None:
        super().__init__()
        expect_number(lr, "lr", above=0)
        expect_number(weight_decay, "weight_decay", at_least=0)
        num_classes = getattr(net, "out_channels", None)
        expect(isinstance(num_classes, int), "net", "a module with an integer `out_channels`", type(net).__name__)
        assert isinstance(num_classes, int)
        self.save_hyperparameters(ignore=["net"])
        self.net = net
        self.num_classes = num_classes
        self.lr = lr
        self.weight_decay = weight_decay
        self.train_totals = Totals()
        self.evaluation_totals = Totals()
        self.saves = TimedSaves()

    def setup(self, stage: str) -> None:
        """Refuse data of attree's that this model cannot classify, before anything runs."""
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, DatasetModule):
            fits = isinstance(data, self.data_class)
            expect(fits, "data", f"of {self.classified}, as {type(self).__name__} classifies", data.name)
            check_data(data, self.net, self.num_classes)

    @abstractmethod
    def examples(self, batch: Data, stage: Stage) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and labels [n] of what this stage classifies in the batch."""

    def on_train_epoch_start(self) -> None:
        self.train_totals.reset()

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        logits, y = self.examples(batch, "train")
        loss = F.cross_entropy(logits, y)
        attention_loss = getattr(self.net, "attention_loss", lambda: None)()
        if attention_loss is not None:
            loss = loss + attention_loss
        self.train_totals.add(y.numel() * loss.detach(), y.numel())
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Data, batch_idx: int) -> None:
        # Now, so that callbacks find it when the epoch ends: their hooks come before this module's.
        if self.trainer.is_last_batch:
            self._publish_train_loss()

    def on_train_epoch_end(self) -> None:
        if self.train_totals.batches and not self.trainer.is_last_batch:  # the fit stops within an epoch
            self._publish_train_loss()
        self.saves.save(self.trainer)

    def _publish_train_loss(self) -> None:
        loss, _ = self.train_totals.means(self)
        publish(self.trainer, {"train/loss": loss})

    def on_validation_epoch_start(self) -> None:
        self.evaluation_totals.reset()

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        self._evaluation_step(batch, "val")

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_start(self) -> None:
        self.evaluation_totals.reset()

    def test_step(self, batch: Data, batch_idx: int) -> None:
        self._evaluation_step(batch, "test")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _evaluation_step(self, batch: Data, stage: Stage) -> None:
        logits, y = self.examples(batch, stage)
        correct = (logits.argmax(dim=-1) == y).sum()
        self.evaluation_totals.add(F.cross_entropy(logits, y, reduction="sum"), y.numel(), correct)

    def _log_evaluation(self, stage: Stage) -> None:
        loss, accuracy = self.evaluation_totals.means(self)
        values = {f"{stage}/loss": loss, f"{stage}/acc": accuracy}
        if self.trainer.state.fn != TrainerFn.FITTING:
            # `validate` and `test` return and print what is logged; it is the same in all processes.
            self.log_dict(values, sync_dist=True)
        elif not self.trainer.sanity_checking:
            publish(self.trainer, values, in_bar={f"{stage}/acc"})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # `foreach` is PyTorch's default on GPUs; on CPUs it gives the same numbers in fewer calls.
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay, foreach=True)
