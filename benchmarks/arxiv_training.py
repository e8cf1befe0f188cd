"""Training on Arxiv: full-batch beside a bare PyG loop, and sampled with one and two processes.

    python benchmarks/arxiv_training.py [--root data] [--epochs 3]

A 2-layer GAT with 64 hidden units on the symmetrised graph, on the CPU. Full-batch runs both ways in turns, the best
epoch counts. Sampled fits run as `configs/arxiv_ddp.yaml` does: their epoch is the training part alone, `edges` are
those that all processes sampled in it, and the explanation is what ExplainCallback does with 100 targets in the last
epoch (GAtt, AvgAtt and Random, one protocol, all statistics).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from attree.callbacks import ExplainCallback
from attree.data import Arxiv
from attree.models import GAT, NodeClassifier


class Stopwatch(Callback):
    """Times the training part of every epoch and counts the edges that went through it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.edges = 0
        self._began = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began, self.edges = time.perf_counter(), 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.edges += batch.edge_index.size(1)
        if batch_idx + 1 == trainer.num_training_batches:
            self.seconds.append(time.perf_counter() - self._began)


def network() -> GAT:
    torch.manual_seed(0)
    return GAT(in_channels=128, out_channels=40, hidden_channels=64, num_layers=2)


def bare_loop(data: Arxiv, epochs: int) -> float:
    """Best seconds of an epoch of a loop that a PyG tutorial would write."""
    graph, net, best = data.graph, network(), float("inf")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    net.train()
    for _ in range(epochs):
        began = time.perf_counter()
        optimizer.zero_grad()
        out = net(graph.x, graph.edge_index)
        F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask]).backward()
        optimizer.step()
        best = min(best, time.perf_counter() - began)
    return best


def fit(data: Arxiv, epochs: int, *callbacks: Callback, **options: Any) -> tuple[Stopwatch, Trainer]:
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[watch, *callbacks],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            default_root_dir=folder,
            **options,
        )
        trainer.fit(NodeClassifier(network(), lr=0.005), datamodule=data)
    return watch, trainer


def full_batch(root: str, epochs: int) -> None:
    data = Arxiv(root=root)
    data.setup()
    bare, ours = [], []
    bare_loop(data, 1)
    for _ in range(2):
        bare.append(bare_loop(data, epochs))
        ours.append(min(fit(data, epochs, limit_val_batches=0)[0].seconds))
    print(f"full batch, bare PyG loop: {min(bare):.2f} s an epoch")
    print(f"full batch, attree:        {min(ours):.2f} s an epoch, ratio {min(ours) / min(bare):.2f}", flush=True)


def sampled(root: str, epochs: int, processes: int) -> None:
    data = Arxiv(split="public", root=root, num_neighbors=[15, 10])
    strategy = "ddp" if processes > 1 else "auto"
    explain = ExplainCallback(random_draws=1, figures=0, save=False)
    watch, trainer = fit(data, epochs, explain, devices=processes, strategy=strategy)
    edges = trainer.strategy.reduce(torch.tensor(float(watch.edges)), reduce_op="sum")
    if trainer.is_global_zero:
        best, metrics = min(watch.seconds), trainer.callback_metrics
        print(
            f"sampled, {processes} process(es): {best:.1f} s an epoch of {trainer.num_training_batches} steps, "
            f"{int(edges) / best / 1e6:.2f} million edges trained on per second, "
            f"explanation {float(metrics['explain/seconds']):.1f} s, val/acc {float(metrics['val/acc']):.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="data folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--processes", type=int, help="only the sampled fit, with this many processes")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.processes is not None:
        torch.set_num_threads(max(1, torch.get_num_threads() // arguments.processes))
        sampled(arguments.root, arguments.epochs, arguments.processes)
        return
    full_batch(arguments.root, arguments.epochs)
    # A fresh interpreter each: Lightning starts the second process by running the same command again.
    for processes in (1, 2):
        command = [sys.executable, __file__, "--root", arguments.root, "--processes", str(processes)]
        subprocess.run([*command, "--epochs", str(arguments.epochs)], check=True, env=os.environ)


if __name__ == "__main__":
    main()
