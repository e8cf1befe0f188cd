"""What ExplainCallback adds to a training epoch, as a ratio to the epoch itself.

    python benchmarks/callback.py [--epochs 100] [--rounds 7]

Fits the same network on the same graph with and without the callback, in turns, in one process. With it, every epoch
scores 100 targets by GAtt, AvgAtt, Uniform and Random, reduces all their pairs under one protocol and computes all
statistics; ground truth too where there is some. Printed are medians over the rounds, in brackets the quartiles that
half of the rounds lie between; the ratio is what carries over to other machines. All times are CPU time, which a busy
machine disturbs less. Below, the callback's time by what it is spent on.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table

from attree.callbacks import EpochProgress, ExplainCallback
from attree.data import Infection, NodeDataModule, Planetoid
from attree.evaluation import Evaluator
from attree.evaluation.edge_sets import TruthEvaluator
from attree.evaluation.statistics import PooledStatistics
from attree.faithfulness import Effects, Reducer
from attree.models import GAT, NodeClassifier
from timing import Race

PARTS: list[tuple[str, type, str]] = [
    ("numbers logged by self.log", LightningModule, "log"),
    ("recorded pass in float64", Reducer, "record"),
    ("reductions", Effects, "reduce"),
    ("statistics", PooledStatistics, "metrics"),
    ("ground truth", TruthEvaluator, "auroc"),
    ("other parts of the evaluation", Evaluator, "evaluate"),
    ("before the first epoch", ExplainCallback, "on_train_start"),
    ("hashes of weights, and all else", ExplainCallback, "on_validation_epoch_end"),
]
"""Parts of an epoch with the callback: what they are, and the method whose time they take without other parts."""


class Parts:
    """CPU seconds of methods, each without the others that it calls; only of calls inside the callback."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self._inner: list[float] = []

    def watch(self, part: str, owner: type, name: str) -> None:
        """Watch a method from now on."""
        method: Callable[..., Any] = getattr(owner, name)

        @wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self._inner and owner is not ExplainCallback:
                return method(*args, **kwargs)
            began = time.process_time()
            self._inner.append(0.0)
            try:
                return method(*args, **kwargs)
            finally:
                seconds = time.process_time() - began
                self.seconds[part] += seconds - self._inner.pop()
                if self._inner:
                    self._inner[-1] += seconds

        setattr(owner, name, watched)


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
    parts = Parts()
    for label, owner, method in PARTS:
        parts.watch(label, owner, method)
    milliseconds: dict[str, dict[str, float]] = {}
    for name, case in cases.items():
        case[0].setup()
        contestants = {
            "alone": partial(fit, *case, options.epochs, False),
            "with callback": partial(fit, *case, options.epochs, True),
        }
        parts.seconds.clear()
        race = Race(contestants, options.rounds, time.process_time)
        each = (f"{1e3 * race.time(contestant).median / options.epochs:.1f} ms" for contestant in contestants)
        table.add_row(name, *each, f"{race.extra('with callback', 'alone'):.2f}")
        epochs = options.epochs * (options.rounds + 1)  # one turn does not count in the race
        milliseconds[name] = {label: 1e3 * parts.seconds[label] / epochs for label, _, _ in PARTS}
    console = Console()
    console.print(table)
    split = Table("ms of CPU time an epoch", *milliseconds, title="Where the callback's time goes")
    for label, _, _ in PARTS:
        split.add_row(label, *(f"{column[label]:.1f}" for column in milliseconds.values()))
    console.print(split)


if __name__ == "__main__":
    main()
