"""How benchmarks take time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Generic, TypeVar

T = TypeVar("T")


def best(function: Callable[[], T], repeats: int) -> tuple[float, T]:
    """The shortest time of a call in seconds, and what it returned."""
    times = []
    for _ in range(repeats):
        seconds, value = timed(function)
        times.append(seconds)
    return min(times), value


def timed(function: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[float, T]:
    """The time of one call in seconds, and what it returned."""
    start = clock()
    value = function()
    return clock() - start, value


@dataclass(frozen=True)
class Spread:
    """Numbers of several rounds: their median, and the quartiles that half of them lie between."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: list[float]) -> Spread:
        """The spread of at least one number."""
        low, _, high = quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else numbers * 3
        return cls(median(numbers), low, high)

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


class Race(Generic[T]):
    """Times of several contestants that take turns, so that whatever else the machine does slows all of them alike.

    A ratio is taken within each round. Its median over the rounds is what carries over to other machines, and its
    spread says how far it can be trusted.

    Args:
        contestants: What to time, by name. A call is one turn.
        rounds: How many turns each contestant takes, after one that does not count.
        clock: What tells the time in seconds: `time.perf_counter`, or `time.process_time` for the time of the
            processor, which a busy machine disturbs less.

    Attributes:
        seconds: What each turn took, by name.
        results: What the first turn returned, by name.
    """

    def __init__(
        self,
        contestants: Mapping[str, Callable[[], T]],
        rounds: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        names = list(contestants)
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.results = {name: contestants[name]() for name in names}
        for turn in range(rounds):
            # Whoever is first in one round is last in the next: what a turn leaves behind is not always the same one's.
            for name in names if turn % 2 == 0 else reversed(names):
                self.seconds[name].append(timed(contestants[name], clock)[0])

    def time(self, name: str) -> Spread:
        """Seconds that a contestant takes."""
        return Spread.of(self.seconds[name])

    def ratio(self, name: str, base: str) -> Spread:
        """How many times as long as `base` a contestant takes."""
        return Spread.of([a / b for a, b in zip(self.seconds[name], self.seconds[base], strict=True)])

    def extra(self, name: str, base: str) -> Spread:
        """How many times `base`'s time a contestant takes on top of it."""
        ratio = self.ratio(name, base)
        return Spread(ratio.median - 1, ratio.low - 1, ratio.high - 1)
