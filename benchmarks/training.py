"""A fit through Lightning beside the same training and validation as a bare PyG loop.

    python benchmarks/training.py [--epochs 300] [--rounds 9]

Infection as `configs/infection.yaml` has it: a 3-layer GAT, full batch, validated every epoch. The fit runs as the
command line runs it, with the TensorBoard logger and the progress bar on, but without ExplainCallback. Both take turns
in one process. Printed are medians over the rounds, in brackets the quartiles that half of the rounds lie between; the
ratio is what carries over to other machines.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks import EpochProgress
from attree.data import Infection
from attree.models import GAT, NodeClassifier
from timing import Race


def network() -> GAT:
    torch.manual_seed(0)
    return GAT(in_channels=2, out_channels=5, hidden_channels=8, num_layers=3)


def bare_loop(data: Infection, epochs: int) -> float:
    """Final validation accuracy of a loop that a PyG tutorial would write."""
    graph, net = data.graph, network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    accuracy = 0.0
    for _ in range(epochs):
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
    return accuracy


def fit(data: Infection, epochs: int, folder: str) -> float:
    """Final validation accuracy of a fit, everything included."""
    model = NodeClassifier(network(), lr=0.005)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=TensorBoardLogger(folder, name="training", default_hp_metric=False),
        callbacks=[EpochProgress()],
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data)
    return float(trainer.callback_metrics["val/acc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=300, help="epochs a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (default: %(default)s)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    data, epochs = Infection(num_layers=3, seed=0), arguments.epochs
    data.setup()
    with tempfile.TemporaryDirectory() as folder:
        contestants = {
            "bare PyG loop": lambda: bare_loop(data, epochs),
            "attree fit": lambda: fit(data, epochs, folder),
        }
        race = Race(contestants, arguments.rounds)
    for name, accuracy in race.results.items():
        each = 1e3 * race.time(name).median / epochs
        print(f"{name:14} {each:5.2f} ms an epoch, val/acc {accuracy:.4f} after {epochs}")
    print(f"ratio          {race.ratio('attree fit', 'bare PyG loop'):.2f}")


if __name__ == "__main__":
    main()
