"""What users may type to say which nodes or graphs are explained."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from attree.errors import ArgumentError, expect
from attree.evaluation.targets import choose_targets

SPECIAL = ("all", "errors", "truth")


def parse_targets(
    text: str, count: int, wrong: Tensor | None = None, true: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Ids that a text names.

    Args:
        text: Ids and ranges (`2,44,100-110`), `random:20`, `errors` (misclassified ones), `truth` (those with a true
            explanation) or `all`.
        count: How many nodes or graphs there are.
        wrong: Ids of those that are misclassified.
        true: Ids of those that have a true explanation; None if none has.
        seed: Seed of a random choice.

    >>> parse_targets("2, 7-9", count=10).tolist()
    [2, 7, 8, 9]
    """
    text = text.strip()
    if text == "all":
        return torch.arange(count)
    if text == "errors":
        expect(wrong is not None and wrong.numel() > 0, "targets", "others, as no prediction is wrong", text)
        assert wrong is not None
        return wrong
    if text == "truth":
        expect(true is not None, "targets", "others, as this data has no ground truth", text)
        assert true is not None
        return true
    if found := re.fullmatch(r"random:(\d+)", text):
        return choose_targets(int(found[1]), count, seed)
    ids: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise ArgumentError(
                "Expected argument `targets` to be ids and ranges (2,44,100-110), random:20, errors, truth or all, but "
                f"got {text!r}."
            )
        first, last = int(found[1]), int(found[2] or found[1])
        inside = first <= last < count
        expect(inside, "targets", f"ids in [0, {count}), ranges from low to high", part.strip())
        ids += range(first, last + 1)
    return torch.tensor(list(dict.fromkeys(ids)), dtype=torch.int64)
