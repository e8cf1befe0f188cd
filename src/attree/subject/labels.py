"""Check that labels fit the outputs of a model: one rule for all who explain a model on labelled data."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from attree.errors import ArgumentError, expect
from attree.subject.head import Head
from attree.subject.subject import Subject


def labels_of(data: Data | HeteroData, subject: Subject) -> Any:
    """The labels of a subject's targets: `edge_label` for pairs of nodes, else `y`; None if the data has none.

    In a heterogeneous graph, these are the labels of the explained node type.
    """
    key = "edge_label" if subject.level == "edge" else "y"
    if isinstance(data, HeteroData):
        if subject.level == "edge":
            found = [store[key] for store in data.edge_stores if key in store]
            return found[0] if len(found) == 1 else None
        return None if subject.node_type is None else data[subject.node_type].get(key)
    return data.get(key)


def check_labels(labels: Any, output: Tensor, head: Head) -> None:
    """Raise if the labels show that the outputs are not classes, and the caller has not said what they are.

    Real numbers are no classes. Several columns of labels are none either, unless each row marks exactly one of as many
    classes as the outputs have. Classes need a column each, two need one column at least.

    Args:
        labels: The labels of a graph or batch, see `labels_of`, or None.
        output: The outputs of the model, [rows] or [rows, columns].
        head: The meaning of the outputs that the caller gave.
    """
    if not isinstance(labels, Tensor) or labels.numel() == 0:
        return
    columns = 1 if output.dim() == 1 else output.shape[1]
    wide = labels.dim() > 1 and labels[0].numel() > 1
    if head.mode is None and wide and not _is_one_hot(labels, columns):
        raise ArgumentError(
            "Expected argument `mode` to say what is predicted, as the labels `y` (`edge_label` of links) have "
            f"{labels[0].numel()} columns (`binary_classification` for several labels a row, "
            "`regression` for several numbers), but got None."
        )
    known = labels[labels.isfinite()] if labels.is_floating_point() else labels
    if head.mode is None and known.is_floating_point() and bool((known != known.round()).any()):
        raise ArgumentError(
            "Expected argument `mode` to say what is predicted, as the labels `y` (`edge_label` of links) are real "
            "numbers (`regression`?), but got None."
        )
    mode = head.mode or ("binary_classification" if columns == 1 else "multiclass_classification")
    if wide or known.numel() == 0 or mode == "regression" or (mode == "binary_classification" and columns > 1):
        return
    highest = int(known.max())
    got = f"{columns} column{'s' if columns > 1 else ''} of outputs"
    expect(highest < max(columns, 2), "model", f"one whose outputs fit labels up to {highest}", got)


def _is_one_hot(labels: Tensor, columns: int) -> bool:
    is_bit = bool(((labels == 0) | (labels == 1)).all())
    return is_bit and labels.dim() == 2 and labels.shape[1] == columns and bool((labels.sum(dim=1) == 1).all())


def count_classes(labels: Any) -> int | None:
    """Number of classes: the highest label plus one; None if there are no labels, or they are not classes.

    >>> import torch
    >>> count_classes(torch.tensor([0, 2, 1])), count_classes(torch.tensor([0.5])), count_classes(None)
    (3, None, None)
    """
    if not isinstance(labels, Tensor) or labels.numel() == 0 or labels.is_floating_point():
        return None
    return None if labels.dim() > 1 and labels[0].numel() > 1 else int(labels.max()) + 1
