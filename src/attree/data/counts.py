"""What a dataset must contain, so that a wrong or truncated file is noticed when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_geometric.data import Data

from attree.errors import MissingDataError


@dataclass(frozen=True)
class Counts:
    """Sizes of a dataset that are known before it is read; None where they are not.

    They also let a network be built before the files are touched: its input and output widths come from here.
    Nodes and edges are those of all graphs together; edges are directed ones.
    """

    nodes: int | None
    edges: int | None
    features: int
    classes: int
    graphs: int = 1

    def check(self, name: str, graphs: Sequence[Data]) -> None:
        """Raise a `MissingDataError` unless `graphs` have these sizes."""
        found = {
            "graphs": len(graphs),
            "nodes": sum(graph.x.size(0) for graph in graphs),
            "edges": sum(graph.edge_index.size(1) for graph in graphs),
            "features": max((graph.x.size(1) for graph in graphs), default=0),
        }
        wrong = [
            f"{count:,} {key} instead of {expected:,}"
            for key, count in found.items()
            if (expected := getattr(self, key)) is not None and count != expected
        ]
        # A small random graph may lack its last class; a label beyond it would crash far from here.
        highest = max((int(graph.y.max()) for graph in graphs if graph.y.numel()), default=0)
        if highest >= self.classes:
            wrong.append(f"a label {highest} where {self.classes} classes end at {self.classes - 1}")
        if wrong:
            raise MissingDataError(
                f"The files of {name} are not the expected ones: they hold {', '.join(wrong)}. "
                "Delete them and fetch them again."
            )
