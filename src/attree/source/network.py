"""Run a model on a graph of a source: how it is called, what its outputs mean, and which part of a module predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, cast

from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.attention.softmax_hook import message_passing
from attree.errors import ArgumentError, AttreeError, UnsupportedModelError
from attree.source.source import Source
from attree.subject import Head, Subject
from attree.subject.binding import Call
from attree.subject.head import check_classes, check_labels, labels_of
from attree.subject.readout import READOUTS, Readout
from attree.subject.roots import Level

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
