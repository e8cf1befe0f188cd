"""A model on a source: how it is called, the explained targets, their labels and their true edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data, HeteroData

from attree.attention.capture import check_model
from attree.attention.softmax_hook import message_passing
from attree.data import GroundTruth
from attree.defaults import NUM_TARGETS
from attree.errors import ArgumentError, AttreeError, UnsupportedModelError, expect
from attree.source.source import Drawn, Source, choose_targets, source_of
from attree.source.target_labels import TargetLabels
from attree.subject import Head, Subject
from attree.subject.arguments_from_data import Call
from attree.subject.head import check_classes, check_labels, labels_of
from attree.subject.readout import READOUTS, Readout
from attree.subject.target_roots import Level, Targets

NAMES = ("net", "model", "gnn", "network", "backbone", "encoder")
"""Attributes of a module that may be its network; tried after the module itself."""


@dataclass(frozen=True)
class Reading:
    """How a model is called on a graph, and what its outputs mean. None infers an attribute.

    Attributes:
        call: A function `call(model, data)`, instead of the model's forward.
        level: What a row of outputs belongs to: `node`, `edge` or `graph`.
        node_type: For a heterogeneous graph, the type of the nodes to explain.
        readout: For graph-level models, how nodes become a graph.
        head: The meaning of the outputs.
        network: Path of the network inside a LightningModule, such as `model.backbone`.
    """

    call: Call | None = None
    level: Level | None = None
    node_type: str | None = None
    readout: Readout | None = None
    head: Head = field(default_factory=Head)
    network: str | None = None

    def subject(self, model: nn.Module, graph: Data | HeteroData) -> Subject:
        """Return the subject of a model on a graph."""
        options = {"call": self.call, "level": self.level, "node_type": self.node_type, "readout": self.readout}
        return Subject.of_data(model, graph, head=self.head, **cast(Any, options))


def check_meaning(subject: Subject, graph: Data | HeteroData, head: Head) -> None:
    """Raise or warn if the labels of a graph show that a subject's outputs are not what they are taken for."""
    labels, x = labels_of(graph, subject), graph.get("x") if isinstance(graph, Data) else None
    check_labels(labels, subject.output, head)
    width = x.shape[1] if isinstance(x, Tensor) and x.dim() == 2 else None
    check_classes(labels, subject.output, head, width)


def known_head(module: nn.Module) -> Head:
    """Return the meaning of the outputs of attree's modules, which the outputs of an untrained network do not show."""
    head = getattr(type(module), "output_head", None)
    return head if isinstance(head, Head) else Head()


def find_subject(module: nn.Module, graph: Data | HeteroData, source: Source, reading: Reading) -> Subject:
    """Return the subject of the first network in a LightningModule whose outputs fit the data.

    Outputs fit if they have one row per node, pair or graph, and one column per class. With `network` or `call`, the
    user's choice is taken without this check. Labels that are no classes are refused in any case, as in
    `attree.evaluate`.

    Args:
        module: The LightningModule.
        graph: The graph or batch to explain it on.
        source: The source of the graph.
        reading: How the module is called. Without a readout, the module's `readout` is taken if it has one.

    Raises:
        ArgumentError: No network fits; the message lists those that were tried.
    """
    readout = reading.readout
    if readout is None:
        readout = next((name for name in READOUTS if name == getattr(module, "readout", None)), None)
    head = known_head(module) if reading.head == Head() else reading.head
    node_type = source.node_type if reading.node_type is None else reading.node_type
    reading = replace(reading, readout=readout, head=head, node_type=node_type)
    if reading.call is not None or reading.network is not None:
        subject = reading.subject(module if reading.network is None else _named(module, reading.network), graph)
        check_meaning(subject, graph, head)
        return subject
    num_classes = source.count_classes()
    _expect_labels(module, graph, head, num_classes)
    tried = []
    for name, candidate in _candidates(module):
        try:
            message_passing(candidate)
            subject = reading.subject(candidate, graph)
            reason = _misfit(subject, labels_of(graph, subject), num_classes, source.only_links)
        except (AttreeError, RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
        if reason is None:
            check_meaning(subject, graph, head)
            return subject
        tried.append(f"{name}: {reason}")
    raise ArgumentError(
        f"Expected {type(module).__name__} to have a network whose outputs fit the data's labels (or arguments "
        f"`network` or `call` of ExplainCallback to say what predicts), but tried {'; '.join(tried) or 'nothing'}."
    )


def predicts(module: nn.Module) -> bool:
    """Whether a module has a forward, which a LightningModule may lack."""
    # Compared by name: `pytorch_lightning` has another LightningModule.
    forward = getattr(type(module).forward, "__qualname__", "")
    return forward not in ("LightningModule.forward", "_forward_unimplemented")


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
    if predicts(module):
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


@dataclass(frozen=True)
class ExplainedModel:
    """What `evaluate`, `explain`, the callback and the commands explain.

    Attributes:
        subject: The model call.
        targets: Ids of the explained nodes, links or graphs in the subject.
        labels: True classes and names of all targets of the subject; None if unknown.
        truth: True edges of the nodes, or of the graphs, that have some.
        graph: The graph or batch that the model runs on; None for a subject that the user made.
        drawn: The targets as ids in the data, to explain the same ones in another run.
    """

    subject: Subject
    targets: Tensor
    labels: TargetLabels | None = None
    truth: GroundTruth | None = None
    graph: Data | HeteroData | None = None
    drawn: Drawn | None = None


def explained_by_user(
    model: nn.Module,
    data: Any,
    targets: Targets | None,
    num_targets: int | None,
    reading: Reading,
    truth: GroundTruth | None,
    seed: int,
) -> ExplainedModel:
    """Return what a user asks to explain, after checks that its numbers are finite.

    Args:
        model: The model. A LightningModule without a forward has its network looked for, as in the callback.
        data: The data, see `source_of`; or a `Subject` of the model, for which labels and names are unknown.
        targets: Ids of targets, a mask of nodes, or 'all'; positions of graphs in a list, dataset or data module. None
            draws targets.
        num_targets: Number of targets to draw; None draws `defaults.NUM_TARGETS`. Must be None if `targets` is given.
        reading: How the model is called, and what its outputs mean.
        truth: True edges of nodes; None takes those of the source.
        seed: Seed of the draw.
    """
    check_model(model)
    if isinstance(data, Subject):
        is_same = model in (data.model, data.call.user_model)
        expect(is_same, "data", "a subject of the same model", "a subject of another model")
        return ExplainedModel(data, asked_targets(data, targets, num_targets, seed), truth=truth)
    source = source_of(data, seed)
    check_explained_weights(model)
    if source.is_one_graph:
        is_users = source.graphs[0] is data
        graph = source.on([0], None if is_users else _device_of(model))
        subject = checked_subject(model, graph, source, reading)
        if source.only_links and reading.level is None:
            expected = "a model of links, as the data has links to predict (of a run, `run.module`; or `level='node'`)"
            expect(subject.level == "edge", "model", expected, f"outputs of {subject.level}s")
        ids, positions = asked_targets(subject, targets, num_targets, seed, source.choice), None
    else:
        positions = _positions(targets, num_targets, source, seed)
        graph = source.on(positions.tolist(), _device_of(model))
        subject = checked_subject(model, graph, source, reading)
        # The network of a run predicts nodes; its module may pool them into graphs.
        expected = "one graph, as the model does not predict graphs (of a run, `run.module` may)"
        expect(subject.level == "graph", "data", expected, "several graphs")
        ids = subject.targets()
    labels = source.labels(graph, subject, positions)
    if truth is None:
        truth = _truth(subject, graph, source)
    return ExplainedModel(subject, ids, labels, truth, graph)


def checked_subject(model: nn.Module, graph: Data | HeteroData, source: Source, reading: Reading) -> Subject:
    """Return the subject of a model on a graph of a source; raise if a number that it reads is NaN or infinite."""
    x = graph.get("x") if isinstance(graph, Data) else None
    if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided:
        expect(bool(x.isfinite().all()), "data.x", "finite features", "NaN or infinite features")
    if predicts(model) or reading.call is not None:
        head = known_head(model) if reading.head == Head() else reading.head
        node_type = source.node_type if reading.node_type is None else reading.node_type
        subject = Reading(reading.call, reading.level, node_type, reading.readout, head).subject(model, graph)
        check_arguments(subject)
        check_meaning(subject, graph, head)
        return subject
    subject = find_subject(model, graph, source, reading)
    check_arguments(subject)
    return subject


def explained_in_fit(
    module: nn.Module,
    source: Source,
    reading: Reading,
    num_targets: int,
    seed: int,
    device: torch.device,
    before: Drawn | None = None,
    truth: GroundTruth | None = None,
) -> ExplainedModel:
    """Return what a run explains: targets drawn from the source, or those that it drew before from the same data.

    Args:
        module: The LightningModule; its weights may be of any size, and undefined.
        source: The data.
        reading: How the module is called, and what its outputs mean.
        num_targets: Number of targets to draw.
        seed: Seed of the draw.
        device: The device to run on.
        before: Targets that were drawn before.
        truth: True edges of nodes; None takes those of the source.
    """
    if source.is_one_graph:
        graph = source.on([0], device)
        subject = find_subject(module, graph, source, reading)
        if subject.level == "edge":
            expect(source.choice is None, "subset", "'all' if the pairs of a graph are explained", source.subset)
        if subject.level == "graph":  # `choice` are nodes
            source = replace(source, choice=None)
        drawn = source.draw(num_targets, seed, subject.num_targets, before)
        targets, positions = drawn.targets, None
    else:
        drawn = source.draw(num_targets, seed, len(source.graphs), before)
        positions = drawn.targets
        graph = source.on(positions.tolist(), device)
        subject = find_subject(module, graph, source, reading)
        targets = torch.arange(positions.numel())
        if subject.level != "graph":  # nodes of many graphs are explained
            targets = choose_targets(num_targets, subject.graph.num_nodes, seed)
    labels = source.labels(graph, subject, positions)
    truth = _truth(subject, graph, source) if truth is None else truth
    return ExplainedModel(subject, targets, labels, truth, graph, drawn)


def _truth(subject: Subject, graph: Data | HeteroData, source: Source) -> GroundTruth | None:
    """Return the true edges of the nodes that a source has some of, or of the graphs that a subject runs on."""
    if subject.level == "graph":
        return GroundTruth.of_graphs(graph) if isinstance(graph, Data) else None
    return source.truth if subject.level == "node" else None


def asked_targets(
    subject: Subject, targets: Targets | None, num_targets: int | None, seed: int, choice: Tensor | None = None
) -> Tensor:
    """Return the ids of the targets to explain: those that the user asks for, or else a random draw.

    Args:
        subject: The model call to explain.
        targets: An id, several ids, a mask of nodes, or 'all'; None draws targets at random.
        num_targets: Number of targets to draw; None draws `defaults.NUM_TARGETS`. Must be None if `targets` is given.
        seed: Seed of the draw.
        choice: Ids to draw from; None draws from all.
    """
    if targets is None:
        available = subject.targets() if choice is None else subject.targets(choice)
        drawn = choose_targets(NUM_TARGETS if num_targets is None else num_targets, available.numel(), seed)
        return available[drawn.to(available.device)]
    expect(num_targets is None, "num_targets", "None if `targets` is given", num_targets)
    ids = subject.targets(targets)
    expect(ids.numel() > 0, "targets", "at least one target", "none")
    return ids


def _positions(targets: Targets | None, num_targets: int | None, source: Source, seed: int) -> Tensor:
    """Return the positions of the graphs to explain in a source of many graphs."""
    number = len(source.graphs)
    if targets is None:
        return source.draw(NUM_TARGETS if num_targets is None else num_targets, seed, number).targets
    expect(num_targets is None, "num_targets", "None if `targets` is given", num_targets)
    if isinstance(targets, str):
        expect(targets == "all", "targets", "positions of graphs, or 'all'", targets)
        return torch.arange(number)
    positions = torch.as_tensor(targets).cpu().reshape(-1)
    positions = positions.nonzero().view(-1) if positions.dtype == torch.bool else positions
    fits = positions.numel() > 0 and not positions.is_floating_point() and int(positions.min()) >= 0
    expect(fits and int(positions.max()) < number, "targets", f"positions of graphs in [0, {number})", targets)
    return positions


def _device_of(model: nn.Module) -> torch.device | None:
    """Return the device of a model's weights; None without weights."""
    return next((parameter.device for parameter in model.parameters()), None)


def check_explained_weights(model: nn.Module) -> None:
    """Raise if the model to explain has a weight that is NaN or infinite, or a buffer NaN."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    dense = [(name, values) for name, values in tensors if not is_lazy(values) and values.is_floating_point()]
    for name, values in dense:
        if isinstance(values, nn.Parameter):
            expect(bool(values.isfinite().all()), "model", "one with finite weights", f"NaN or infinity in `{name}`")
        else:
            expect(not bool(values.isnan().any()), "model", "one with finite weights", f"NaN in the buffer `{name}`")


def check_arguments(subject: Subject) -> None:
    """Raise if features of nodes are sparse, or if an argument that the model reads is NaN or infinite."""
    call = subject.call
    if call.has_features:  # rows of a sparse tensor cannot be taken
        expect(call.x.layout == torch.strided, "data.x", "a dense tensor", call.x.layout)
    for name, value in zip(call.names, call.values, strict=True):
        # A whole graph is passed with its labels, which may be unknown.
        if call.convention is not None and not any(word in name for word in ("x", "attr", "weight", "pos")):
            continue
        for tensor in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.layout == torch.strided:
                expect(bool(tensor.isfinite().all()), f"data.{name}", "finite", "NaN or infinite values")
