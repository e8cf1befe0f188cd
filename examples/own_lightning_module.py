"""Add one callback to your own Lightning project: `python examples/own_lightning_module.py`.

The module, its loss and its data do not use attree. `ExplainCallback` finds the network, the graph and the labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer, seed_everything
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv

from attree import ExplainCallback


class Net(LightningModule):
    """A network of two attention layers, without attree."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = GATv2Conv(width, 8, heads=4)
        self.second = GATv2Conv(32, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.elu(self.first(x, edge_index)), edge_index)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        out = self(batch.x, batch.edge_index)
        return F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        out = self(batch.x, batch.edge_index)
        correct = (out.argmax(-1) == batch.y)[~batch.train_mask]
        self.log("val/acc", correct.float().mean(), batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def make_graph() -> Data:
    """Return a random graph. The class of a node is the sign of the sum of its neighbours' first feature."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=generator)
    edge_index = torch.randint(0, 200, (2, 800), generator=generator)
    total = torch.zeros(200).index_add_(0, edge_index[1], x[edge_index[0], 0])
    return Data(x=x, edge_index=edge_index, y=(total > 0).long(), train_mask=torch.arange(200) < 120)


def main(epochs: int = 30) -> dict[str, float]:
    """Train, and return the last metrics of the project and of the callback."""
    seed_everything(0, verbose=False)
    loader = DataLoader([make_graph()])
    trainer = Trainer(max_epochs=epochs, callbacks=[ExplainCallback(num_targets=50)], enable_checkpointing=False)
    trainer.fit(Net(8, 2), loader, loader)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:45} {value:.4f}")
