"""Edge scores of many targets as one result, saved and read with checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.explain import Explanation, HeteroExplanation

from attree.attention.graph import Graph, Origin, Types
from attree.errors import ArgumentError, MissingDataError, expect, expect_int, expect_list, expect_path
from attree.io.files import read_npz, write_npz
from attree.tensors.arrays import are_pointers, find, pointers, row_of

if TYPE_CHECKING:
    import pandas as pd

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


def origin_arrays(graph: Graph) -> dict[str, np.ndarray]:
    """Return the arrays that say which part of a larger graph a graph is; none if it is whole."""
    if graph.origin is None:
        return {}
    origin = graph.origin
    return {
        "whole_nodes": origin.nodes.cpu().numpy(),
        "whole_edges": origin.edges.cpu().numpy(),
        "whole_size": np.array(origin.num_nodes),
    }


def read_origin(arrays: dict[str, np.ndarray], graph: Graph) -> None:
    """Set the larger graph that the graph in a file is a part of, if the file names one."""
    if "whole_size" not in arrays:
        return
    nodes, edges = (torch.from_numpy(arrays[name]) for name in ("whole_nodes", "whole_edges"))
    size = int(arrays["whole_size"])
    fits = nodes.shape == (graph.num_nodes,) and edges.shape == (graph.num_edges,)
    fits = fits and nodes.dtype == edges.dtype == torch.int64
    fits = fits and (nodes.numel() == 0 or 0 <= int(nodes.min()) <= int(nodes.max()) < size)
    _require(fits, "its nodes do not fit the larger graph")
    graph.origin = Origin(nodes, edges, size)


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
        read_origin(arrays, graph)
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


class TargetAttribution(NamedTuple):
    """Scores of one target: its id, the edges that carry a flow to it (ids in `graph.edge_index`), and their scores."""

    target: int
    edges: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Attribution:
    """Edge scores of several targets. Edges that carry no flow to a target are not listed and have score 0.

    Attributes:
        method: Name of the attribution method.
        graph: The graph; `edges` are positions in its `edge_index`, which has one self-loop per node.
        targets: Ids of the explained nodes, links, or graphs, [T].
        ptr: The edges and scores of target k are at `ptr[k]:ptr[k + 1]`, [T + 1].
        edges: Edge ids, [M].
        scores: Scores, [M].
        node_type: Node type of the targets in a heterogeneous graph; targets are numbered within it. Edge ids count the
            edges of all types; `graph.types` has their types.
    """

    method: str
    graph: Graph
    targets: Tensor
    ptr: Tensor
    edges: Tensor
    scores: Tensor
    node_type: str | None = None

    def __post_init__(self) -> None:
        bounds, shape = (self.targets.numel() + 1,), tuple(self.ptr.shape)
        expect(shape == bounds, "ptr", f"of shape {bounds}: one bound more than there are targets", shape)
        shape = tuple(self.scores.shape)
        expect(shape == self.edges.shape, "scores", f"of shape {tuple(self.edges.shape)}: one for each edge", shape)

    def __len__(self) -> int:
        return self.targets.numel()

    def __iter__(self) -> Iterator[TargetAttribution]:
        bounds = self.ptr.tolist()
        for position, target in enumerate(self.graph.whole_nodes(self.targets).tolist()):
            part = slice(bounds[position], bounds[position + 1])
            yield TargetAttribution(target, self.edges[part], self.scores[part])

    def __getitem__(self, target: int) -> TargetAttribution:
        """Return the scores of one target, by its id."""
        part = slice(*self.ptr[self._position(target) : self._position(target) + 2].tolist())
        return TargetAttribution(target, self.edges[part], self.scores[part])

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {target: position for position, target in enumerate(self.graph.whole_nodes(self.targets).tolist())}

    def _position(self, target: int) -> int:
        if expect_int(target, "target") not in self._positions:
            explained = ", ".join(str(node) for node in self.targets[:5].tolist()) + (", ..." if len(self) > 5 else "")
            raise ArgumentError(
                f"Expected argument `target` to be one of the {len(self)} explained ones ({explained}), but got "
                f"{target}."
            )
        return self._positions[target]

    def dense(self, target: int) -> Tensor:
        """Return one target's scores of all edges of `graph.edge_index`, [num_edges]; 0 for edges without a flow."""
        _, edges, scores = self[target]
        return scores.new_zeros(self.graph.num_edges).index_add_(0, edges, scores)

    def edge_mask(self, target: int) -> Any:
        """Return one target's scores of the given edges, [E], in the order of PyG's edge masks.

        Self-loops that layers added are dropped. Given self-loops have the score of their node's self-loop. For a
        heterogeneous graph, the result is a dict by edge type.
        """
        mask = self.graph.to_original(self.dense(target))
        return mask if self.graph.types is None else self.graph.types.split_edges(mask)

    def to_explanation(self, target: int, **attributes: Any) -> Explanation | HeteroExplanation:
        """Return one target's scores as a PyG `Explanation` with further attributes (`x`, `target`, ...).

        For a heterogeneous graph, the result is a `HeteroExplanation` with one mask per edge type.
        """
        if self.graph.types is not None:
            explanation = HeteroExplanation()
            for kind, mask in self.edge_mask(target).items():
                explanation[kind].edge_index = self.graph.typed_edges[kind]
                explanation[kind].edge_mask = mask
            for name, value in {"index": torch.tensor([target]), **attributes}.items():
                explanation[name] = value
            return explanation
        return Explanation(
            edge_index=self.graph.original_edge_index,
            edge_mask=self.edge_mask(target),
            index=torch.tensor([target]),
            **attributes,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return all scores as a table with the columns target, source, destination, score.

        For a heterogeneous graph, nodes are numbered within their types, given by the columns source_type, relation and
        target_type; the relation of a self-loop that a layer added is empty.
        """
        owners = self.graph.whole_nodes(self.targets)[row_of(self.ptr.diff())].cpu().numpy()
        columns = {"target": owners, **edge_columns(self.graph, self.edges), "score": self.scores.cpu().numpy()}
        import pandas as pd

        return pd.DataFrame(columns)

    def lists(self, owner: Tensor, edges: Tensor) -> bool:
        """Whether this result lists exactly these (target position, edge) pairs, in this order."""
        return torch.equal(self.edges, edges) and torch.equal(row_of(self.ptr.diff()), owner)

    def at(self, owner: Tensor, edges: Tensor) -> Tensor:
        """Return the scores of (target position, edge) pairs; 0 for edges that are not listed."""
        listed_keys = row_of(self.ptr.diff()) * self.graph.num_edges + self.edges
        keys = owner * self.graph.num_edges + edges
        order = listed_keys.argsort()
        place, is_listed = find(listed_keys[order], keys)
        scores = self.scores.new_zeros(keys.numel())
        scores[is_listed] = self.scores[order[place[is_listed]]]
        return scores

    def to(self, device: torch.device | str) -> Attribution:
        """Return the result on another device; the graph is moved too."""
        graph = self.graph
        if graph.device != torch.device(device):
            graph = Graph(graph.original_edge_index.to(device), graph.num_nodes, graph.types)
        targets, ptr, edges, scores = (
            tensor.to(device) for tensor in (self.targets, self.ptr, self.edges, self.scores)
        )
        return Attribution(self.method, graph, targets, ptr, edges, scores, self.node_type)

    @staticmethod
    def concat(parts: Sequence[Attribution]) -> Attribution:
        """Concatenate results of the same method and graph."""
        parts = expect_list(parts, "parts", Attribution, "results")
        expect(len(parts) > 0, "parts", "at least one result", "none")
        first = parts[0]
        for part in parts[1:]:
            expect(part.method == first.method, "parts", f"results of one method, {first.method}", part.method)
            graph, other = first.graph, part.graph
            same = other is graph or other.matches(graph.original_edge_index, graph.num_nodes)
            expect(same, "parts", "results on one graph", "results on several")
        sizes = torch.cat([part.ptr.diff() for part in parts])
        ptr = pointers(sizes)
        return Attribution(
            first.method,
            first.graph,
            torch.cat([part.targets for part in parts]),
            ptr,
            torch.cat([part.edges for part in parts]),
            torch.cat([part.scores for part in parts]),
            first.node_type,
        )

    def save(self, path: str | Path) -> Path:
        """Write a NumPy `.npz` archive of plain arrays (no pickle); an interrupted write leaves no file.

        Arrays: `format`, `method`, `num_nodes`, `edge_index` [2, E] (as given), `targets` [T], `ptr` [T + 1], `edges`
        [M] (positions in the edge list with self-loops: the given edges without self-loops in their order, then one
        self-loop per node), `scores` [M] (bfloat16 becomes float32). A heterogeneous graph is stored as the union of
        its types, with the arrays `node_types`, `node_counts`, `edge_types` [K, 3], `edge_counts` and `node_type` (of
        the targets). A part of a graph on disk has `whole_nodes` and `whole_edges`, the ids there.
        """
        # NumPy has no bfloat16.
        scores = self.scores.float() if self.scores.dtype == torch.bfloat16 else self.scores
        return write_npz(
            expect_path(path, "path"),
            format=np.array(FILE_FORMAT),
            method=np.array(self.method),
            num_nodes=np.array(self.graph.num_nodes),
            edge_index=self.graph.original_edge_index.cpu().numpy(),
            targets=self.targets.cpu().numpy(),
            ptr=self.ptr.cpu().numpy(),
            edges=self.edges.cpu().numpy(),
            scores=scores.cpu().numpy(),
            **({} if self.graph.types is None else typed_arrays(self.graph.types, self.node_type)),
            **origin_arrays(self.graph),
        )

    @classmethod
    def load(cls, path: str | Path, max_nodes: int | None = None) -> Attribution:
        """Read and check a file written by `save`; a damaged or forged file raises an `ArgumentError`.

        Args:
            path: The file.
            max_nodes: Maximum number of nodes, because each takes memory even without edges in the file. None accepts
                4 million plus one per byte of the file.
        """
        if max_nodes is not None:
            expect_int(max_nodes, "max_nodes")
        return cls(*read_attribution(expect_path(path, "path"), max_nodes))


def edge_columns(graph: Graph, edges: Tensor) -> dict[str, Any]:
    """Return the ends of edges as table columns: source and destination.

    For a heterogeneous graph, source_type, relation and target_type come first, and nodes are numbered within their
    types. The relation of a self-loop that a layer added is empty.

    Args:
        graph: The graph.
        edges: Positions in `graph.edge_index`.
    """
    ends, types = graph.whole_nodes(graph.edge_index[:, edges]), graph.types
    columns: dict[str, Any] = {}
    if types is not None:
        names, node_types = np.array([kind[1] for kind in types.edge_types] + [""]), np.array(types.node_types)
        source, destination = (node_types[types.type_of_nodes(side).cpu().numpy()] for side in ends)
        relation = names[types.type_of_edges(edges).cpu().numpy()]
        columns |= {"source_type": source, "relation": relation, "target_type": destination}
        ends = torch.stack([types.local(side) for side in ends])
    return columns | dict(zip(("source", "destination"), ends.cpu().numpy(), strict=True))
