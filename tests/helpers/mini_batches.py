"""Small fits with mini-batches and dropout, of graphs and of sampled neighbourhoods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch_geometric.data import Data

from attree.callbacks import LastCheckpoint
from attree.data import Counts, GraphDataModule, Infection
from attree.models import GAT, GraphClassifier, NodeClassifier

KINDS = ("graphs", "neighbors", "neighbors from a worker")


class Rings(GraphDataModule):
    """43 rings with random features: 13 of them for testing, 4 for validation."""

    name = "Rings"
    counts = Counts(None, None, 3, 2, graphs=43)

    def __init__(self) -> None:
        super().__init__(val_fraction=0.1, test_fraction=0.3, batch_size=4, seed=0)

    def load(self) -> list[Data]:
        generator = torch.Generator().manual_seed(0)
        graphs = []
        for k in range(43):
            size = 3 + k % 5
            nodes = torch.arange(size)
            edge_index = torch.stack([nodes, nodes.roll(1)])
            graphs.append(Data(torch.randn(size, 3, generator=generator), edge_index, y=torch.tensor([k % 2])))
        return graphs


def fit(
    kind: str,
    folder: Path,
    epochs: int,
    seed: int = 0,
    ckpt_path: Path | None = None,
    callbacks: Sequence[Callback] = (),
    every_n_epochs: int = 1,
) -> dict[str, Tensor]:
    """Train a network of a kind in a folder, perhaps from a checkpoint on; return its weights."""
    seed_everything(seed, verbose=False)
    dropout = {"dropout": 0.5, "attention_dropout": 0.3}
    data: GraphDataModule | Infection
    model: GraphClassifier | NodeClassifier
    if kind == "graphs":
        data, model = Rings(), GraphClassifier(GAT(3, 2, **dropout), lr=0.02)
    else:
        workers = 1 if kind == "neighbors from a worker" else 0
        data = Infection(
            num_nodes=201, edge_probability=0.01, num_layers=2, num_neighbors=[3, 2], batch_size=20, num_workers=workers
        )
        model = NodeClassifier(GAT(data.num_features, data.num_classes, **dropout), lr=0.02)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=TensorBoardLogger(folder.parent, name="", version=folder.name, default_hp_metric=False),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, LastCheckpoint(every_n_epochs)],
    )
    trainer.fit(model, datamodule=data, ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in model.state_dict().items()}
