"""A fit through Lightning beside the same training and validation as a bare PyG loop.

    python benchmarks/training.py [--rounds 100] [--epochs 10]

Infection as `configs/infection.yaml` has it: a 3-layer GAT, full batch, validated every epoch. The fit runs as the
command line runs it, with the TensorBoard logger and the progress bar on, but without ExplainCallback. Both train side
by side in one process and take turns every few epochs: a machine whose speed changes from one second to the next slows
both alike. Printed are medians over the turns, in brackets the quartiles that half of them lie between; the ratio is
what carries over to other machines.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks import EpochProgress
from attree.data import Infection
from attree.models import GAT, NodeClassifier
from timing import Spread, timed


def network() -> GAT:
    torch.manual_seed(0)
    return GAT(in_channels=2, out_channels=5, hidden_channels=8, num_layers=3)


def bare_loop(data: Infection) -> Iterator[float]:
    """Epochs of a loop that a PyG tutorial would write: the validation accuracy after each."""
    graph, net = data.graph, network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    while True:
        net.train()
        optimizer.zero_grad()
        out = net(graph.x, graph.edge_index)
        F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask]).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            out, y = net(graph.x, graph.edge_index)[graph.val_mask], graph.y[graph.val_mask]
            float(F.cross_entropy(out, y))
            accuracy = float((out.argmax(dim=-1) == y).float().mean())
        yield accuracy


class Turns(Callback):
    """Stops a fit every few epochs for as many of the bare loop, and takes the time of each.

    Attributes:
        bare, fit: Seconds of each turn; the first one of both does not count.
        accuracy: The bare loop's last.
    """

    def __init__(self, data: Infection, epochs: int) -> None:
        self.epochs = epochs
        self.bare: list[float] = []
        self.fit: list[float] = []
        self.accuracy = 0.0
        self._loop = bare_loop(data)
        self._began = time.perf_counter()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch % self.epochs == 0:
            if trainer.current_epoch > 0:
                self.fit.append(time.perf_counter() - self._began)
            seconds, self.accuracy = timed(lambda: [next(self._loop) for _ in range(self.epochs)][-1])
            self.bare.append(seconds)
            self._began = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.fit.append(time.perf_counter() - self._began)


def fit(data: Infection, turns: Turns, rounds: int, folder: str) -> float:
    """Final validation accuracy of a fit that takes turns."""
    model = NodeClassifier(network(), lr=0.005)
    trainer = Trainer(
        max_epochs=rounds * turns.epochs,
        accelerator="cpu",
        logger=TensorBoardLogger(folder, name="training", default_hp_metric=False),
        callbacks=[EpochProgress(), turns],
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data)
    return float(trainer.callback_metrics["val/acc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="turns of each (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs a turn (default: %(default)s)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    data, rounds, epochs = Infection(num_layers=3, seed=0), arguments.rounds + 1, arguments.epochs
    data.setup()
    turns = Turns(data, epochs)
    with tempfile.TemporaryDirectory() as folder:
        accuracy = fit(data, turns, rounds, folder)
    for name, seconds, reached in (("bare PyG loop", turns.bare, turns.accuracy), ("attree fit", turns.fit, accuracy)):
        each = 1e3 * Spread.of(seconds[1:]).median / epochs
        print(f"{name:14} {each:5.2f} ms an epoch, val/acc {reached:.4f} after {rounds * epochs}")
    ratios = [ours / bare for ours, bare in zip(turns.fit[1:], turns.bare[1:], strict=True)]
    print(f"ratio          {Spread.of(ratios):.2f}")


if __name__ == "__main__":
    main()
