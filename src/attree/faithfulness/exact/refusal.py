"""Why a model is not taken apart: what the exact engine raises so that copies take over."""

from __future__ import annotations

from attree.errors import UnsupportedModelError


class CannotTakeApartError(UnsupportedModelError):
    """A model cannot be run on rows.

    Args:
        reason: Why, as the end of a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"Expected a model that can be run on the rows that a reduction changes, but {reason}.")
        self.reason = reason
