"""Whether a model can be run on less than its whole graph: how engines find out, and how they say that it cannot.

Every engine but the slowest runs the model on rows or on parts of the graph. It first does so with nothing reduced,
in another order than that of the graph, with decoys in front and behind that hold loud noise. The outputs must equal
those of the whole graph: code that depends on a row's position, or on rows of others, shows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attree.errors import UnsupportedModelError

LOUDNESS = 8.0
"""How much larger than the largest number of all rows the noise of decoys is, so that a maximum over rows shows."""


class EngineError(UnsupportedModelError):
    """An engine cannot serve a model; the next one may.

    Args:
        expected: What the engine needs, as a noun phrase.
        reason: Why the model does not have it, as the end of a sentence.
    """

    def __init__(self, expected: str, reason: str) -> None:
        super().__init__(f"Expected {expected}, but {reason}.")
        self.reason = reason


class NotRowwiseError(EngineError):
    """A model cannot be run on the rows that a reduction changes."""

    def __init__(self, reason: str) -> None:
        super().__init__("a model that can be run on the rows that a reduction changes", reason)


class NotLocalError(EngineError):
    """A model cannot be run on copies of what a target depends on.

    Args:
        name: The model's class.
        reason: Why, as the end of a sentence.
    """

    def __init__(self, name: str, reason: str) -> None:
        expected = (
            f"{name} to compute the class scores of a target from its own graph, or from the nodes within reach of its "
            "attention layers"
        )
        super().__init__(expected, reason)


def loud_noise(like: Tensor, rows: Tensor, seed: int) -> Tensor:
    """Noise for decoys among rows.

    Args:
        like: Rows of the shape that is asked for.
        rows: All rows; the noise is louder than they are.
        seed: The seed of the noise.
    """
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)
    largest = rows.nan_to_num(0.0, 0.0, 0.0).abs().max() if rows.numel() else rows.new_ones(())
    return noise * LOUDNESS * largest.clamp(min=1.0)


def difference(got: Tensor, expected: Tensor, dtype: torch.dtype) -> float | None:
    """By how much outputs differ at most, if by more than rounding in a type; None if they do not.

    Nothing can be told where the expected outputs are not finite, as those of a model that has diverged.
    """
    if expected.numel() == 0:
        return None
    finite = expected.isfinite()
    found = float((got - expected).abs().where(finite, 0).max())
    scale = max(float(expected.abs().where(finite, 0).max()), 1.0)
    return None if found <= torch.finfo(dtype).eps ** 0.5 * scale else found


def same(got: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers are equal up to rounding in a type."""
    scale = max(float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()) if expected.numel() else 0.0, 1.0)
    tolerance = torch.finfo(dtype).eps ** 0.5 * scale
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=0.0, atol=tolerance, equal_nan=True)
