"""What ExplainCallback adds to a training epoch, as a ratio to the epoch itself.

    python benchmarks/callback.py [--epochs 100] [--rounds 7]

Fits the same network on the same graph with and without the callback, in turns, in one process. With it, every epoch
scores 100 targets by GAtt, AvgAtt and Random, reduces all their pairs under one protocol and computes all statistics;
ground truth too where there is some. Printed are medians over the rounds, in brackets the quartiles that half of the
rounds lie between; the ratio is what carries over to other machines.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from functools import partial
from pathlib import Path

from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table

from attree.callbacks import EpochProgress, ExplainCallback
from attree.data import Infection, NodeDataModule, Planetoid
from attree.models import GAT, NodeClassifier
from timing import Race


def fit(data: NodeDataModule, layers: int, hidden: int, epochs: int, explain: bool) -> None:
    """A fit with or without the callback."""
    seed_everything(0, verbose=False)
    model = NodeClassifier(GAT(data.num_features, data.num_classes, hidden, layers))
    callbacks: list[Callback] = [EpochProgress()]
    if explain:
        callbacks.append(ExplainCallback(num_targets=100, protocols=["weight"], random_draws=1, figures=0, save=False))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=epochs,
            callbacks=callbacks,
            logger=TensorBoardLogger(folder, default_hp_metric=False),
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
        )
        trainer.fit(model, datamodule=data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data root with planetoid/Cora (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=100, help="epochs a fit (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="fits of each kind (default: %(default)s)")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")

    cases: dict[str, tuple[NodeDataModule, int, int]] = {"Infection, 3 layers": (Infection(), 3, 8)}
    if (Path(options.data) / "planetoid" / "Cora").is_dir():
        for layers in (2, 3):
            cases[f"Cora, {layers} layers"] = (Planetoid("Cora", root=options.data), layers, 64)
    table = Table("", "epoch alone", "with callback", "callback / epoch", title="ExplainCallback every epoch")
    for name, case in cases.items():
        case[0].setup()
        contestants = {
            "alone": partial(fit, *case, options.epochs, False),
            "with callback": partial(fit, *case, options.epochs, True),
        }
        race = Race(contestants, options.rounds)
        each = (f"{1e3 * race.time(contestant).median / options.epochs:.1f} ms" for contestant in contestants)
        table.add_row(name, *each, f"{race.extra('with callback', 'alone'):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
