"""Node classification as a LightningModule, around any network that maps `(x, edge_index)` to class scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Data
from torchmetrics.classification import MulticlassAccuracy

from attree.errors import expect


class NodeClassifier(LightningModule):
    """Trains a network to classify nodes and logs its loss and accuracy.

    The loss is cross-entropy over the nodes of the step (`train_mask`, `val_mask` or `test_mask` of the graph), plus
    the network's own loss on its attention if it has one (SuperGAT).

    Args:
        net: The network; `attree.models.GAT`, `GATv2`, `SuperGAT`, or any module with an `out_channels` attribute
            whose forward takes `(x, edge_index)`.
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

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Class scores of every node."""
        return self.net(x, edge_index)

    def training_step(self, graph: Data, batch_idx: int) -> Tensor:
        out = self(graph.x, graph.edge_index)
        nodes = graph.train_mask
        loss = F.cross_entropy(out[nodes], graph.y[nodes])
        attention_loss = getattr(self.net, "attention_loss", lambda: None)()
        if attention_loss is not None:
            loss = loss + attention_loss
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, graph: Data, batch_idx: int) -> None:
        self._evaluate(graph, graph.val_mask, "val", self.val_acc)

    def test_step(self, graph: Data, batch_idx: int) -> None:
        self._evaluate(graph, graph.test_mask, "test", self.test_acc)

    def predict_step(self, graph: Data, batch_idx: int) -> Tensor:
        """Class probabilities of every node."""
        return self(graph.x, graph.edge_index).softmax(dim=-1)

    def _evaluate(self, graph: Data, nodes: Tensor, stage: str, accuracy: MulticlassAccuracy) -> None:
        out, y = self(graph.x, graph.edge_index)[nodes], graph.y[nodes]
        accuracy(out, y)
        self.log(f"{stage}/loss", F.cross_entropy(out, y), batch_size=len(y), sync_dist=True)
        self.log(f"{stage}/acc", accuracy, batch_size=len(y), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)


def _accuracy(num_classes: int) -> MulticlassAccuracy:
    return MulticlassAccuracy(num_classes, average="micro", validate_args=False)
