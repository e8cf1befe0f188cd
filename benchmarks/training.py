"""A fit through Lightning beside the same training and validation as a bare PyG loop.

    python benchmarks/training.py [--epochs 300] [--repeats 3]

Infection as `configs/infection.yaml` has it: a 3-layer GAT, full batch, validated every epoch. The fit runs as the
command line runs it, with the TensorBoard logger and the progress bar on, but without ExplainCallback. Both are
repeated in turns and the best of each counts; the ratio is what carries over to other machines.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks import EpochProgress
from attree.data import Infection
from attree.models import GAT, NodeClassifier


def network(seed: int) -> GAT:
    torch.manual_seed(seed)
    return GAT(in_channels=2, out_channels=5, hidden_channels=8, num_layers=3)


def bare_loop(data: Infection, epochs: int) -> tuple[float, float]:
    """Seconds and final validation accuracy of a loop that a PyG tutorial would write."""
    graph, net = data.graph, network(0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    began, accuracy = time.perf_counter(), 0.0
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
    return time.perf_counter() - began, accuracy


def fit(data: Infection, epochs: int, folder: str) -> tuple[float, float]:
    """Seconds and final validation accuracy of `Trainer.fit`, everything included."""
    model = NodeClassifier(network(0), lr=0.005)
    logger = TensorBoardLogger(folder, name="training", default_hp_metric=False)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=logger,
        callbacks=[EpochProgress()],
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    began = time.perf_counter()
    trainer.fit(model, datamodule=data)
    return time.perf_counter() - began, float(trainer.callback_metrics["val/acc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    data = Infection(num_layers=3, seed=0)
    data.setup()
    bare_loop(data, 20)
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            bare.append(bare_loop(data, arguments.epochs))
            ours.append(fit(data, arguments.epochs, folder))
    for name, runs in (("bare PyG loop", bare), ("attree fit", ours)):
        seconds, accuracy = min(runs)
        each = 1e3 * seconds / arguments.epochs
        print(f"{name:14} {seconds:6.2f} s for {arguments.epochs} epochs, {each:5.2f} ms each, val/acc {accuracy:.4f}")
    print(f"ratio          {min(ours)[0] / min(bare)[0]:6.2f}")


if __name__ == "__main__":
    main()
