"""Choose targets and set up their evaluation, for the kind of data that a trainer runs on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch_geometric.data import Batch

from attree.attribution import AttributionMethod
from attree.data import GraphDataModule, NodeDataModule
from attree.errors import ArgumentError, expect
from attree.evaluation import Evaluator
from attree.evaluation.shard import Shard
from attree.evaluation.targets import choose_targets
from attree.faithfulness import Protocol
from attree.models import GraphClassifier
from attree.subject import ModelInputs, Subject


@dataclass(frozen=True)
class ExplainSettings:
    """What a callback evaluates.

    Attributes:
        methods: Attribution methods.
        protocols: Reduction protocols.
        num_targets: How many targets to choose.
        ground_truth: Measure against ground truth where the data has some.
        random_draws: Draws that the statistics of random methods are averaged over.
        seed: Seed of the choice of targets and of methods that draw.
    """

    methods: tuple[AttributionMethod, ...]
    protocols: tuple[str | Protocol, ...]
    num_targets: int = 100
    ground_truth: bool = True
    random_draws: int = 1
    seed: int = 0


def network_of(pl_module: LightningModule) -> nn.Module:
    """The network inside a LightningModule: its `net`, or else the module itself."""
    net = getattr(pl_module, "net", None)
    return net if isinstance(net, nn.Module) else pl_module


def make_evaluator(
    trainer: Trainer, pl_module: LightningModule, settings: ExplainSettings, targets: Tensor | None = None
) -> tuple[Evaluator, Tensor]:
    """Set up the evaluation of a trainer's model on a trainer's data.

    Args:
        trainer: Gives the data module.
        pl_module: The model, on its device.
        settings: What to evaluate.
        targets: Targets of a run that is resumed; None chooses anew.

    Returns:
        The evaluator, and what its targets are called in the dataset: node ids, or positions of graphs.
    """
    data = getattr(trainer, "datamodule", None)
    device, shard = pl_module.device, Shard(trainer.global_rank, trainer.world_size)
    if isinstance(data, NodeDataModule):
        graph = data.transfer_batch_to_device(data.graph, device, 0)
        if targets is None:
            targets = choose_targets(settings.num_targets, graph.num_nodes, settings.seed)
        inside = bool((targets < graph.num_nodes).all())
        expect(inside, "targets", f"node ids in [0, {graph.num_nodes}), as the run began with", int(targets.max()))
        net = network_of(pl_module)
        subject = Subject(net, ModelInputs.of(net, graph.x, graph.edge_index), level="node")
        truth, chosen = data.truth if settings.ground_truth else None, targets
    elif isinstance(data, GraphDataModule) and isinstance(pl_module, GraphClassifier):
        if targets is None:
            test = torch.as_tensor(data.split["test"])
            targets = test[choose_targets(settings.num_targets, test.numel(), settings.seed)]
        batch = Batch.from_data_list([data.graphs[position] for position in targets.tolist()]).to(device)
        inputs = ModelInputs.of(pl_module, batch.x, batch.edge_index, batch=batch.batch)
        subject = Subject(pl_module, inputs, level="graph", readout=pl_module.readout)
        truth, chosen = None, torch.arange(targets.numel())
    else:
        raise ArgumentError(
            "Expected argument `datamodule` of the trainer's call to be an attree data module (a NodeDataModule, or a "
            "GraphDataModule with a GraphClassifier), which tells ExplainCallback what to explain, "
            f"but got {type(data).__name__}."
        )
    evaluator = Evaluator(
        subject,
        chosen,
        settings.methods,
        settings.protocols,
        truth,
        random_draws=settings.random_draws,
        seed=settings.seed,
        shard=shard,
    )
    return evaluator, targets.cpu()
