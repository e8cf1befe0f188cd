"""A model on a source: its call, the explained targets, their labels and their true edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data, HeteroData

from attree.attention.capture import check_model
from attree.data import GroundTruth
from attree.defaults import NUM_TARGETS
from attree.errors import expect
from attree.source.network import Reading, check_meaning, find_subject, known_head, predicts
from attree.source.source import Drawn, Source, choose_targets, source_of
from attree.source.target_labels import TargetLabels
from attree.subject import Head, Subject
from attree.subject.roots import Targets


@dataclass(frozen=True)
class ExplainedModel:
    """What `evaluate`, `explain`, the callback and the commands explain.

    Attributes:
        subject: The model call.
        targets: Ids of the explained nodes, links or graphs in the subject.
        labels: True classes and names of all targets of the subject; None if unknown.
        truth: True edges of the nodes that have some.
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
    check_weights(model)
    if source.is_one_graph:
        is_users = source.graphs[0] is data
        graph = source.on([0], None if is_users else _device_of(model))
        subject = checked_subject(model, graph, source, reading)
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
    if truth is None and subject.level == "node":
        truth = source.truth
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
    return ExplainedModel(subject, targets, labels, source.truth if truth is None else truth, graph, drawn)


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


def check_weights(model: nn.Module) -> None:
    """Raise if a weight of the model is NaN or infinite, or a buffer NaN."""
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
