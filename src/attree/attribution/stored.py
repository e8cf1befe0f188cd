"""Read saved attributions: all arrays are checked against each other and the graph before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attree.attention.graph import Graph, Types
from attree.errors import ArgumentError, MissingDataError
from attree.io.files import read_npz
from attree.tensors.ragged import are_pointers, row_of

FILE_FORMAT = "attree-attribution-1"

FREE_NODES = 2**22
"""Number of nodes that a file may have in addition to one per byte of the file.

Nodes without edges take memory but no room in a file, so a forged number could exhaust the memory. An edge takes 16
bytes. So the limit only affects graphs of more than four million nodes with fewer than one edge per 16 nodes.
"""

INTEGERS = (np.dtype(np.int64),)
NUMBERS = tuple(np.dtype(kind) for kind in (np.float16, np.float32, np.float64))
DIMENSIONS = {
    "edge_index": (INTEGERS, 2),
    "targets": (INTEGERS, 1),
    "ptr": (INTEGERS, 1),
    "edges": (INTEGERS, 1),
    "scores": (NUMBERS, 1),
}
TYPED = {"node_types": ("U", 1), "node_counts": ("iu", 1), "edge_types": ("U", 2), "edge_counts": ("iu", 1)}
TYPED |= {"node_type": ("U", 0)}
"""Arrays of files of heterogeneous graphs: kinds of their dtypes, and numbers of dimensions."""


class StoredAttribution(NamedTuple):
    """Contents of a file, in the order of the fields of `Attribution`."""

    method: str
    graph: Graph
    targets: Tensor
    ptr: Tensor
    edges: Tensor
    scores: Tensor
    node_type: str | None = None


def typed_arrays(types: Types, node_type: str | None) -> dict[str, np.ndarray]:
    """Return the arrays that describe the types of a heterogeneous graph."""
    return {
        "node_types": np.array(types.node_types),
        "node_counts": np.diff(types.node_ptr),
        "edge_types": np.array(types.edge_types).reshape(-1, 3),
        "edge_counts": np.diff(types.edge_ptr),
        "node_type": np.array(node_type or ""),
    }


def read_types(arrays: dict[str, np.ndarray], num_nodes: int) -> tuple[Types | None, str | None]:
    """Return the types in a file, checked against its graph; None if it has none."""
    if "node_types" not in arrays:
        return None, None
    absent = [name for name in TYPED if name not in arrays]
    _require(not absent, f"it lacks the arrays {', '.join(absent)}")
    for name, (kind, dimensions) in TYPED.items():
        array = arrays[name]
        fits = array.dtype.kind in kind and array.ndim == dimensions
        _require(fits, f"its array `{name}` is of {array.dtype} and shape {array.shape}")
    nodes, edges = arrays["node_types"].tolist(), [tuple(kind) for kind in arrays["edge_types"].tolist()]
    counts, sizes = arrays["node_counts"].tolist(), arrays["edge_counts"].tolist()
    types_fit = len(set(nodes)) == len(counts) and len(set(edges)) == len(sizes) and min([*counts, *sizes, 0]) == 0
    types_fit = types_fit and all(len(kind) == 3 and {kind[0], kind[2]} <= set(nodes) for kind in edges)
    types_fit = types_fit and sum(counts) == num_nodes and sum(sizes) == arrays["edge_index"].shape[1]
    node_type = str(arrays["node_type"])
    _require(types_fit and node_type in ("", *nodes), "its types do not fit its graph")
    types = Types.of(dict(zip(nodes, counts, strict=True)), dict(zip(edges, sizes, strict=True)))
    edge_index = torch.from_numpy(arrays["edge_index"])
    for edge_type, type_edges in types.split_edges(edge_index).items():
        for node_kind, ids in ((edge_type[0], type_edges[0]), (edge_type[2], type_edges[1])):
            side = types.nodes(node_kind)
            _require(bool(((ids >= side.start) & (ids < side.stop)).all()), "its edges do not fit their types")
    return types, node_type or None


def read_attribution(path: Path, max_nodes: int | None = None) -> StoredAttribution:
    """Read a file written by `Attribution.save`; see `Attribution.load`."""
    if not path.is_file():
        raise MissingDataError(f"Expected argument `path` to be a saved attribution, but got {str(path)!r}, no file.")
    arrays = read_npz(path)
    try:
        _check_kinds(arrays)
        num_nodes = int(arrays["num_nodes"])
        limit = FREE_NODES + path.stat().st_size if max_nodes is None else max_nodes
        _require(num_nodes <= limit, f"it claims {num_nodes:,} nodes; pass `max_nodes` to read more than {limit:,}")
        types, node_type = read_types(arrays, num_nodes)
        graph = Graph(torch.from_numpy(arrays["edge_index"]), num_nodes, types)
        targets, ptr, edges, scores = (torch.from_numpy(arrays[name]) for name in ("targets", "ptr", "edges", "scores"))
        _check_values(graph, targets, ptr, edges, scores)
    except ArgumentError as error:
        message = f"Expected argument `path` to be a file of format {FILE_FORMAT}, but got {str(path)!r}: {error}"
        raise ArgumentError(message) from error
    return StoredAttribution(str(arrays["method"]), graph, targets, ptr, edges, scores, node_type)


def _check_kinds(arrays: dict[str, np.ndarray]) -> None:
    """Raise unless all arrays exist and have the right dtypes and dimensions."""
    file_format = arrays.get("format")
    is_format = (
        file_format is not None
        and file_format.shape == ()
        and file_format.dtype.kind == "U"
        and str(file_format) == FILE_FORMAT
    )
    _require(is_format, "its array `format` does not say so")
    absent = [name for name in ("method", "num_nodes", *DIMENSIONS) if name not in arrays]
    _require(not absent, f"it lacks the arrays {', '.join(absent)}")
    method, num_nodes = arrays["method"], arrays["num_nodes"]
    _require(method.shape == () and method.dtype.kind == "U", "its array `method` is no text")
    _require(num_nodes.shape == () and num_nodes.dtype.kind in "iu", "its array `num_nodes` is no integer")
    for name, (dtypes, dimensions) in DIMENSIONS.items():
        array = arrays[name]
        fits = array.dtype in dtypes and array.ndim == dimensions
        _require(fits, f"its array `{name}` is of {array.dtype} and shape {array.shape}")


def _check_values(graph: Graph, targets: Tensor, ptr: Tensor, edges: Tensor, scores: Tensor) -> None:
    """Raise unless the arrays fit each other and the graph."""
    # Graphs are numbered by their positions in a dataset, which may exceed the number of nodes in this file.
    distinct = targets.unique()
    are_ids = distinct.numel() == targets.numel() and bool((distinct >= 0).all())
    _require(are_ids, "its `targets` are not all different ids >= 0")
    within = bool(((edges >= 0) & (edges < graph.num_edges)).all())
    _require(within, f"its `edges` are not all in [0, {graph.num_edges})")
    _require(scores.shape == edges.shape, f"it has {scores.numel()} `scores` of {edges.numel()} `edges`")
    rows, items = targets.numel(), edges.numel()
    _require(are_pointers(ptr, rows, items), f"its `ptr` does not cut {items} edges into {rows} targets")
    key = row_of(ptr.diff()) * graph.num_edges + edges
    if not bool((key.diff() > 0).all()):  # skip the slow check for ascending edges, which most methods list
        _require(key.unique().numel() == items, "it scores an edge twice for one target")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ArgumentError(f"{otherwise}.")
