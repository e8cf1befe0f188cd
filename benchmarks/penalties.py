"""What penalties on attention cost: the time of an epoch with one, as a ratio to an epoch without.

    python benchmarks/penalties.py [--epochs 10] [--rounds 5]

Full-batch epochs of `NodeClassifier` with a 2-layer GAT of two heads on Cora (or a random graph of its size where it is
absent) and without validation. Fits with and without each penalty take turns. The time of a turn is the median over its
epochs of the processor's time, and a ratio is taken within each round: its median and quartiles over the rounds are
printed.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch_geometric.data import Data

from attree.data import GroundTruth, NodeDataModule, Planetoid
from attree.models import GAT, NodeClassifier
from attree.penalties import PENALTIES, TrueEdges
from timing import Spread


class EpochTimes(Callback):
    """The processor's time of each epoch, but for the first two."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch >= 2:
            self.seconds.append(process_time() - self._began)


def data() -> NodeDataModule:
    """Cora, or a random graph of its size."""
    if Path("data/planetoid/Cora").is_dir():
        return Planetoid("Cora", split="paper")
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 2708, (2, 10556), generator=generator)
    x, y = torch.rand(2708, 1433, generator=generator), torch.randint(0, 7, (2708,), generator=generator)
    return NodeDataModule.from_data(Data(x=x, edge_index=edges, y=y), split_seed=0)


def penalty(name: str, graph: Data) -> Any:
    """A penalty with its defaults; Cora has no true edges, so for each training node one that enters it stands in."""
    if name != "true_edges":
        return PENALTIES[name]()
    nodes = graph.train_mask.nonzero().view(-1)
    return TrueEdges(truth=GroundTruth(nodes, torch.stack([nodes, nodes]), torch.arange(nodes.numel() + 1)))


def epoch_seconds(module: NodeDataModule, epochs: int, name: str | None) -> float:
    """The median time of an epoch."""
    torch.manual_seed(0)
    penalties = None if name is None else {name: penalty(name, module.graph)}
    model = NodeClassifier(GAT(module.num_features, module.num_classes, 64, heads=2), lr=0.001, penalties=penalties)
    times = EpochTimes()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet: dict[str, Any] = dict.fromkeys(off, False)
    Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[times],
        limit_val_batches=0,
        **quiet,
    ).fit(model, module)
    return median(times.seconds)


def main() -> None:
    """Print one row a penalty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = data()
    measured: dict[str | None, list[float]] = {name: [] for name in (None, *PENALTIES)}
    for _ in range(options.rounds):
        for name, seconds in measured.items():
            seconds.append(epoch_seconds(module, options.epochs, name))
    plain = measured.pop(None)
    print(f"| penalty | epoch against one without ({1000 * median(plain):.0f} ms) |\n|---|---|")
    for name, seconds in measured.items():
        ratios = [with_penalty / without for with_penalty, without in zip(seconds, plain, strict=True)]
        print(f"| `{name}` | {Spread.of(ratios):.2f} |")


if __name__ == "__main__":
    main()
