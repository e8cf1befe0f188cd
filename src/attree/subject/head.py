"""What a model's outputs mean: classes, one logit, several labels, or numbers; as logits, probabilities or their logs.

Everything that is measured of a prediction is measured on class probabilities. A head turns outputs of any kind into
logits whose softmax they are:

| mode | outputs | logits |
|---|---|---|
| multiclass_classification | one column a class | as they are, or the logs of probabilities |
| binary_classification | one column, or none | of the two classes |
| binary_classification | several columns: several labels | of the two values of the measured label |
| regression | numbers | none: only the change of the measured number is defined |
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.errors import ArgumentError, UnsupportedModelError, expect, expect_int
from attree.tensors.limits import exact_dtype

Mode = Literal["multiclass_classification", "binary_classification", "regression"]
"""What is predicted, in the words of PyG's `ModelConfig`."""

ReturnType = Literal["raw", "probs", "log_probs"]
"""What the outputs are, in the words of PyG's `ModelConfig`."""

MODES = ("multiclass_classification", "binary_classification", "regression")
RETURN_TYPES = ("raw", "probs", "log_probs")


@dataclass(frozen=True)
class Head:
    """What a model's outputs mean; None is decided by looking at the outputs.

    Attributes:
        mode: What is predicted. Outputs of one column are taken for the logits of a binary class, of several columns
            for those of as many classes.
        return_type: What the outputs are. A softmax or sigmoid at the model's end is recognised, and so are rows that
            add up to 1; other outputs are taken for logits.
        label: Of several labels or numbers, the one that is measured; of labels, None measures each target's most
            probable one.
    """

    mode: Mode | None = None
    return_type: ReturnType | None = None
    label: int | None = None

    def __post_init__(self) -> None:
        expect(self.mode in (None, *MODES), "mode", f"one of {', '.join(MODES)}", self.mode)
        known = (None, *RETURN_TYPES)
        expect(self.return_type in known, "return_type", f"one of {', '.join(RETURN_TYPES)}", self.return_type)
        if self.label is not None:
            expect_int(self.label, "label")

    @property
    def is_settled(self) -> bool:
        """Whether everything is decided."""
        return self.mode is not None and self.return_type is not None

    def told_by(self, activation: str | None) -> Head:
        """Decide what is open by the last function of the model, see `Attention.activation`.

        >>> Head().told_by("sigmoid")
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
        """Decide what is open by the model's outputs, [rows] or [rows, columns].

        Outputs that fit two meanings (such as logits that lie in [0, 1]) are read in one of them, with a warning: the
        values that a model happens to return never decide whether it is accepted.

        Raises:
            UnsupportedModelError: The outputs are no such tensor.
            ArgumentError: The outputs do not fit `mode`, `return_type` or `label`.
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
        if mode == "regression" or output.numel() == 0:
            return self.return_type or "raw"
        values = output.detach().to(exact_dtype(output.device)).reshape(output.shape[0], -1)
        values = values[values.isfinite().all(dim=1)]  # of a model that has diverged, nothing can be told
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
                _say("taken for logits, as `return_type` says, though each row adds up to 1")
                return "raw"
            return "probs"
        elif within and self.return_type is None and bool((values != values[0, 0]).any()):
            labels = " (and `mode='binary_classification'` that columns are labels)" if columns > 1 else ""
            _say(f"taken for logits, though all lie between 0 and 1: `return_type='probs'` says otherwise{labels}")
        return self.return_type or "raw"

    def measured(self, output: Tensor) -> Tensor | None:
        """For each row the column that is measured, [rows]; None if all columns are classes of one prediction."""
        if output.dim() == 1 or output.shape[1] == 1 or self.mode == "multiclass_classification":
            return None
        if self.label is not None:
            return torch.full((output.shape[0],), self.label, device=output.device)
        return output.argmax(dim=1)

    def logits(self, output: Tensor, measured: Tensor | None = None) -> Tensor:
        """Logits of classes, [rows, classes], from outputs of a resolved head; of numbers, the numbers [rows, 1].

        Args:
            output: The outputs, [rows] or [rows, columns].
            measured: For each row the column that is measured, as `measured` gave it for the model as it is.
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


def _say(assumption: str) -> None:
    warnings.warn(f"The model's outputs are {assumption}.", stacklevel=3)


def check_output(output: Any) -> None:
    """Raise unless outputs are a tensor with one row per node or graph."""
    if not isinstance(output, Tensor) or output.dim() not in (1, 2) or not output.is_floating_point():
        got = f"a tensor of shape {tuple(output.shape)} and {output.dtype}" if isinstance(output, Tensor) else None
        raise UnsupportedModelError(
            "Expected the model to return one row of logits per node (or per graph), [rows, classes] or [rows], but "
            f"got {got or type(output).__name__}. (`call=`, a function of the model and the data, can return one of "
            "several tensors.)"
        )
