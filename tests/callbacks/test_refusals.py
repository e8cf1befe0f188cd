"""What cannot be explained is refused before the first epoch, however late the first evaluation would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attree.callbacks import ExplainCallback
from attree.errors import AttreeError
from attree.models import GraphClassifier, NodeClassifier
from helpers.mini_batches import Rings
from helpers.small_fits import classifier, infection, trainer


class Steps(Callback):
    """Counts training steps."""

    count = 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.count += 1


class Rows(LightningDataModule):
    """Someone's data module that has no graphs."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.zeros(4, 2)))

    def val_dataloader(self) -> DataLoader:
        return self.train_dataloader()


class Perceptron(nn.Module):
    """A network without message passing."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        return self.linear(x)


CASES: dict[str, tuple[LightningDataModule, LightningModule]] = {
    "data": (Rows(), classifier(infection())),
    "no messages": (infection(), NodeClassifier(Perceptron(2, 4))),
    "graphs, no attention": (Rings(), GraphClassifier(Perceptron(3, 2))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{}, {"limit_val_batches": 0}], ids=["validated", "not validated"])
def test_refused_before_the_first_epoch(case: str, options: dict[str, Any], tmp_path: Path) -> None:
    (data, model), steps = CASES[case], Steps()
    run = trainer(tmp_path, [ExplainCallback(every_n_epochs=40), steps], epochs=40, **options)
    with pytest.raises(AttreeError) as refusal:
        run.fit(model, datamodule=data)
    assert "\n" not in str(refusal.value)
    assert steps.count == 0
