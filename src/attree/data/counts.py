"""Expected sizes of datasets: a wrong or truncated file is found when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType

from attree.errors import MissingDataError


@dataclass(frozen=True)
class Counts:
    """Sizes of a dataset that are known before it is read; None if unknown.

    A network can be built from them before any file is read. Nodes and directed edges are counted over all graphs.
    """

    nodes: int | None
    edges: int | None
    features: int
    classes: int
    graphs: int = 1

    def check(self, name: str, graphs: Sequence[Data]) -> None:
        """Raise a `MissingDataError` if `graphs` do not have these sizes."""
        sizes = {
            "graphs": len(graphs),
            "nodes": sum(graph.x.size(0) for graph in graphs),
            "edges": sum(graph.edge_index.size(1) for graph in graphs),
            "features": max((graph.x.size(1) for graph in graphs), default=0),
        }
        wrong = [
            f"{count:,} {key} instead of {expected:,}"
            for key, count in sizes.items()
            if (expected := getattr(self, key)) is not None and count != expected
        ]
        # A small random graph may lack its last class. A label beyond the last class would crash later.
        highest = max((int(graph.y.max()) for graph in graphs if graph.y.numel()), default=0)
        if highest >= self.classes:
            wrong.append(f"a label {highest} instead of at most {self.classes - 1}")
        _raise_if(name, wrong)


class Widths(Mapping[str, int]):
    """Feature width of each node type, with the relations and the classified type that a network also needs.

    Attributes:
        edge_types: The relations (source type, name, destination type).
        node_type: The type of the classified nodes.
    """

    def __init__(self, widths: Mapping[str, int], edge_types: Sequence[EdgeType], node_type: str) -> None:
        self._widths = dict(widths)
        self.edge_types = list(edge_types)
        self.node_type = node_type

    def __getitem__(self, kind: str) -> int:
        return self._widths[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._widths)

    def __len__(self) -> int:
        return len(self._widths)

    def __repr__(self) -> str:
        return repr(self._widths)


@dataclass(frozen=True)
class HeteroCounts:
    """Sizes of a heterogeneous graph that are known before it is read; see `Counts`.

    Attributes:
        nodes: Number of nodes of each type, in the order of the graph's node types.
        edges: Number of edges of each relation (source type, name, destination type); None if random.
        features: Feature width of each node type.
        classes: Number of classes.
        node_type: The type of the classified nodes.
    """

    nodes: Mapping[str, int]
    edges: Mapping[EdgeType, int | None]
    features: Mapping[str, int]
    classes: int
    node_type: str

    def check(self, name: str, graph: HeteroData) -> None:
        """Raise a `MissingDataError` if the graph does not have these types, in this order, and these sizes."""
        wrong = []
        types: dict[str, list[Any]] = {"node types": graph.node_types, "relations": graph.edge_types}
        for kind, expected in (("node types", list(self.nodes)), ("relations", list(self.edges))):
            if types[kind] != expected:
                wrong.append(f"the {kind} {types[kind]} instead of {expected}")
        if not wrong:
            sizes = [(f"nodes of type {kind}", graph[kind].x.size(0), size) for kind, size in self.nodes.items()]
            sizes += [(f"features of {kind}", graph[kind].x.size(1), size) for kind, size in self.features.items()]
            for relation, expected_edges in self.edges.items():
                if expected_edges is not None:
                    sizes.append((f"edges {' '.join(relation)}", graph[relation].edge_index.size(1), expected_edges))
            wrong += [f"{count:,} {what} instead of {size:,}" for what, count, size in sizes if count != size]
        _raise_if(name, wrong)


def _raise_if(name: str, wrong: list[str]) -> None:
    if wrong:
        raise MissingDataError(
            f"The files of {name} are not the expected ones: they hold {', '.join(wrong)}. "
            "Delete them and fetch them again."
        )
