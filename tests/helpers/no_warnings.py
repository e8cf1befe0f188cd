"""Warnings as errors, but for those that other packages owe to a new Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

FOREIGN = "ignore::DeprecationWarning:torch_geometric"
"""Filter for pytest: since Python 3.13, PyG's inspector of `message` and `update` is warned of by `typing`."""


@contextmanager
def no_warnings() -> Iterator[None]:
    """Make every warning an error, but deprecations in PyG's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch_geometric")
        yield
