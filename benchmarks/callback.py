"""What ExplainCallback adds to a training epoch, as a ratio to the epoch itself.

    python benchmarks/callback.py

Fits the same network on the same graph with and without the callback, in turns, in one process, and compares the best
times. With it, every epoch scores 100 targets by GAtt, AvgAtt and Random, reduces all their pairs under one protocol
and computes all statistics; ground truth too where there is some.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table

from attree.callbacks import EpochProgress, ExplainCallback
from attree.data import Infection, NodeDataModule, Planetoid
from attree.models import GAT, NodeClassifier


def fit_seconds(make_data: Callable[[], NodeDataModule], layers: int, hidden: int, epochs: int, explain: bool) -> float:
    """Seconds per epoch of a fit, with or without the callback."""
    seed_everything(0, verbose=False)
    data = make_data()
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
        began = time.perf_counter()
        trainer.fit(model, datamodule=data)
        return (time.perf_counter() - began) / epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data root with planetoid/Cora (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=100, help="epochs a fit (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="fits of each kind; the best counts")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")

    cases: dict[str, tuple[Callable[[], NodeDataModule], int, int]] = {
        "Infection, 3 layers": (lambda: Infection(), 3, 8),
        "Cora, 2 layers": (lambda: Planetoid("Cora", root=options.data), 2, 64),
        "Cora, 3 layers": (lambda: Planetoid("Cora", root=options.data), 3, 64),
    }
    if not (Path(options.data) / "planetoid" / "Cora").is_dir():
        cases = {name: case for name, case in cases.items() if not name.startswith("Cora")}
    table = Table(
        "", "epoch alone", "with callback", "callback", "callback / epoch", title="ExplainCallback every epoch"
    )
    for name, (make_data, layers, hidden) in cases.items():
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.repeats):
            for explain in (False, True):
                seconds[explain].append(fit_seconds(make_data, layers, hidden, options.epochs, explain))
        alone, both = min(seconds[False]), min(seconds[True])
        extra = both - alone
        table.add_row(name, *(f"{1000 * value:.1f} ms" for value in (alone, both, extra)), f"{extra / alone:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
