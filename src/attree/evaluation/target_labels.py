"""What the data says of the targets: their true classes, and the names of targets, classes and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.subject import Subject
from attree.subject.labels import labels_of


@dataclass(frozen=True)
class TargetLabels:
    """True classes and names, for tables, figures and the page; each may be unknown.

    Attributes:
        labels: The true class (or number, in a regression) of every node or graph, [targets].
        class_names: Names of the classes, by their number.
        node_names: Names of the graph's nodes, by their id.
        ids: Ids of the graphs in their dataset, [targets], where the targets are graphs of a batch.
        first_nodes: For each graph of a batch, the id of its first node in the batch, [targets].
        dataset: Name of the dataset.
        roots: The two nodes of each target in the graph, [targets, 2]: of a pair; of a node of a union of types, its
            id there twice. None where a target is its own node, or a graph.
    """

    labels: Tensor | None = None
    class_names: Sequence[str] | None = None
    node_names: Sequence[str] | None = None
    ids: Tensor | None = None
    first_nodes: Tensor | None = None
    dataset: str | None = None
    roots: Tensor | None = None

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
        """Gather what is known of a graph or batch. What does not fit the subject is left out.

        Args:
            data: The graph or batch. Its own `node_names` (one a node) and `class_names` are taken where it has some.
            subject: What is explained of it.
            class_names: Names of the classes, by their number.
            node_types: Meanings of one-hot features, by their column: a node's name is the meaning and its number.
            ids: Ids of the graphs in their dataset; ignored where nodes are explained.
            dataset: Name of the dataset.
        """
        labels = labels_of(data, subject)
        fits = isinstance(labels, Tensor) and labels.dim() >= 1 and labels.numel() == subject.num_targets
        names = class_names if class_names is not None else _given(data, "class_names")
        batch = subject.batch
        return cls(
            labels.detach().view(-1).cpu() if fits else None,
            names,
            _node_names(data, subject, node_types),
            None if batch is None or ids is None else ids.detach().cpu(),
            None if batch is None else _first_nodes(batch.cpu(), subject.num_targets),
            dataset,
            _roots(subject),
        )

    def at(self, targets: Tensor) -> TargetLabels:
        """The same for some targets alone, in their order."""
        where = targets.cpu()

        def chosen(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[where]

        return replace(
            self,
            labels=chosen(self.labels),
            ids=chosen(self.ids),
            first_nodes=chosen(self.first_nodes),
            roots=chosen(self.roots),
        )

    def id_of(self, target: int) -> int:
        """What a target is called in its dataset."""
        return target if self.ids is None else int(self.ids[target])

    def class_name(self, number: int) -> str:
        """What a class is called: its name, or its number."""
        known = self.class_names is not None and 0 <= number < len(self.class_names)
        return one_line(str(self.class_names[number])) if known and self.class_names is not None else str(number)

    def prediction(self, subject: Subject, target: int) -> str:
        """What is predicted for a target, and what is true, in words; the attention of now tells the former.

        Args:
            subject: What is explained.
            target: A node or graph.
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
        if measured is not None:  # of several labels, one is measured
            return f"label {int(measured)}: {words}"
        if true is None or true < 0 or true != round(true):
            return words
        return f"{words}, truly {self.class_name(int(true))}" + ("" if number == int(true) else ": wrong")


def one_line(name: str) -> str:
    """A name on one line.

    >>> one_line("two\\nlines ")
    'two lines'
    """
    return " ".join(name.split())


def _given(data: Data, key: str) -> list[str] | None:
    """Names that the data itself has under a key, a flat list of strings; a batch has one list each of its graphs."""
    found = data.get(key)
    if isinstance(found, list | tuple) and found and all(isinstance(one, list | tuple) for one in found):
        found = [name for one in found for name in one] if key == "node_names" else found[0]
    fits = isinstance(found, list | tuple) and len(found) > 0 and all(isinstance(one, str) for one in found)
    return list(found) if fits and found is not None else None


def _roots(subject: Subject) -> Tensor | None:
    """The two nodes of every target of a subject, where they are not the target itself."""
    if subject.batch is not None or (subject.level == "node" and subject.graph.types is None):
        return None
    ends = subject.outputs.ends
    if ends is not None:
        return ends.detach().t().cpu()
    nodes = subject.roots("all").node.detach().cpu()
    return torch.stack([nodes, nodes], dim=1)


def _first_nodes(batch: Tensor, num_graphs: int) -> Tensor | None:
    """The first node of each graph; None where the nodes of a graph do not follow one another."""
    if batch.numel() == 0 or bool((batch.diff() < 0).any()):
        return None
    return torch.searchsorted(batch, torch.arange(num_graphs))


def _node_names(data: Data, subject: Subject, node_types: Sequence[str] | None) -> list[str] | None:
    nodes = subject.graph.num_nodes
    given = _given(data, "node_names")
    if given is not None:
        return given if len(given) == nodes else None
    if (types := subject.graph.types) is not None:
        return types.names(torch.arange(nodes))
    x = data.get("x")
    if not node_types or not isinstance(x, Tensor) or tuple(x.shape) != (nodes, len(node_types)):
        return None
    batch = data.get("batch")
    first = torch.zeros(1, dtype=torch.int64) if batch is None else data.ptr.cpu()
    own = torch.zeros(nodes, dtype=torch.int64) if batch is None else batch.cpu()
    numbers = (torch.arange(nodes) - first[own]).tolist()
    return [f"{node_types[kind]}{number}" for kind, number in zip(x.argmax(1).tolist(), numbers, strict=True)]
