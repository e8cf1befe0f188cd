"""What the data says of what is explained: true classes, and what classes and nodes are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.subject import Subject


@dataclass(frozen=True)
class Facts:
    """What captions of pictures tell beside a model's own outputs; all of it may be unknown.

    Attributes:
        labels: The true class (or number, of a regression) of every node or graph that the subject explains, [targets].
        class_names: What classes are called, by their number.
        node_names: What nodes of the subject's graph are called, by their id.
    """

    labels: Tensor | None = None
    class_names: Sequence[str] | None = None
    node_names: Sequence[str] | None = None

    @classmethod
    def of(
        cls,
        data: Data,
        subject: Subject,
        class_names: Sequence[str] | None = None,
        node_types: Sequence[str] | None = None,
    ) -> Facts:
        """Gather what is known of a graph or batch; what does not fit the subject is left out.

        Args:
            data: The graph or batch. Its own `node_names` (one a node) and `class_names` are taken where it has some.
            subject: What is explained of it.
            class_names: What classes are called, by their number.
            node_types: What one-hot features mean, by their column: nodes are called by it and their number.
        """
        labels = data.get("y")
        fits = isinstance(labels, Tensor) and labels.dim() >= 1 and labels.numel() == subject.num_targets
        names = class_names if class_names is not None else _given(data, "class_names")
        return cls(labels.detach().view(-1).cpu() if fits else None, names, _node_names(data, subject, node_types))

    def class_name(self, number: int) -> str:
        """What a class is called: its name, or its number."""
        known = self.class_names is not None and 0 <= number < len(self.class_names)
        return plain(str(self.class_names[number])) if known and self.class_names is not None else str(number)

    def prediction(self, subject: Subject, target: int) -> str:
        """What is predicted for a target, and what is true, in words; the attention of now tells the former.

        Args:
            subject: What is explained.
            target: A node or graph.
        """
        head, output = subject.head.resolve(subject.attention.output), subject.attention.output[target : target + 1]
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


def plain(name: str) -> str:
    """A name on one line.

    >>> plain("two\\nlines ")
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


def _node_names(data: Data, subject: Subject, node_types: Sequence[str] | None) -> list[str] | None:
    nodes = subject.graph.num_nodes
    given = _given(data, "node_names")
    if given is not None:
        return given if len(given) == nodes else None
    x = data.get("x")
    if not node_types or not isinstance(x, Tensor) or tuple(x.shape) != (nodes, len(node_types)):
        return None
    batch = data.get("batch")
    first = torch.zeros(1, dtype=torch.int64) if batch is None else data.ptr.cpu()
    own = torch.zeros(nodes, dtype=torch.int64) if batch is None else batch.cpu()
    numbers = (torch.arange(nodes) - first[own]).tolist()
    return [f"{node_types[kind]}{number}" for kind, number in zip(x.argmax(1).tolist(), numbers, strict=True)]
