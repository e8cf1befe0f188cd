"""What is explained of a LightningModule: the network in it that predicts, its targets, and how they are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.attention.softmax_hook import attention_convs
from attree.callbacks.explained_data import Drawn, ExplainedData, Subset
from attree.data import GroundTruth
from attree.errors import ArgumentError, AttreeError, UnsupportedModelError, expect
from attree.evaluation import EvaluationConfig, Evaluator
from attree.evaluation.target_labels import TargetLabels
from attree.evaluation.targets import Shard, choose_targets
from attree.models import Classifier, LinkPredictor
from attree.subject import Head, Subject
from attree.subject.binding import Call
from attree.subject.labels import check_labels, labels_of
from attree.subject.readout import READOUTS, Readout

NAMES = ("net", "model", "gnn", "network", "backbone", "encoder")
"""Attributes of a module that are tried after the module itself."""

TRIED_EDGES = 8
"""Edges that a target should have around it to be tried out."""


@dataclass(frozen=True)
class ExplainSettings:
    """What a callback evaluates.

    Attributes:
        config: What is measured.
        subset: Which nodes or graphs are chosen from.
        data: What is explained, if not the trainer's own data.
        truth: True edges of nodes, if not the data module's own.
        network: Where the network is inside the module; None looks for it.
        call: How the module is called instead.
        head: What the outputs mean.
        readout: Graph-level: how nodes become a graph; None takes the module's own.
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
    """What a callback explains in one call of a trainer.

    Attributes:
        evaluator: Evaluates the targets.
        drawn: The targets as the data calls them: node ids, or positions of graphs.
    """

    evaluator: Evaluator
    drawn: Drawn

    def try_out(self, settings: ExplainSettings) -> None:
        """Evaluate one target, so that a network which cannot be explained is refused now, not many epochs later."""
        config = replace(settings.config, random_draws=1)
        Evaluator(self.evaluator.subject, self._cheap_target(), config, warn=False).evaluate()

    def _cheap_target(self) -> Tensor:
        """A target with few edges around it, but enough of them to show whether they can be reduced."""
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
        data: What it is explained on.
        settings: What to evaluate.
        before: Targets that were drawn before, which are kept if they were drawn from the same data.
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
            expect(data.choice is None, "subset", "'all' where the pairs of a graph are explained", settings.subset)
        else:  # the graph has pairs, which this module does not predict
            data = replace(data, has_links=False)
            drawn = data.draw(config.num_targets, config.seed, settings.subset, before)
    chosen = drawn.targets
    if not data.is_one_graph:
        chosen = torch.arange(drawn.targets.numel())
        if subject.level != "graph":  # nodes of many graphs are explained
            chosen = choose_targets(config.num_targets, subject.graph.num_nodes, config.seed)
    elif subject.level == "graph":
        chosen = torch.zeros(1, dtype=torch.int64)
    truth = settings.truth if settings.truth is not None else data.truth
    ids = None if data.is_one_graph else drawn.targets
    labels = TargetLabels.of(graph, subject, data.class_names, data.node_types, ids, data.name)
    return ExplainedModule(Evaluator(subject, chosen, config, truth, labels=labels, shard=shard), drawn)


def known_head(module: nn.Module) -> Head:
    """What the outputs of attree's own modules mean, so that those of an untrained network need not tell."""
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
    """The subject of the first network in a module whose outputs fit the data.

    What is explained is what predicts: the outputs have one row per node or graph, and as many columns as the labels
    need. A network that was named, or a call that was given, is taken at the user's word; but labels that are no
    classes are refused there too, by the rule of `attree.evaluate`.

    Args:
        module: The LightningModule.
        data: The graph or batch that it is explained on.
        network: Where the network is, such as `model.backbone`; None looks for it.
        call: How the module is called instead.
        head: What the outputs mean; None leaves it to them.
        readout: Graph-level: how nodes become a graph; None takes the module's own `readout` if it has one, or reads
            it from the model.
        num_classes: Number of classes; None where it is not known.
        only_links: Whether the data asks for links alone, so that outputs of nodes do not fit.
        node_type: Of a heterogeneous graph: whose outputs are explained.

    Raises:
        ArgumentError: Nothing fits; the message says what was tried.
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
            attention_convs(candidate)
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
    check_labels(labels_of(data, subject), subject.output, head)
    return subject


def _expect_labels(module: nn.Module, data: Data | HeteroData, head: Head, num_classes: int | None) -> None:
    """Refuse outputs without labels: they may be anything, for example an encoder's embeddings."""
    labels = (store.get(key) for store in data.stores for key in ("y", "edge_label"))
    if head.mode is not None or num_classes is not None or any(isinstance(label, Tensor) for label in labels):
        return
    raise ArgumentError(
        f"Expected the data of {type(module).__name__} to have labels `y` (`edge_label` of links), or arguments "
        "`network`, `call` or `mode` of ExplainCallback to say what predicts classes, but got data without labels."
    )


def _candidates(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # By name: `pytorch_lightning` has a LightningModule of its own.
    if getattr(type(module).forward, "__qualname__", "") not in ("LightningModule.forward", "_forward_unimplemented"):
        yield "the module itself", module
    for name in NAMES:
        if isinstance(candidate := getattr(module, name, None), nn.Module):
            yield f"`{name}`", candidate


def _named(module: nn.Module, path: str) -> nn.Module:
    try:
        found = attrgetter(path)(module)
    except AttributeError as error:
        raise ArgumentError(
            f"Expected argument `network` to name a part of {type(module).__name__}, but {error}."
        ) from error
    if not isinstance(found, nn.Module):
        raise ArgumentError(f"Expected argument `network` to name a module, but {path!r} is {type(found).__name__}.")
    return found


def _misfit(subject: Subject, labels: Any, num_classes: int | None, only_links: bool) -> str | None:
    """Why a network's outputs are no predictions of the data's labels; None if they may be."""
    output, head = subject.output, subject.head
    if only_links and subject.level != "edge":
        return f"its outputs are those of {subject.level}s, and the data asks for links (`edge_label_index`)"
    rows, columns = output.shape[0], 1 if output.dim() == 1 else output.shape[1]
    if subject.level == "node" and subject.node_type is None and rows != subject.graph.num_nodes:
        raise UnsupportedModelError(f"{rows} rows of outputs for {subject.graph.num_nodes} nodes")
    if isinstance(labels, Tensor) and labels.dim() >= 1 and labels.shape[0] != rows:
        return f"{rows} rows of outputs for {labels.shape[0]} labels"
    if head.mode == "multiclass_classification" and num_classes is not None and columns != num_classes:
        return f"{columns} columns of outputs for {num_classes} classes"
    return None
