"""Modules and graphs as projects have them that know nothing of attree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT, GATConv, global_mean_pool

from attree.callbacks import ExplainCallback

NODES, CLASSES = 40, 3


def node_graph() -> Data:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NODES, 6, generator=generator)
    edge_index = torch.randint(0, NODES, (2, 110), generator=generator)
    graph = Data(x=x, edge_index=edge_index, y=torch.arange(NODES) % CLASSES)
    order = torch.arange(NODES)
    graph.train_mask, graph.val_mask, graph.test_mask = order < 20, (order >= 20) & (order < 30), order >= 30
    return graph


def small_graphs() -> list[Data]:
    generator = torch.Generator().manual_seed(2)
    graphs = []
    for number in range(24):
        size = 4 + number % 3
        edges = torch.randint(0, size, (2, 3 * size), generator=generator)
        graphs.append(Data(x=torch.randn(size, 6, generator=generator), edge_index=edges, y=torch.tensor([number % 2])))
    return graphs


class PlainNodes(LightningModule):
    """As PyG's own example has it: a GAT in `self.gnn`, and a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = GAT(6, 8, 2, CLASSES, dropout=0.3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gnn(x, edge_index)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])

    def validation_step(self, data: Data, batch_idx: int) -> None:
        predicted = self(data.x, data.edge_index)[data.val_mask].argmax(-1)
        self.log("val_acc", (predicted == data.y[data.val_mask]).float().mean(), batch_size=1)

    def test_step(self, data: Data, batch_idx: int) -> None:
        self.log("test_acc", 0.5, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class EncoderAndHead(PlainNodes):
    """An encoder of another width in `self.net`, and a head behind it: the head predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = GAT(6, 8, 2, 8), nn.Linear(8, CLASSES)
        del self.gnn

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.head(self.net(x, edge_index))
        return out


class TakesData(PlainNodes):
    """A forward that takes the whole graph."""

    def forward(self, data: Data) -> Tensor:  # type: ignore[override]
        return self.gnn(data.x, data.edge_index)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data)[data.train_mask], data.y[data.train_mask])

    def validation_step(self, data: Data, batch_idx: int) -> None:
        self.log("val_acc", (self(data).argmax(-1) == data.y).float().mean(), batch_size=1)


class NoForward(PlainNodes):
    """No forward at all: the network is `self.model`, called in the steps."""

    forward = LightningModule.forward

    def __init__(self) -> None:
        super().__init__()
        self.model = self.gnn
        del self.gnn

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])

    def validation_step(self, data: Data, batch_idx: int) -> None:
        self.log("val_acc", 0.5, batch_size=1)


class PlainGraphs(LightningModule):
    """Graph classification as in PyG's example: two convolutions, a mean, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.lin = GATConv(6, 8), GATConv(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.second(self.first(x, edge_index).relu(), edge_index)
        out: Tensor = self.lin(global_mean_pool(x, batch))
        return out

    def training_step(self, data: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data.x, data.edge_index, data.batch), data.y)

    def validation_step(self, data: Batch, batch_idx: int) -> None:
        predicted = self(data.x, data.edge_index, data.batch).argmax(-1)
        self.log("val_acc", (predicted == data.y).float().mean(), batch_size=data.num_graphs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def make_trainer(folder: Path, callbacks: list[Any], **options: Any) -> Trainer:
    """A trainer of two epochs that logs to TensorBoard."""
    logger = TensorBoardLogger(folder, name="", version="run", default_hp_metric=False)
    defaults: dict[str, Any] = {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False, "logger": logger}
    return Trainer(**{**defaults, **options}, callbacks=callbacks, enable_model_summary=False, log_every_n_steps=1)


def explain(**options: Any) -> ExplainCallback:
    """A callback that measures little and leaves nothing."""
    return ExplainCallback(**{"protocols": ["removal"], "num_targets": 5, "figures": 0, "save": False, **options})
