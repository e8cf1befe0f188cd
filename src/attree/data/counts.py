"""What a dataset must contain, so that a wrong or truncated file is noticed when it is read."""

from __future__ import annotations

from dataclasses import dataclass

from torch_geometric.data import Data

from attree.errors import MissingDataError


@dataclass(frozen=True)
class Counts:
    """Sizes of a dataset that are known before it is read; None where they are not.

    They also let a network be built before the files are touched: its input and output widths come from here.
    """

    nodes: int | None
    edges: int | None
    features: int
    classes: int

    def check(self, name: str, graph: Data) -> None:
        """Raise a `MissingDataError` unless `graph` has these sizes."""
        found = {
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "features": graph.num_features,
            "classes": int(graph.y.max()) + 1,
        }
        wrong = [
            f"{count} {key} instead of {expected}"
            for key, count in found.items()
            if (expected := getattr(self, key)) is not None and count != expected
        ]
        if wrong:
            raise MissingDataError(
                f"The files of {name} are not the expected ones: they hold {', '.join(wrong)}. "
                "Delete them and fetch them again."
            )
