"""How benchmarks take time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def best(function: Callable[[], T], repeats: int) -> tuple[float, T]:
    """The shortest time of a call in seconds, and what it returned."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return min(times), value
