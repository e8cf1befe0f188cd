"""Why a model is not taken apart: what the exact engine raises so that copies take over."""

from __future__ import annotations

from attree.errors import UnsupportedModelError


class CannotTakeApartError(UnsupportedModelError):
    """A model cannot be run on rows; the message says why, as the end of a sentence."""
