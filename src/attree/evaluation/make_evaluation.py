"""Choose targets and set up their evaluation, for the kind of data that a trainer runs on."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch_geometric.data import Batch

from attree.attention import LoopedGraph
from attree.data import GraphDataModule, NodeDataModule
from attree.errors import ArgumentError, expect
from attree.evaluation.evaluation import Evaluation, Settings
from attree.evaluation.graph_evaluation import GraphEvaluation
from attree.evaluation.node_evaluation import NodeEvaluation
from attree.models import GraphClassifier


def network_of(pl_module: LightningModule) -> nn.Module:
    """The network inside a LightningModule: its `net`, or else the module itself."""
    net = getattr(pl_module, "net", None)
    return net if isinstance(net, nn.Module) else pl_module


def choose_targets(number: int, available: int, seed: int) -> Tensor:
    """Distinct random positions in [0, available), ascending; all of them where fewer exist than asked for."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(available, generator=generator)[:number].sort().values


def make_evaluation(
    trainer: Trainer, pl_module: LightningModule, settings: Settings, targets: Tensor | None = None
) -> Evaluation:
    """Set up the evaluation of a trainer's model on a trainer's data.

    Args:
        trainer: Gives the data module.
        pl_module: The model, on its device.
        settings: What to evaluate.
        targets: Targets of a run that is resumed; None chooses anew.
    """
    data = getattr(trainer, "datamodule", None)
    device = pl_module.device
    if isinstance(data, NodeDataModule):
        graph = data.transfer_batch_to_device(data.graph, device, 0)
        if targets is None:
            targets = choose_targets(settings.num_targets, graph.num_nodes, settings.seed)
        inside = bool((targets < graph.num_nodes).all())
        expect(inside, "targets", f"node ids in [0, {graph.num_nodes}), as the run began with", int(targets.max()))
        looped = LoopedGraph(graph.edge_index, graph.num_nodes)
        truth = data.truth if settings.ground_truth else None
        return NodeEvaluation(network_of(pl_module), graph.x, looped, targets, truth, settings)
    if isinstance(data, GraphDataModule) and isinstance(pl_module, GraphClassifier):
        if targets is None:
            test = torch.as_tensor(data.split["test"])
            targets = test[choose_targets(settings.num_targets, test.numel(), settings.seed)]
        batch = Batch.from_data_list([data.graphs[position] for position in targets.tolist()]).to(device)
        return GraphEvaluation(pl_module, batch, targets, settings)
    raise ArgumentError(
        "Expected argument `datamodule` of the trainer's call to be an attree data module (a NodeDataModule, or a "
        "GraphDataModule with a GraphClassifier), which tells ExplainCallback what to explain, "
        f"but got {type(data).__name__}."
    )
