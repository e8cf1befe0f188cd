"""The meaning of a model's outputs (classes, labels or numbers; logits or probabilities), and checks of the labels.

All measures of a prediction use class probabilities. A head converts outputs of any kind into logits of classes:

| mode | outputs | logits |
|---|---|---|
| multiclass_classification | one column per class | the outputs, or the logs of probabilities |
| binary_classification | one column, or none | of the two classes |
| binary_classification | several columns: several labels | of the two values of the measured label |
| regression | numbers | none: only the change of the measured number is defined |
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from attree.errors import ArgumentError, UnsupportedModelError, expect, expect_int
from attree.tensors.precision import exact_dtype

if TYPE_CHECKING:
    from attree.subject.subject import Subject

Mode = Literal["multiclass_classification", "binary_classification", "regression"]
"""Kind of prediction, by its name in PyG's `ModelConfig`."""

ReturnType = Literal["raw", "probs", "log_probs"]
"""The kind of outputs, in the words of PyG's `ModelConfig`."""

MODES = ("multiclass_classification", "binary_classification", "regression")
RETURN_TYPES = ("raw", "probs", "log_probs")


@dataclass(frozen=True)
class Head:
    """The meaning of a model's outputs; None is inferred from the outputs.

    Attributes:
        mode: What the model predicts. By default, one column is the logit of a binary class, and several columns are
            the logits of as many classes.
        return_type: The kind of outputs. By default, outputs of a final softmax or sigmoid and rows that add up to 1
            are probabilities; other outputs are logits.
        label: The label or number to measure, if there are several. For labels, None measures the most probable label
            of each target.
    """

    mode: Mode | None = None
    return_type: ReturnType | None = None
    label: int | None = None

    def __post_init__(self) -> None:
        expect(self.mode in (None, *MODES), "mode", f"one of {', '.join(MODES)}", self.mode)
        return_types = (None, *RETURN_TYPES)
        expect(self.return_type in return_types, "return_type", f"one of {', '.join(RETURN_TYPES)}", self.return_type)
        if self.label is not None:
            expect_int(self.label, "label")

    @property
    def is_settled(self) -> bool:
        """Whether `mode` and `return_type` are known."""
        return self.mode is not None and self.return_type is not None

    def inferred_from(self, activation: str | None) -> Head:
        """Infer unknown attributes from the last function of the model, see `Attention.activation`.

        >>> Head().inferred_from("sigmoid")
        Head(mode='binary_classification', return_type='probs', label=None)
        """
        if self.return_type is not None or activation is None or self.mode == "regression":
            return self
        binary = activation in ("sigmoid", "log_sigmoid")
        mode: Mode = "binary_classification" if binary else "multiclass_classification"
        if self.mode not in (None, mode):
            return self
        return replace(self, mode=mode, return_type="log_probs" if activation.startswith("log") else "probs")

    def resolve(self, output: Any) -> Head:
        """Infer unknown attributes from the outputs, [rows] or [rows, columns].

        If outputs fit two meanings (such as logits in [0, 1]), one is chosen with a warning. The values of the outputs
        never decide whether a model is accepted.

        Raises:
            UnsupportedModelError: If the outputs are not such a tensor.
            ArgumentError: If the outputs do not fit `mode`, `return_type` or `label`.
        """
        check_output(output)
        columns = 1 if output.dim() == 1 else output.shape[1]
        mode = self.mode or ("binary_classification" if columns == 1 else "multiclass_classification")
        if mode == "multiclass_classification" and columns < 2:
            raise ArgumentError(f"Expected argument `mode` to fit outputs of {columns} column, but got {mode!r}.")
        if mode == "multiclass_classification":
            expected = "None where classes are predicted, as the predicted class is measured"
            expect(self.label is None, "label", expected, self.label)
        if mode == "regression":
            expect(columns == 1 or self.label is not None, "label", "the number to measure of several", self.label)
        expect(self.label is None or self.label < columns, "label", f"a column in [0, {columns})", self.label)
        return replace(self, mode=mode, return_type=self._return_type(output, mode, columns))

    def _return_type(self, output: Tensor, mode: Mode, columns: int) -> ReturnType:
        """Return the kind of the outputs, as given or inferred; raise if the given kind does not fit the values."""
        if mode == "regression" or output.numel() == 0:
            return self.return_type or "raw"
        values = output.detach().to(exact_dtype(output.device)).reshape(output.shape[0], -1)
        values = values[values.isfinite().all(dim=1)]  # a model that has diverged returns NaN or infinity
        if values.numel() == 0:
            return self.return_type or "raw"
        within = bool(((values >= 0) & (values <= 1)).all())
        sums = within and columns > 1 and bool(((values.sum(dim=1) - 1).abs() < 1e-3).all())
        if self.return_type == "probs":
            fits = within and (sums or mode == "binary_classification")
            expect(fits, "return_type", "what the outputs are", "'probs', but they are no probabilities")
        elif self.return_type == "log_probs":
            fits = bool((values <= 1e-6).all())
            expect(fits, "return_type", "what the outputs are", "'log_probs', but some are above 0")
        elif mode == "multiclass_classification" and sums:
            if self.return_type == "raw":
                _warn("taken for logits, as `return_type` says, though each row adds up to 1")
                return "raw"
            return "probs"
        elif within and self.return_type is None and bool((values != values[0, 0]).any()):
            labels = " (and `mode='binary_classification'` that columns are labels)" if columns > 1 else ""
            _warn(f"taken for logits, though all lie between 0 and 1: `return_type='probs'` says otherwise{labels}")
        return self.return_type or "raw"

    def measured(self, output: Tensor) -> Tensor | None:
        """Return the measured column of each row, [rows]; None if all columns are classes of one prediction."""
        if output.dim() == 1 or output.shape[1] == 1 or self.mode == "multiclass_classification":
            return None
        if self.label is not None:
            return torch.full((output.shape[0],), self.label, device=output.device)
        return output.argmax(dim=1)

    def logits(self, output: Tensor, measured: Tensor | None = None) -> Tensor:
        """Return the logits of classes, [rows, classes]; for regression, the numbers, [rows, 1]. The head is resolved.

        Args:
            output: The outputs, [rows] or [rows, columns].
            measured: The measured column of each row; `Head.measured` of the outputs without any reduction.
        """
        if measured is not None:
            output = output.gather(1, measured.unsqueeze(1))
        if self.mode == "multiclass_classification":
            return output.log() if self.return_type == "probs" else output
        column = output.reshape(-1)
        if self.mode == "regression":
            return column.unsqueeze(1)
        if self.return_type == "raw":
            return torch.stack([F.logsigmoid(-column), F.logsigmoid(column)], dim=1)
        if self.return_type == "probs":
            return torch.stack([torch.log1p(-column), column.log()], dim=1)
        return torch.stack([torch.log1p(-column.exp().clamp(max=1.0)), column], dim=1)


def _warn(assumption: str) -> None:
    warnings.warn(f"The model's outputs are {assumption}.", stacklevel=3)


def check_output(output: Any) -> None:
    """Raise unless the output is a floating-point tensor of shape [rows] or [rows, columns]."""
    if not isinstance(output, Tensor) or output.dim() not in (1, 2) or not output.is_floating_point():
        got = f"a tensor of shape {tuple(output.shape)} and {output.dtype}" if isinstance(output, Tensor) else None
        raise UnsupportedModelError(
            "Expected the model to return one row of logits per node (or per graph), [rows, classes] or [rows], but "
            f"got {got or type(output).__name__}. (`call=`, a function of the model and the data, can return one of "
            "several tensors.)"
        )


def labels_of(data: Data | HeteroData, subject: Subject) -> Any:
    """Return the labels of a subject's targets: `edge_label` for pairs of nodes, else `y`; None if there are none.

    In a heterogeneous graph, these are the labels of the explained node type.
    """
    key = "edge_label" if subject.level == "edge" else "y"
    if isinstance(data, HeteroData):
        if subject.level == "edge":
            edge_labels = [store[key] for store in data.edge_stores if key in store]
            return edge_labels[0] if len(edge_labels) == 1 else None
        return None if subject.node_type is None else data[subject.node_type].get(key)
    return data.get(key)


def check_labels(labels: Any, output: Tensor, head: Head) -> None:
    """Raise if the labels show that the outputs are not classes, unless the head has a mode.

    Real numbers are not classes. Several columns of labels are not classes, unless they are a one-hot code with as many
    columns as the outputs. The outputs need one column per class; for two classes, one column is enough.

    Args:
        labels: The labels of a graph or batch, see `labels_of`, or None.
        output: The outputs of the model, [rows] or [rows, columns].
        head: The meaning of the outputs, as given by the caller.
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
    labelled = labels[labels.isfinite()] if labels.is_floating_point() else labels
    if head.mode is None and labelled.is_floating_point() and bool((labelled != labelled.round()).any()):
        raise ArgumentError(
            "Expected argument `mode` to say what is predicted, as the labels `y` (`edge_label` of links) are real "
            "numbers (`regression`?), but got None."
        )
    mode = head.mode or ("binary_classification" if columns == 1 else "multiclass_classification")
    if wide or labelled.numel() == 0 or mode == "regression" or (mode == "binary_classification" and columns > 1):
        return
    highest = int(labelled.max())
    got = f"{columns} column{'s' if columns > 1 else ''} of outputs"
    hint = "" if head.mode else " (or `mode='regression'`)"
    expect(highest < max(columns, 2), "model", f"one whose outputs fit labels up to {highest}{hint}", got)


MANY_COLUMNS = 8
"""From this number on, columns without any labels are more often an embedding or a forecast than classes."""


def check_classes(labels: Any, output: Tensor, head: Head, num_features: int | None = None) -> None:
    """Raise or warn if nothing says that several columns of outputs are classes.

    Probabilities are classes, and so are as many columns as the labels have classes. An embedding has more columns than
    there are classes; a reconstruction has as many as the features.

    Args:
        labels: The labels of a graph or batch, see `labels_of`, or None.
        output: The outputs of the model, [rows] or [rows, columns].
        head: The meaning of the outputs, as given by the caller.
        num_features: Number of the features of a node; None if unknown.
    """
    columns = 1 if output.dim() == 1 else output.shape[1]
    if head.mode is not None or columns == 1 or head.resolve(output).return_type != "raw":
        return
    if isinstance(labels, Tensor) and labels.dim() == 2 and _is_one_hot(labels, columns):
        return
    classes, labelled = _count_known(labels)
    if classes == columns:
        return
    if classes == 0:  # no labels
        same_width = "as many as there are features, and the data has no labels"
        if columns == num_features and columns >= MANY_COLUMNS:
            raise _ask_mode(columns, same_width)
        if columns == num_features and columns > 2:
            _warn(f"taken for scores of {columns} classes, {same_width}: `mode=` says otherwise")
        elif columns >= MANY_COLUMNS:
            _warn(f"taken for scores of {columns} classes, though the data has no labels: `mode=` says otherwise")
    elif columns >= 2 * max(classes, 2):
        if labelled >= columns:
            raise _ask_mode(columns, f"but the labels have {classes} class{'es' if classes > 1 else ''}")
        _warn(f"taken for scores of {columns} classes, though the labels have {classes}: `mode=` says otherwise")


def _count_known(labels: Any) -> tuple[int, int]:
    """Return the number of classes, the highest label plus one, and the number of known labels; 0 without labels."""
    if not isinstance(labels, Tensor) or labels.numel() == 0:
        return 0, 0
    labelled = labels[labels.isfinite()] if labels.is_floating_point() else labels
    labelled = labelled[labelled >= 0]
    return (int(labelled.max()) + 1, labelled.numel()) if labelled.numel() else (0, 0)


def _ask_mode(columns: int, doubt: str) -> ArgumentError:
    return ArgumentError(
        f"Expected argument `mode` to say what the {columns} columns of outputs are, {doubt} "
        "(`multiclass_classification` for classes, `binary_classification` for labels, `regression` with `label=` for "
        "numbers; for an encoder, `call=` is a function that also applies its classifier), but got None."
    )


def _is_one_hot(labels: Tensor, columns: int) -> bool:
    is_bit = bool(((labels == 0) | (labels == 1)).all())
    return is_bit and labels.dim() == 2 and labels.shape[1] == columns and bool((labels.sum(dim=1) == 1).all())


def count_classes(labels: Any) -> int | None:
    """Return the number of classes: the highest label plus one; None if there are no labels, or they are not classes.

    >>> import torch
    >>> count_classes(torch.tensor([0, 2, 1])), count_classes(torch.tensor([0.5])), count_classes(None)
    (3, None, None)
    """
    if not isinstance(labels, Tensor) or labels.numel() == 0 or labels.is_floating_point():
        return None
    return None if labels.dim() > 1 and labels[0].numel() > 1 else int(labels.max()) + 1
