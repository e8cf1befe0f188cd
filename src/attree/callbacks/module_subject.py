"""Find the network of a LightningModule that predicts, and set up the evaluation of its targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.attention.softmax_hook import message_passing
from attree.callbacks.explained_data import Drawn, ExplainedData, Subset
from attree.data import GroundTruth
from attree.errors import ArgumentError, AttreeError, UnsupportedModelError, expect
from attree.evaluation import EvaluationConfig, Evaluator
from attree.evaluation.config import Shard, choose_targets
from attree.evaluation.target_labels import TargetLabels
from attree.models import Classifier, LinkPredictor
from attree.subject import Head, Subject
from attree.subject.binding import Call
from attree.subject.head import check_classes, check_labels, labels_of
from attree.subject.readout import READOUTS, Readout

NAMES = ("net", "model", "gnn", "network", "backbone", "encoder")
"""Attributes of a module that may be its network; tried after the module itself."""

TRIED_EDGES = 8
"""Number of edges around a target that are enough to try out the evaluation."""


@dataclass(frozen=True)
class ExplainSettings:
    """The settings of ExplainCallback.

    Attributes:
        config: Methods, protocols, targets and draws of the evaluation.
        subset: The subset of nodes or graphs that targets are chosen from.
        data: The data to explain; None takes the trainer's.
        truth: True edges of nodes; None takes the data module's.
        network: Path of the network inside the module; None looks for it.
        call: A function that calls the module, instead of `network`.
        head: The meaning of the outputs.
        readout: For graph-level modules, how nodes become a graph; None takes the module's own.
    """

    config: EvaluationConfig
    subset: Subset = "all"
    data: Any = None
    truth: GroundTruth | None = None
    network: str | None = None
    call: Call | None = None
    head: Head = field(default_factory=Head)
    readout: Readout | None = None


@dataclass(frozen=True)
class ExplainedModule:
    """The module to explain in one call of a trainer.

    Attributes:
        evaluator: The evaluator of its targets.
        drawn: The targets: node ids, or positions of graphs in the data.
    """

    evaluator: Evaluator
    drawn: Drawn

    def try_out(self, settings: ExplainSettings) -> None:
        """Evaluate one target, so that a network that cannot be explained is refused before training."""
        config = replace(settings.config, random_draws=1)
        Evaluator(self.evaluator.subject, self._cheap_target(), config, warn=False).evaluate()

    def _cheap_target(self) -> Tensor:
        """Return a target with few edges around it, but enough to show whether they can be reduced."""
        pairs = self.evaluator.pairs
        if pairs.targets.numel() == 0:  # this process has no share of the targets
            return self.evaluator.targets[:1]
        flow = torch.bincount(pairs.owner[pairs.flow], minlength=pairs.targets.numel())
        enough = flow >= min(TRIED_EDGES, int(flow.max()))
        return pairs.targets[flow.masked_fill(~enough, int(flow.max()) + 1).argmin().view(1)]


def explain_module(
    module: LightningModule,
    data: ExplainedData,
    settings: ExplainSettings,
    before: Drawn | None = None,
    shard: Shard | None = None,
) -> ExplainedModule:
    """Set up the evaluation of a module on data.

    Args:
        module: The module, on its device.
        data: The data to explain it on.
        settings: The settings of the callback.
        before: Targets that were drawn before; they are kept if they were drawn from the same data.
        shard: This process's share of the targets.
    """
    config = settings.config
    drawn = data.draw(config.num_targets, config.seed, settings.subset, before)
    graph = data.on(drawn.targets.tolist(), module.device)
    head = known_head(module) if settings.head == Head() else settings.head
    subject = find_subject(
        module,
        graph,
        network=settings.network,
        call=settings.call,
        head=head,
        readout=settings.readout,
        num_classes=data.count_classes(),
        only_links=data.only_links,
        node_type=data.node_type,
    )
    if data.is_one_graph and data.has_links:
        if subject.level == "edge":
            expect(data.choice is None, "subset", "'all' if the pairs of a graph are explained", settings.subset)
        else:  # the module does not predict the graph's pairs
            data = replace(data, has_links=False)
            drawn = data.draw(config.num_targets, config.seed, settings.subset, before)
    targets_to_explain = drawn.targets
    if not data.is_one_graph:
        targets_to_explain = torch.arange(drawn.targets.numel())
        if subject.level != "graph":  # nodes of many graphs are explained
            targets_to_explain = choose_targets(config.num_targets, subject.graph.num_nodes, config.seed)
    elif subject.level == "graph":
        targets_to_explain = torch.zeros(1, dtype=torch.int64)
    truth = settings.truth if settings.truth is not None else data.truth
    ids = None if data.is_one_graph else drawn.targets
    labels = TargetLabels.of(graph, subject, data.class_names, data.node_types, ids, data.name)
    return ExplainedModule(Evaluator(subject, targets_to_explain, config, truth, labels=labels, shard=shard), drawn)


def known_head(module: nn.Module) -> Head:
    """Return the meaning of the outputs of attree's modules, which the outputs of an untrained network do not show."""
    if isinstance(module, Classifier):
        return Head("multiclass_classification", "raw")
    return Head("binary_classification", "raw") if isinstance(module, LinkPredictor) else Head()


def find_subject(
    module: nn.Module,
    data: Data | HeteroData,
    *,
    network: str | None = None,
    call: Call | None = None,
    head: Head | None = None,
    readout: Readout | None = None,
    num_classes: int | None = None,
    only_links: bool = False,
    node_type: str | None = None,
) -> Subject:
    """Return the subject of the first network in a module whose outputs fit the data.

    Outputs fit if they have one row per node, pair or graph, and one column per class. With `network` or `call`, the
    user's choice is taken without this check. Labels that are no classes are refused in any case, as in
    `attree.evaluate`.

    Args:
        module: The LightningModule.
        data: The graph or batch to explain it on.
        network: Path of the network, such as `model.backbone`; None looks for it.
        call: A function that calls the module, instead of `network`.
        head: The meaning of the outputs; None infers it from them.
        readout: For graph-level modules, how nodes become a graph; None takes the module's `readout` if it has one, or
            infers it from the model.
        num_classes: Number of classes; None if unknown.
        only_links: Whether the data has only pairs to predict, so that outputs per node do not fit.
        node_type: For a heterogeneous graph, the type of the nodes to explain.

    Raises:
        ArgumentError: No network fits; the message lists those that were tried.
    """
    head = Head() if head is None else head
    own = getattr(module, "readout", None)
    chosen = next((known for known in READOUTS if known == own), None) if readout is None else readout
    if call is not None:
        given = Subject.of_data(module, data, call=call, node_type=node_type, readout=chosen, head=head)
        return _checked(given, data, head)
    if network is not None:
        named = _named(module, network)
        return _checked(Subject.of_data(named, data, node_type=node_type, readout=chosen, head=head), data, head)
    _expect_labels(module, data, head, num_classes)
    tried = []
    for name, candidate in _candidates(module):
        try:
            message_passing(candidate)
            subject = Subject.of_data(candidate, data, node_type=node_type, readout=chosen, head=head)
            reason = _misfit(subject, labels_of(data, subject), num_classes, only_links)
        except (AttreeError, RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
        if reason is None:
            return _checked(subject, data, head)
        tried.append(f"{name}: {reason}")
    raise ArgumentError(
        f"Expected {type(module).__name__} to have a network whose outputs fit the data's labels (or arguments "
        f"`network` or `call` of ExplainCallback to say what predicts), but tried {'; '.join(tried) or 'nothing'}."
    )


def _checked(subject: Subject, data: Data, head: Head) -> Subject:
    labels = labels_of(data, subject)
    check_labels(labels, subject.output, head)
    check_classes(labels, subject.output, head)
    return subject


def _expect_labels(module: nn.Module, data: Data | HeteroData, head: Head, num_classes: int | None) -> None:
    """Refuse data without labels: the outputs may be anything, such as an encoder's embeddings."""
    labels = (store.get(key) for store in data.stores for key in ("y", "edge_label"))
    if head.mode is not None or num_classes is not None or any(isinstance(label, Tensor) for label in labels):
        return
    raise ArgumentError(
        f"Expected the data of {type(module).__name__} to have labels `y` (`edge_label` of links), or arguments "
        "`network`, `call` or `mode` of ExplainCallback to say what predicts classes, but got data without labels."
    )


def _candidates(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # Compared by name: `pytorch_lightning` has another LightningModule.
    if getattr(type(module).forward, "__qualname__", "") not in ("LightningModule.forward", "_forward_unimplemented"):
        yield "the module itself", module
    for name in NAMES:
        if isinstance(candidate := getattr(module, name, None), nn.Module):
            yield f"`{name}`", candidate


def _named(module: nn.Module, path: str) -> nn.Module:
    """Return the part of a LightningModule at a dotted path; raise unless the path leads to a module."""
    try:
        submodule = attrgetter(path)(module)
    except AttributeError as error:
        raise ArgumentError(
            f"Expected argument `network` to name a part of {type(module).__name__}, but {error}."
        ) from error
    if not isinstance(submodule, nn.Module):
        raise ArgumentError(
            f"Expected argument `network` to name a module, but {path!r} is {type(submodule).__name__}."
        )
    return submodule


def _misfit(subject: Subject, labels: Any, num_classes: int | None, only_links: bool) -> str | None:
    """Return why a network's outputs cannot be predictions of the data's labels; None if they can."""
    output, head = subject.output, subject.head
    if only_links and subject.level != "edge":
        return f"its outputs are of {subject.level}s, but the data has pairs to predict (`edge_label_index`)"
    rows, columns = output.shape[0], 1 if output.dim() == 1 else output.shape[1]
    if subject.level == "node" and subject.node_type is None and rows != subject.graph.num_nodes:
        raise UnsupportedModelError(f"{rows} rows of outputs for {subject.graph.num_nodes} nodes")
    if isinstance(labels, Tensor) and labels.dim() >= 1 and labels.shape[0] != rows:
        return f"{rows} rows of outputs for {labels.shape[0]} labels"
    if head.mode == "multiclass_classification" and num_classes is not None and columns != num_classes:
        return f"{columns} columns of outputs for {num_classes} classes"
    return None
