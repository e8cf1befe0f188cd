"""A run does not end because something could not be shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities import rank_zero_warn


@contextmanager
def warn_only(what: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into a warning of one line; for pictures and dashboards, never for results."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        rank_zero_warn(f"{what} could not be made ({type(error).__name__}: {reason}); the run goes on without.")
