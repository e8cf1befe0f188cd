"""What users may type to say which nodes or graphs are explained."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from attree.errors import ArgumentError, expect
from attree.evaluation.targets import choose_targets

FORMS = "ids and ranges (2,44,100-110), random:20, errors, errors:20, truth, truth:20 or all"
"""What targets look like."""


def asks_for_errors(text: str) -> bool:
    """Whether a text names targets by what the model gets wrong, so that its predictions are needed to read it.

    >>> asks_for_errors("errors:5"), asks_for_errors("random:5")
    (True, False)
    """
    return text.strip().partition(":")[0] == "errors"


def parse_targets(
    text: str, count: int, wrong: Tensor | None = None, true: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Ids that a text names.

    Args:
        text: Ids and ranges (`2,44,100-110`), `random:20`, `errors` (misclassified ones), `truth` (those with a true
            explanation) or `all`. `errors:20` and `truth:20` draw as many of them at random. Brackets around a list
            of ids may be left out.
        count: How many nodes or graphs there are.
        wrong: Ids of those that are misclassified.
        true: Ids of those that have a true explanation; None if none has.
        seed: Seed of a random choice.

    >>> parse_targets("2, 7-9", count=10).tolist(), parse_targets("[2,7]", count=10).tolist()
    ([2, 7, 8, 9], [2, 7])
    """
    text = text.strip()
    if text == "all":
        return torch.arange(count)
    if found := re.fullmatch(r"(random|errors|truth)(?::(\d+))?", text):
        kind, number = found.groups()
        if kind == "errors":
            expect(wrong is not None and wrong.numel() > 0, "targets", "others, as no prediction is wrong", text)
        if kind == "truth":
            expect(true is not None, "targets", "others, as this data has no ground truth", text)
        known = {"random": torch.arange(count), "errors": wrong, "truth": true}[kind]
        if known is not None and (number is not None or kind != "random"):
            return known if number is None else known[choose_targets(int(number), known.numel(), seed)]
    ids: list[int] = []
    for part in text.removeprefix("[").removesuffix("]").split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise ArgumentError(f"Expected argument `targets` to be {FORMS}, but got {text!r}.")
        first, last = int(found[1]), int(found[2] or found[1])
        inside = first <= last < count
        expect(inside, "targets", f"ids in [0, {count}), ranges from low to high", part.strip())
        ids += range(first, last + 1)
    return torch.tensor(list(dict.fromkeys(ids)), dtype=torch.int64)
