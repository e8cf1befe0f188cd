"""Choose targets and set up their evaluation, for whatever a trainer trains and runs on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from attree.attribution import AttributionMethod
from attree.callbacks.explained_data import ExplainedData, Subset, find_data
from attree.callbacks.network import find_subject
from attree.data import GroundTruth
from attree.errors import expect
from attree.evaluation import Evaluator
from attree.evaluation.shard import Shard
from attree.evaluation.target_labels import TargetLabels
from attree.evaluation.targets import choose_targets
from attree.faithfulness import Protocol
from attree.models import Classifier
from attree.subject import Head
from attree.subject.binding import Call
from attree.subject.readout import Readout


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
        subset: Which nodes or graphs are chosen from.
        data: What is explained, if not the trainer's own data.
        truth: True edges of nodes, if not the data module's own.
        network: Where the network is inside the module; None looks for it.
        call: How the module is called instead.
        head: What the outputs mean.
        readout: Graph-level: how nodes become a graph; None takes the module's own.
    """

    methods: tuple[AttributionMethod, ...]
    protocols: tuple[str | Protocol, ...]
    num_targets: int = 100
    ground_truth: bool = True
    random_draws: int = 1
    seed: int = 0
    subset: Subset = "all"
    data: Any = None
    truth: GroundTruth | None = None
    network: str | None = None
    call: Call | None = None
    head: Head = field(default_factory=Head)
    readout: Readout | None = None


def make_evaluator(
    trainer: Trainer,
    pl_module: LightningModule,
    settings: ExplainSettings,
    targets: Tensor | None = None,
    warn: bool = True,
) -> tuple[Evaluator, Tensor]:
    """Set up the evaluation of a trainer's model on a trainer's data.

    Args:
        trainer: Gives the data.
        pl_module: The model, on its device.
        settings: What to evaluate.
        targets: Targets of a run that is resumed; None chooses anew.
        warn: Look for what attention does not see of the model, and warn of it.

    Returns:
        The evaluator, and what its targets are called in the dataset: node ids, or positions of graphs.
    """
    data = find_data(trainer, settings.data, settings.subset)
    targets = _choose(data, settings) if targets is None else targets
    graph = data.on(targets.tolist(), pl_module.device)
    head = settings.head
    if isinstance(pl_module, Classifier) and head == Head():
        head = Head("multiclass_classification", "raw")  # known, so outputs of an untrained network need not tell
    subject = find_subject(
        pl_module,
        graph,
        network=settings.network,
        call=settings.call,
        head=head,
        readout=settings.readout,
        num_classes=data.count_classes(),
    )
    chosen = targets
    if not data.is_one_graph:
        chosen = torch.arange(targets.numel())
        if subject.level != "graph":  # nodes of many graphs are explained
            chosen = choose_targets(settings.num_targets, subject.graph.num_nodes, settings.seed)
    elif subject.level == "graph":
        chosen = torch.zeros(1, dtype=torch.int64)
    truth = settings.truth if settings.truth is not None else data.truth
    ids = None if data.is_one_graph else targets
    dataset = None if settings.data is not None else getattr(getattr(trainer, "datamodule", None), "name", None)
    labels = TargetLabels.of(
        graph, subject, data.class_names, data.node_types, ids, dataset if isinstance(dataset, str) else None
    )
    evaluator = Evaluator(
        subject,
        chosen,
        settings.methods,
        settings.protocols,
        truth if settings.ground_truth else None,
        random_draws=settings.random_draws,
        seed=settings.seed,
        labels=labels,
        shard=Shard(trainer.global_rank, trainer.world_size),
        warn=warn,
    )
    return evaluator, targets.cpu()


def _choose(data: ExplainedData, settings: ExplainSettings) -> Tensor:
    """Node ids of the one graph, or positions of graphs."""
    size = int(data.graphs[0].num_nodes or 0) if data.is_one_graph else len(data.graphs)
    choice = torch.arange(size) if data.choice is None else data.choice
    expect(choice.numel() > 0, "subset", "one with nodes or graphs to explain", settings.subset)
    return choice[choose_targets(settings.num_targets, choice.numel(), settings.seed)].sort().values
