"""Check graphs before training, and refuse values that torch would silently misread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from attree.data.ground_truth import GroundTruth
from attree.errors import expect
from attree.tensors.arrays import check_edge_index
from attree.tensors.ragged import find

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
