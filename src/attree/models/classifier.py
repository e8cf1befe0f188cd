"""Base class of classifiers: loss, metrics, and the names under which they are logged."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attree.data import GraphDataModule, HeteroDataModule, NodeDataModule
from attree.data.base import DatasetModule
from attree.errors import expect
from attree.models.trained_module import TrainedModule

Stage = Literal["train", "val", "test"]


class Accuracy(MulticlassAccuracy):
    """The fraction of examples that are classified correctly; NaN, not 0, without examples."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count examples. There may be none, if a process has no share."""
        if target.numel():
            super().update(preds, target)

    def compute(self) -> Tensor:
        """The accuracy over the examples of all processes."""
        accuracy: Tensor = super().compute()
        seen = sum(int(torch.as_tensor(count).sum()) for count in (self.tp, self.fn))
        return accuracy if seen else torch.full_like(accuracy, torch.nan)


class Classifier(TrainedModule):
    """Trains a network to classify, and logs `train/loss`, `val/loss`, `val/acc`, `test/loss` and `test/acc`.

    The loss is cross-entropy over the examples of a step, plus the network's own loss on its attention if it has one
    (SuperGAT), plus optional penalties on attention. Penalties are not part of `train/loss`; they are logged without
    their strengths as `train/attention_<name>`. The optimiser is Adam.

    A subclass implements `examples`, and sets `classified` (what the examples are called) and `data_class` (attree's
    data modules that have them).

    In a distributed run, every process evaluates its share of the examples. The logged metrics are of all examples
    together, even if shares differ in size or are empty.

    Args:
        net: The network, with an integer attribute `out_channels`: the number of classes.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        penalties: Penalties on attention by name, each with its strength or its arguments: `{entropy: 0.1}`. Your own
            penalty has `class_path` and `init_args` under any name. See `attree.penalties`.
    """

    data_class: ClassVar[type[DatasetModule]]
    classified: ClassVar[str]

    def __init__(
        self,
        net: nn.Module,
        lr: float = 0.005,
        weight_decay: float = 0.0,
        penalties: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        num_classes = getattr(net, "out_channels", None)
        expect(isinstance(num_classes, int), "net", "a module with an integer `out_channels`", type(net).__name__)
        assert isinstance(num_classes, int)
        self.save_hyperparameters(ignore=["net", "penalties"])
        self.net = net
        self.prepare_training(net, lr, weight_decay, penalties)
        self.num_classes = num_classes
        self.val_acc, self.test_acc = (
            Accuracy(max(num_classes, 2), average="micro", validate_args=False) for _ in range(2)
        )

    def setup(self, stage: str) -> None:
        """Refuse attree's data that this model cannot classify, and reset all metrics."""
        for metric in (self.train_loss, self.val_loss, self.val_acc, self.test_loss, self.test_acc):
            metric.reset()  # `validate` and `test` leave inference tensors, which a fit cannot update
        data = self.datamodule
        if isinstance(data, DatasetModule):
            fits = isinstance(data, self.data_class)
            expect(fits, "data", f"of {self.classified}, as {type(self).__name__} classifies", data.name)
            self._check_fits(data)

    def _check_fits(self, data: DatasetModule) -> None:
        """Raise an `ArgumentError` unless the network has the widths that the data's features and labels need."""
        labels = _labels(data)
        if labels.numel() == 0:
            return
        lowest, highest = (int(label) for label in labels.aminmax())
        expect(lowest >= 0, "data", f"labelled from 0 on wherever {data.name} has a mask", lowest)
        wanted = f"of at least {highest + 1} `out_channels`, one for each class of {data.name}"
        expect(highest < self.num_classes, "net", wanted, self.num_classes)
        self.check_width(data)

    @abstractmethod
    def examples(self, batch: Any, stage: Stage) -> tuple[Tensor, Tensor]:
        """Return logits [n, classes] and labels [n] of the examples of this stage in the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with self.watch_attention() as watched:
            logits, y = self.examples(batch, "train")
        return self.finish_training_step(F.cross_entropy(logits, y), y.numel(), watched, logits, batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits, y = self.examples(batch, "val")
        self._update(self.val_loss, self.val_acc, logits, y)
        self.log("val/loss", self.val_loss, batch_size=y.numel())
        self.log("val/acc", self.val_acc, batch_size=y.numel(), prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        logits, y = self.examples(batch, "test")
        self._update(self.test_loss, self.test_acc, logits, y)
        self.log("test/loss", self.test_loss, batch_size=y.numel())
        self.log("test/acc", self.test_acc, batch_size=y.numel())

    @staticmethod
    def _update(loss: MeanMetric, accuracy: MulticlassAccuracy, logits: Tensor, y: Tensor) -> None:
        loss.update(F.cross_entropy(logits, y, reduction="none"))
        accuracy.update(logits.argmax(dim=-1), y)


def _labels(data: DatasetModule) -> Tensor:
    """Return the labels that training, validation and test read."""
    if isinstance(data, NodeDataModule | HeteroDataModule):
        graph = data.masked(data.graph)
        return graph.y[graph.train_mask | graph.val_mask | graph.test_mask]
    if isinstance(data, GraphDataModule):
        return torch.cat([graph.y for graph in data.graphs])
    return torch.empty(0)
