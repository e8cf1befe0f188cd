"""ExplainCallback: follow how well a network's attention explains it, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attention import Attention, LoopedGraph, capture_attention
from attree.attribution import make_methods
from attree.callbacks.truth_evaluation import TruthEvaluation
from attree.data import NodeDataModule
from attree.errors import ArgumentError, expect
from attree.report.table import metrics_table


class ExplainCallback(Callback):
    """Logs explanation quality while a network trains, and saves its explanations when it has trained.

    After each validation (every `every_n_epochs` epochs of a fit) the attention of the network is captured and scored
    by each method. Where the data has ground truth, `explain/<method>/truth_auroc` is logged: the AUROC of the scores
    for finding true edges, pooled over all (target, edge) pairs of all targets that have one. When training ends, GAtt
    of all targets is saved to `explanations/gatt.npz` in the run's folder (see `attree.attribution.Attribution.save`)
    and the last metrics are printed as a table.

    Args:
        methods: Attribution methods to compare: `gatt`, `gatt_sim`, `gatt_avg`, `avgatt`, `random`.
        every_n_epochs: Epochs between two evaluations; 0 evaluates only when training ends.
        save: Save GAtt of all targets when training ends.
        seed: Seed of the `random` method.
    """

    def __init__(
        self,
        methods: Sequence[str] = ("gatt", "avgatt", "random"),
        every_n_epochs: int = 1,
        save: bool = True,
        seed: int = 0,
    ) -> None:
        expect(every_n_epochs >= 0, "every_n_epochs", "an integer >= 0", every_n_epochs)
        self.methods = make_methods(methods, seed=seed)
        self.every_n_epochs = every_n_epochs
        self.save = save
        self._graph: LoopedGraph | None = None
        self._truth: TruthEvaluation | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._graph = self._truth = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        fitting = trainer.training or trainer.state.fn == "fit"
        if fitting and (self.every_n_epochs == 0 or (trainer.current_epoch + 1) % self.every_n_epochs):
            return
        self._evaluate(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            path = self._save(trainer, pl_module) if self.save else None
            self._report(trainer, path)

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        began = perf_counter()
        attention = self._capture(trainer, pl_module)
        for name, auroc in self._truth_aurocs(trainer, attention).items():
            pl_module.log(f"explain/{name}/truth_auroc", auroc.float(), prog_bar=name == "gatt")
        pl_module.log("explain/seconds", perf_counter() - began)

    def _truth_aurocs(self, trainer: Trainer, attention: Attention) -> dict[str, Tensor]:
        truth = _datamodule(trainer).truth
        if truth is None:
            return {}
        if self._truth is None:
            self._truth = TruthEvaluation(
                attention.graph, truth, attention.num_layers, trainer.global_rank, trainer.world_size
            )
        return self._truth.evaluate(attention, self.methods)

    def _capture(self, trainer: Trainer, pl_module: LightningModule) -> Attention:
        data = _graph_on(trainer, pl_module.device)
        if self._graph is None:
            self._graph = LoopedGraph(data.edge_index, data.num_nodes)
        return capture_attention(_network(pl_module), data.x, data.edge_index, graph=self._graph)

    def _save(self, trainer: Trainer, pl_module: LightningModule) -> Path | None:
        if trainer.log_dir is None:
            return None
        truth = _datamodule(trainer).truth
        attention = self._capture(trainer, pl_module)
        targets: Any = "all" if truth is None else truth.targets
        gatt = make_methods(["gatt"])["gatt"].attribute(attention, targets)
        return gatt.save(Path(trainer.log_dir) / "explanations" / "gatt.npz")

    def _report(self, trainer: Trainer, saved: Path | None) -> None:
        console = Console()
        console.print(metrics_table(trainer.callback_metrics))
        if saved is not None:
            console.print(f"GAtt of all targets: {saved}")
        if trainer.log_dir is not None:
            root = getattr(trainer.logger, "save_dir", None) or trainer.log_dir
            console.print(f"Curves: tensorboard --logdir {root}")


def _datamodule(trainer: Trainer) -> NodeDataModule:
    datamodule = getattr(trainer, "datamodule", None)
    if not isinstance(datamodule, NodeDataModule):
        raise ArgumentError(
            "Expected argument `datamodule` of the trainer's call to be an attree data module, which tells "
            f"ExplainCallback the graph and its targets, but got {type(datamodule).__name__}."
        )
    return datamodule


def _network(pl_module: LightningModule) -> nn.Module:
    net = getattr(pl_module, "net", None)
    return net if isinstance(net, nn.Module) else pl_module


def _graph_on(trainer: Trainer, device: torch.device) -> Data:
    datamodule = _datamodule(trainer)
    return datamodule.transfer_batch_to_device(datamodule.graph, device, 0)
