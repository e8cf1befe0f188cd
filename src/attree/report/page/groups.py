"""Groups of nodes that the page shows in one colour: node types, predicted classes, or kinds of atoms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attree.attention import Attention
from attree.evaluation import Evaluation

UNKNOWN = 255
"""Group of a node without a known group."""


@dataclass(frozen=True)
class NodeGroups:
    """Groups of the nodes of a graph.

    Attributes:
        meaning: What the groups mean, such as "predicted class".
        names: Names of the groups.
        of_node: The group of each node, [N], on the CPU.
        shapes: Whether groups also have different shapes.
    """

    meaning: str
    names: Sequence[str]
    of_node: Tensor
    shapes: bool = False

    def content(self) -> dict[str, Any]:
        """Return the groups as plain values for the page."""
        return {"meaning": self.meaning, "names": [str(name) for name in self.names], "shapes": self.shapes}


def node_groups(
    evaluation: Evaluation,
    attention: Attention | None,
    predictions: Tensor | None,
    class_names: Sequence[str] | None,
    node_names: Sequence[str] | None,
) -> NodeGroups | None:
    """Return the groups by which a page colours nodes; None if no grouping applies.

    Args:
        evaluation: The evaluation.
        attention: The captured forward pass; its output predicts a class for every node.
        predictions: Class probabilities of the targets, [T, classes].
        class_names: Names of the classes.
        node_names: Names of the nodes. If all look like `C12`, their letters are the groups.
    """
    graph = evaluation.pairs.graph
    if graph.types is not None:
        kinds = graph.types.type_of_nodes(torch.arange(graph.num_nodes))
        return NodeGroups("type of node", graph.types.node_types, kinds.clamp(max=UNKNOWN), shapes=True)
    if evaluation.pairs.num_layers is not None:
        if evaluation.pairs.level != "node" or evaluation.about.measured is not None:
            return None
        return _by_prediction(evaluation, attention, predictions, class_names)
    return None if node_names is None else _by_kind(node_names)


def _by_prediction(
    evaluation: Evaluation,
    attention: Attention | None,
    predictions: Tensor | None,
    class_names: Sequence[str] | None,
) -> NodeGroups | None:
    """Return the nodes grouped by predicted class; None if the model's output does not give the class of every node."""
    output = None if attention is None else attention.output
    if predictions is None or not isinstance(output, Tensor) or output.dim() != 2:
        return None
    classes = predictions.shape[1]
    if output.shape != (evaluation.pairs.graph.num_nodes, classes) or not 2 <= classes < UNKNOWN:
        return None
    predicted = output.detach().argmax(dim=1).cpu()
    # In most models, but not in all, the highest output is the predicted class. The known predictions must agree.
    if not torch.equal(predicted[evaluation.targets.cpu()], predictions.argmax(dim=1).cpu()):
        return None
    names = [f"class {number}" for number in range(classes)] if class_names is None else class_names[:classes]
    return NodeGroups("predicted class", names, predicted)


def _by_kind(node_names: Sequence[str]) -> NodeGroups | None:
    matches = [re.fullmatch(r"([A-Za-z]{1,3})\d+", name) for name in node_names]
    kinds = [match[1] if match else None for match in matches]
    distinct_kinds = sorted({kind for kind in kinds if kind is not None}, key=lambda kind: (-kinds.count(kind), kind))
    if not 2 <= len(distinct_kinds) < UNKNOWN or None in kinds:
        return None
    place = {kind: number for number, kind in enumerate(distinct_kinds)}
    return NodeGroups("kind of node", distinct_kinds, torch.tensor([place[kind] for kind in kinds if kind is not None]))
