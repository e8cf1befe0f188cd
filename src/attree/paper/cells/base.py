"""A cell: one measurement that stands on its own, named by all that determines it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, ClassVar

from attree.paper.cells.cell_context import CellContext
from attree.paper.fingerprint import code_hash, data_hash, libraries
from attree.paper.net import Net
from attree.paper.training import reproducible

Result = dict[str, Any]
"""What a cell measured, as plain values."""


@dataclass(frozen=True)
class Cell(ABC):
    """One measurement. A subclass is a frozen dataclass of its settings and says how to `measure`.

    Attributes:
        kind: Name of the kind of measurement.
        reads_features: Whether it depends on more of a dataset than its edges.
    """

    kind: ClassVar[str]
    reads_features: ClassVar[bool] = True

    @property
    @abstractmethod
    def dataset(self) -> str:
        """The dataset that is measured on."""

    @abstractmethod
    def measure(self, context: CellContext) -> Result:
        """Do the measurement."""

    def key(self, context: CellContext) -> dict[str, Any]:
        """All that determines the result."""
        return {
            "kind": self.kind,
            "cell": asdict(self),
            "code": code_hash(type(self).__module__),
            "data": data_hash(self.dataset, context.root),
            "libraries": libraries(),
        }

    def known(self, context: CellContext) -> Result | None:
        """The result if it was measured before with the same code, data and libraries."""
        return context.cache.get(self.key(context))

    def result(self, context: CellContext) -> Result:
        """The result: known, or measured now and kept, with the seconds that it took."""
        known = self.known(context)
        if known is not None:
            return known
        began = perf_counter()
        with reproducible(seed=0):
            measured = self.measure(context)
        measured["seconds"] = perf_counter() - began
        context.cache.put(self.key(context), measured)
        return measured


@dataclass(frozen=True)
class Trained(Cell):
    """A network's test accuracy."""

    net: Net
    kind: ClassVar[str] = "trained"

    def __str__(self) -> str:
        return f"accuracy of {self.net}"

    @property
    def dataset(self) -> str:
        return self.net.dataset

    def measure(self, context: CellContext) -> Result:
        return {"accuracy": context.model(self.net)[1]}
