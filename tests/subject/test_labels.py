"""Labels that are no classes of a model's outputs are noticed, unless the caller says what is predicted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attree.errors import ArgumentError
from attree.subject import Head
from attree.subject.head import Mode, check_labels

MULTI = torch.tensor([[1, 0, 1], [0, 0, 1]])

CASES: dict[str, tuple[Tensor | None, int, Mode | None, str | None]] = {
    "classes": (torch.tensor([0, 2]), 3, None, None),
    "unlabelled among classes": (torch.tensor([-1, 2]), 3, None, None),
    "float classes": (torch.tensor([0.0, 2.0]), 3, None, None),
    "one column": (torch.tensor([[0], [2]]), 3, None, None),
    "no labels": (None, 64, None, None),
    "too many classes": (torch.tensor([0, 3]), 3, None, "fit labels up to 3.*3 columns"),
    "too many for a binary class": (torch.tensor([0, 3]), 1, None, "fit labels up to 3.*1 column of"),
    "binary": (torch.tensor([0.0, 1.0]), 1, None, None),
    "real": (torch.tensor([0.5, 1.0]), 1, None, "`mode`.*real numbers"),
    "missing numbers": (torch.tensor([0.5, torch.nan]), 1, None, "`mode`.*real numbers"),
    "real, said": (torch.tensor([0.5, 1.0]), 1, "regression", None),
    "several labels": (MULTI, 3, None, "`mode`.*3 columns"),
    "several labels of floats": (MULTI.float(), 3, None, "`mode`.*3 columns"),
    "several labels, said": (MULTI, 3, "binary_classification", None),
    "one-hot": (torch.eye(3)[:2], 3, None, None),
    "one-hot of other classes": (torch.eye(4)[:2], 3, None, "`mode`.*4 columns"),
    "said classes that do not fit": (torch.tensor([0, 3]), 3, "multiclass_classification", "fit labels up to 3"),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_are_held_against_outputs(case: str) -> None:
    labels, columns, mode, sentence = CASES[case]
    output = torch.randn(2, columns)
    if sentence is None:
        check_labels(labels, output, Head(mode))
    else:
        with pytest.raises(ArgumentError, match=sentence):
            check_labels(labels, output, Head(mode))
