"""What data must look like: sizes that are known before it is read, and values that torch would silently misread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType

from attree.data.ground_truth import GroundTruth
from attree.errors import MissingDataError, expect
from attree.tensors.arrays import check_edge_index, find


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


MASKS = ("train_mask", "val_mask", "test_mask")


def check_graph(graph: Data, name: str = "data") -> None:
    """Raise unless a graph has finite features, edges between its nodes and integer labels.

    Args:
        graph: The graph: x, edge_index, y.
        name: Name of the graph in messages.
    """
    expect(isinstance(graph, Data), name, "a torch_geometric.data.Data", type(graph).__name__)
    _check_features(graph.x, f"{name}.x")
    check_edge_index(graph.edge_index, graph.x.size(0), f"{name}.edge_index")
    _check_label_dtype(graph.y, f"{name}.y")


def check_hetero_graph(graph: HeteroData, node_type: str, name: str = "data") -> None:
    """Raise unless a heterogeneous graph has finite features, edges between its nodes, and labels for one node type.

    Args:
        graph: The graph: x of each node type, edge_index of each relation, y and masks of `node_type`.
        node_type: The type of the classified nodes.
        name: Name of the graph in messages.
    """
    expect(isinstance(graph, HeteroData), name, "a torch_geometric.data.HeteroData", type(graph).__name__)
    expect(node_type in graph.node_types, "node_type", f"one of {', '.join(graph.node_types)}", node_type)
    for kind in graph.node_types:
        _check_features(graph[kind].get("x"), f"{name}[{kind!r}].x")
    for relation in graph.edge_types:
        edge_index, ends = graph[relation].get("edge_index"), f"{name}[{relation}].edge_index"
        sizes = [graph[kind].x.size(0) for kind in (relation[0], relation[2])]
        check_edge_index(edge_index, max(sizes), ends)
        for side, size, ids in zip(("sources", "destinations"), sizes, edge_index, strict=True):
            highest = int(ids.max()) if ids.numel() else -1
            expect(highest < size, ends, f"{side} in [0, {size})", highest)
    _check_label_dtype(graph[node_type].get("y"), f"{name}[{node_type!r}].y")


def _check_features(x: Any, name: str) -> None:
    dense = isinstance(x, Tensor) and x.layout == torch.strided and x.dim() == 2 and x.is_floating_point()
    expect(dense, name, "a dense tensor of floating-point features, [nodes, width]", _described(x))
    expect(bool(x.isfinite().all()), name, "finite", "NaN or infinite features")


def _check_label_dtype(y: Any, name: str) -> None:
    labels = isinstance(y, Tensor) and y.dim() == 1 and y.dtype == torch.int64
    expect(labels, name, "labels of dtype torch.int64, one-dimensional", _described(y))


def check_masks(graph: Any, name: str = "data") -> None:
    """Raise unless a graph has one label and three boolean mask values per node.

    There must be at least one training node. Integer masks are refused, because torch would read their 0 and 1 as node
    ids.
    """
    shape = (graph.x.size(0),)
    expect(tuple(graph.y.shape) == shape, f"{name}.y", f"{shape[0]} labels, one per node", graph.y.numel())
    for key in MASKS:
        mask = graph.get(key)
        fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and tuple(mask.shape) == shape
        expect(fits, f"{name}.{key}", f"a tensor of {shape[0]} booleans, one per node", _described(mask))
    expect(bool(graph.train_mask.any()), f"{name}.train_mask", "true at one node at least", "false at all nodes")


def check_node_labels(graph: Any, num_classes: int, name: str = "data") -> None:
    """Raise unless all labels are valid classes. Nodes outside all masks may have negative labels."""
    used = graph.train_mask | graph.val_mask | graph.test_mask
    _check_labels(graph.y[used], num_classes, f"{name}.y")
    highest = int(graph.y.max())
    expect(highest < num_classes, f"{name}.y", f"labels below num_classes = {num_classes}", highest)


def check_graph_labels(graphs: Sequence[Data], num_classes: int, name: str = "graphs") -> None:
    """Raise unless every graph has exactly one label, which is a valid class."""
    for position, graph in enumerate(graphs):
        expect(graph.y.numel() == 1, f"{name}[{position}].y", "one label", f"{graph.y.numel()} labels")
    _check_labels(torch.cat([graph.y for graph in graphs]), num_classes, f"{name}[...].y")


def check_truth(truth: GroundTruth, edge_index: Tensor, num_nodes: int) -> None:
    """Raise unless a ground truth fits a graph: targets are its nodes, and edges are its edges or self-loops.

    Args:
        truth: The ground truth.
        edge_index: Edges of the graph, [2, E].
        num_nodes: Number of nodes of the graph.
    """
    expect(isinstance(truth, GroundTruth), "truth", "an attree.data.GroundTruth", type(truth).__name__)
    highest = int(truth.targets.max()) if truth.num_targets else -1
    expect(highest < num_nodes, "truth.targets", f"node ids in [0, {num_nodes})", highest)
    check_edge_index(truth.edges, num_nodes, "truth.edges")
    source, destination = truth.edges.to(edge_index.device)
    keys = (source * num_nodes + destination)[source != destination]
    graph_keys = (edge_index[0] * num_nodes + edge_index[1]).unique()
    _, exists = find(graph_keys, keys)
    absent = keys[~exists][:1].tolist()
    examples = " and ".join(f"{key // num_nodes} -> {key % num_nodes}, which the graph lacks" for key in absent)
    expect(not absent, "truth.edges", "edges of the graph, or self-loops", examples)


def _check_labels(labels: Tensor, num_classes: int, name: str) -> None:
    if labels.numel() == 0:
        return
    low, high = (int(bound) for bound in labels.aminmax())
    expected = f"labels in 0 .. {num_classes - 1}"
    expect(low >= 0 and high < num_classes, name, expected, low if low < 0 else high)


def _described(value: object) -> str:
    """Return a short description of a value, for messages."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
    return "none" if value is None else type(value).__name__
