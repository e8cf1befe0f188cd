"""True classes and names of targets, names of classes and nodes, and the predictions of targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from attree.subject import Subject
from attree.subject.head import labels_of
from attree.tensors.precision import exact_dtype

LABEL_VALUES = ("no", "yes")
"""Words for the two values of one of several labels."""

LINK_NAMES = ("no link", "a link")
"""Class names of a link predictor, if the data has none."""


def edge_name(source: str, destination: str, *, is_loop: bool) -> str:
    """Return what an edge between two named nodes is called; several nodes may have the same name.

    >>> edge_name("56", "49", is_loop=False), edge_name("49", "49", is_loop=True)
    ('56 -> 49', 'self-loop of 49')
    """
    return f"self-loop of {destination}" if is_loop else f"{source} -> {destination}"


@dataclass(frozen=True)
class TargetLabels:
    """True classes and names, for tables, figures and the page. Each attribute is None if unknown.

    Attributes:
        labels: The true class (the true number for regression) of every node, pair or graph, [targets].
        class_names: Names of the classes, by class index.
        node_names: Names of the graph's nodes, by node id.
        ids: If the targets are graphs of a batch, their ids in the dataset, [targets].
        first_nodes: If the targets are graphs of a batch, the id of each graph's first node in the batch, [targets].
        dataset: Name of the dataset.
        roots: The two nodes of each target, [targets, 2], if the target's id is not a node id. For a node of a
            heterogeneous graph, both are its id in the union of all types. None for graphs.
        measured: If the model predicts several labels, the explained label of each target, [targets]. A prediction is
            then yes or no, `class_names` are the names of the labels, and `labels` says whether the target has it.
    """

    labels: Tensor | None = None
    class_names: Sequence[str] | None = None
    node_names: Sequence[str] | None = None
    ids: Tensor | None = None
    first_nodes: Tensor | None = None
    dataset: str | None = None
    roots: Tensor | None = None
    measured: Tensor | None = None

    @classmethod
    def of(
        cls,
        data: Data,
        subject: Subject,
        class_names: Sequence[str] | None = None,
        node_types: Sequence[str] | None = None,
        ids: Tensor | None = None,
        dataset: str | None = None,
    ) -> TargetLabels:
        """Collect labels and names of a graph or batch. Those that do not fit the subject are left out.

        Args:
            data: The graph or batch. Its `node_names` (one per node) and `class_names` are used if it has them. In a
                heterogeneous graph, they may be those of a node type: `data["author"].node_names`.
            subject: The model call to explain on this data.
            class_names: Names of the classes, by class index; None takes those of the data.
            node_types: Meanings of the columns of one-hot node features. A node is then named by meaning and number.
            ids: Ids of the graphs in their dataset; ignored unless graphs of a batch are explained.
            dataset: Name of the dataset.
        """
        names = class_names if class_names is not None else _class_names(data, subject)
        batch, measured = subject.batch, _measured(subject)
        return cls(
            _true_values(labels_of(data, subject), subject, measured),
            names,
            _node_names(data, subject, node_types),
            None if batch is None or ids is None else ids.detach().cpu(),
            None if batch is None else _first_nodes(batch.cpu(), subject.num_targets),
            dataset,
            _roots(subject),
            None if subject.head.mode == "regression" else measured,
        )

    def at(self, targets: Tensor) -> TargetLabels:
        """Return the labels and names of some targets, in the given order."""
        where = targets.cpu()

        def of_targets(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[where]

        return replace(
            self,
            labels=of_targets(self.labels),
            ids=of_targets(self.ids),
            first_nodes=of_targets(self.first_nodes),
            roots=of_targets(self.roots),
            measured=of_targets(self.measured),
        )

    def id_of(self, target: int) -> int:
        """Return the id of a target in its dataset."""
        return target if self.ids is None else int(self.ids[target])

    def class_name(self, number: int) -> str:
        """Return the name of a class, its number if the name is unknown; `no` or `yes` for one of several labels."""
        if self.measured is not None:
            return LABEL_VALUES[number]
        return self._name(number) or str(number)

    def label_name(self, position: int) -> str:
        """Return the name of the explained label of the target at a position; empty unless there are several labels."""
        if self.measured is None:
            return ""
        number = int(self.measured[position])
        return f"label {self._name(number) or number}"

    def _name(self, number: int) -> str:
        """Return the name of a class or label; empty if it is unknown."""
        names = self.class_names
        return one_line(str(names[number])) if names is not None and 0 <= number < len(names) else ""

    def prediction(self, subject: Subject, target: int) -> str:
        """Describe a target's current prediction and its true class in words.

        Args:
            subject: The model call to explain.
            target: A node, pair or graph.
        """
        row = subject.rows(torch.tensor([target], device=subject.device))
        head, output = subject.head, subject.output[row]
        measured = head.measured(output)
        logits = head.logits(output, measured).detach().cpu().double()
        true = None if self.labels is None else float(self.labels[target])
        if head.mode == "regression":
            return f"predicted {float(logits):.4g}" + ("" if true is None else f", true {true:.4g}")
        share, place = logits.softmax(-1).max(-1)
        number = int(place)
        words = f"predicted {self.class_name(number)} ({float(share):.0%})"
        if self.measured is not None:
            words = f"{self.label_name(target)}: {words}"
        if true is None or true < 0 or true != round(true):
            return words
        return f"{words}, labelled {self.class_name(int(true))}" + ("" if number == int(true) else ": wrong")


def one_line(name: str) -> str:
    """Return a name without line breaks.

    >>> one_line("two\\nlines ")
    'two lines'
    """
    return " ".join(name.split())


def _given(data: Any, key: str) -> list[str] | None:
    """Return the names in an attribute of the data, or of a node type's part of it, as a flat list; None without any.

    In a batch, the attribute is a list with one list per graph.
    """
    names = data.get(key)
    if isinstance(names, list | tuple) and names and all(isinstance(part, list | tuple) for part in names):
        names = [name for part in names for name in part] if key == "node_names" else names[0]
    fits = isinstance(names, list | tuple) and len(names) > 0 and all(isinstance(name, str) for name in names)
    return list(names) if fits and names is not None else None


def _class_names(data: Data, subject: Subject) -> list[str] | None:
    """Return the names of the classes: those of the data, or those of the explained node type; None if unknown."""
    types = subject.graph.types
    if not isinstance(data, HeteroData) or types is None or "class_names" in data.stores[0]:
        return _given(data, "class_names")
    nodes = subject.roots("all").node
    return None if nodes.numel() == 0 else _given(data[types.node_type(int(nodes[0]))], "class_names")


def _measured(subject: Subject) -> Tensor | None:
    """Return the measured column of every target, of a model that predicts several labels or numbers; else None."""
    measured = subject.head.measured(subject.output)
    return None if measured is None else measured[subject.rows(subject.targets("all"))].cpu()


def _true_values(labels: Any, subject: Subject, measured: Tensor | None) -> Tensor | None:
    """Return the true class, label or number of every target, [targets]; None if the labels do not fit the targets."""
    if not isinstance(labels, Tensor) or labels.dim() < 1:
        return None
    values = labels.detach().cpu()
    if measured is not None and values.dim() == 2 and values.shape[1] == subject.output.shape[1]:
        return values.gather(1, measured.unsqueeze(1)).squeeze(1) if len(values) == len(measured) else None
    return values.view(-1) if values.numel() == subject.num_targets else None


def _roots(subject: Subject) -> Tensor | None:
    """Return the two nodes of every target; None if targets are graphs, or nodes of a homogeneous graph."""
    if subject.batch is not None or (subject.level == "node" and subject.graph.types is None):
        return None
    ends = subject.outputs.ends
    if ends is not None:
        return ends.detach().t().cpu()
    nodes = subject.roots("all").node.detach().cpu()
    return torch.stack([nodes, nodes], dim=1)


def _first_nodes(batch: Tensor, num_graphs: int) -> Tensor | None:
    """Return the first node of each graph; None if `batch` is not sorted."""
    if batch.numel() == 0 or bool((batch.diff() < 0).any()):
        return None
    return torch.searchsorted(batch, torch.arange(num_graphs))


def _node_names(data: Data, subject: Subject, node_types: Sequence[str] | None) -> list[str] | None:
    """Return the names of all nodes: the data's own, or made from node types; None if unknown."""
    nodes = subject.graph.num_nodes
    if isinstance(data, HeteroData) and (types := subject.graph.types) is not None:
        named = types.names(torch.arange(nodes))
        for kind in types.node_types:
            of_kind = _given(data[kind], "node_names")
            if of_kind is not None and len(of_kind) == len(types.nodes(kind)):
                named[types.nodes(kind).start : types.nodes(kind).stop] = of_kind
        return named
    names = _given(data, "node_names")
    if names is not None:
        return names if len(names) == nodes else None
    if (types := subject.graph.types) is not None:
        return types.names(torch.arange(nodes))
    x = data.get("x")
    if not node_types or not isinstance(x, Tensor) or tuple(x.shape) != (nodes, len(node_types)):
        return None
    batch = data.get("batch")
    first = torch.zeros(1, dtype=torch.int64) if batch is None else data.ptr.cpu()
    graph_of_node = torch.zeros(nodes, dtype=torch.int64) if batch is None else batch.cpu()
    numbers = (torch.arange(nodes) - first[graph_of_node]).tolist()
    return [f"{node_types[kind]}{number}" for kind, number in zip(x.argmax(1).tolist(), numbers, strict=True)]


def predicted_classes(subject: Subject, targets: Tensor) -> Tensor | None:
    """Return class probabilities of some targets, [targets, classes]; None for regression.

    For a model that predicts several labels, these are the probabilities of not having and of having the measured one.
    """
    output, head = subject.output[subject.rows(targets)], subject.head
    if head.mode == "regression":
        return None
    measured = head.measured(output)
    return head.logits(output.detach().to(exact_dtype(output.device)), measured).softmax(dim=-1)


def describe_network(subject: Subject) -> str:
    """Return the class name and depth of a model, or of its attribute `net` if it has one: "GAT, 2 layers"."""
    inner = getattr(subject.model, "net", None)
    name = type(inner if isinstance(inner, nn.Module) else subject.model).__name__
    return f"{name}, {subject.num_layers} layer{'' if subject.num_layers == 1 else 's'}"
