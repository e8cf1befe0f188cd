"""A graph in a folder of `.npy` files: written, read by memory map, and offered to PyG's loaders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, TensorAttr

from attree.data.on_disk.array_files import ArrayFile
from attree.errors import ArgumentError, MissingDataError, expect, expect_instance, expect_memory, expect_path
from attree.io.files import write_text
from attree.tensors.arrays import check_edge_index, group


class DiskFeatures(FeatureStore):
    """The attributes of the nodes of a graph on disk as PyG's `FeatureStore`; features are float32 at least.

    Args:
        graph: The graph.
        names: Names of the attributes; None for all.
    """

    def __init__(self, graph: OnDiskGraph, names: Sequence[str] | None = None) -> None:
        super().__init__()
        every = [name for name, of in graph.attributes.items() if of == "node"]
        # PyG's `__setattr__` would store a tensor.
        self.__dict__.update(graph=graph, names=every if names is None else list(names))

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(None, name) for name in self.names]

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        file, index = self.graph.file(str(attr.attr_name)), attr.index
        if index is None or isinstance(index, slice):
            index = torch.arange(self.graph.num_nodes)[index or slice(None)]
        index = torch.as_tensor(index)
        rows = file.take(index.nonzero().view(-1) if index.dtype == torch.bool else index)
        return rows.float() if rows.dtype == torch.float16 else rows

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return tuple(self.graph.array(str(attr.attr_name)).shape)

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> NoReturn:
        raise NotImplementedError("A graph on disk is read only: convert it again with other attributes.")

    def _remove_tensor(self, attr: TensorAttr) -> NoReturn:
        raise NotImplementedError("A graph on disk is read only: convert it again without the attribute.")


class DiskEdges(GraphStore):
    """The edges of a graph on disk as PyG's `GraphStore`: one edge type, in the layout CSC, as memory maps.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: OnDiskGraph) -> None:
        super().__init__()
        self.graph = graph

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        return [EdgeAttr(None, "csc", size=(self.graph.num_nodes, self.graph.num_nodes))]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.layout.value != "csc":
            return None
        return self.graph.file("indices").tensor.long(), self.graph.file("indptr").tensor

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> NoReturn:
        raise NotImplementedError("A graph on disk is read only: convert it again with other edges.")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise NotImplementedError("A graph on disk is read only.")


FORMAT = "attree-graph-1"
DESCRIPTION = "graph.json"

EDGE_ARRAYS = ("indices",)
MASKS = ("train_mask", "val_mask", "test_mask")

MEMORY = 4 * 2**30
"""Default bytes that a neighbourhood may take while a model runs on it."""


class OnDiskGraph:
    """A homogeneous graph in a folder, read by memory map: it may be much larger than memory.

    The folder has `indptr.npy` and `indices.npy` (the sources of the edges that enter each node, node by node),
    `self_loops.npy` (positions of self-loops among the edges), and an array for each attribute of nodes or edges: `x`
    (features, any floating-point type), `y` (labels), `train_mask`, `edge_attr`, ... `graph.json` says what is there.
    `attree convert` and `attree.data.on_disk.write_graph` make such folders.

    Args:
        folder: The folder.
        memory: Bytes that the neighbourhood of some targets may take while a model runs on it.

    Attributes:
        num_nodes: Number of nodes.
        num_edges: Number of edges.
        name: Name of the dataset.
        class_names: Names of the classes, or None.
    """

    def __init__(self, folder: str | Path, memory: float = MEMORY) -> None:
        expect_memory(memory)
        self.folder = expect_path(folder, "graph")
        self.memory = memory
        description = read_description(self.folder)
        self.num_nodes, self.num_edges = int(description["num_nodes"]), int(description["num_edges"])
        self.name: str = str(description.get("name") or self.folder.name)
        self.class_names: list[str] | None = description.get("class_names")
        self._files = {name: ArrayFile(self.folder / f"{name}.npy") for name in description["arrays"]}
        self._of = {name: about["of"] for name, about in description["arrays"].items()}
        for name, about in description["arrays"].items():
            file = self._files[name]
            stated = list(about["shape"]), about["dtype"], about["checksum"]
            there = list(file.array.shape), str(file.array.dtype), file.checksum()
            if stated != there:
                raise MissingDataError(
                    f"Expected {file.path} to be the file that {DESCRIPTION} describes ({_words(*stated)}), but it is "
                    f"another one ({_words(*there)}). Convert the graph again."
                )
        self._check_shapes()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, {self.num_nodes:,} nodes, {self.num_edges:,} edges)"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.memory)

    def _check_shapes(self) -> None:
        """Raise unless the arrays have as many rows as the graph has nodes or edges."""
        rows = {"node": self.num_nodes, "edge": self.num_edges, "pointer": self.num_nodes + 1}
        for name, file in self._files.items():
            expected = rows.get(self._of[name], len(file))
            if len(file) != expected:
                raise MissingDataError(f"Expected {file.path} to have {expected:,} rows, but it has {len(file):,}.")
        ends = self._files["indptr"].array[[0, -1]].tolist()
        if ends != [0, self.num_edges]:
            raise MissingDataError(f"Expected {self.folder / 'indptr.npy'} to go from 0 to {self.num_edges:,}: {ends}.")

    def __contains__(self, name: object) -> bool:
        return name in self._files and self._of[name] in ("node", "edge") and name not in EDGE_ARRAYS

    @property
    def attributes(self) -> dict[str, str]:
        """Names of the arrays that have one row per node or edge, each with `node` or `edge`."""
        return {name: self._of[name] for name in self._files if name in self}

    @property
    def num_features(self) -> int:
        """Width of the node features."""
        return int(np.prod(self.array("x").shape[1:]))

    @property
    def fingerprint(self) -> str:
        """A hash of the description, which has a checksum of every array."""
        return hashlib.blake2b((self.folder / DESCRIPTION).read_bytes(), digest_size=16).hexdigest()

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(file.array.nbytes for file in self._files.values())

    def array(self, name: str) -> np.ndarray:
        """Return an array of the folder as a memory map that cannot be written to.

        Args:
            name: `indptr`, `indices`, `self_loops`, or an attribute.
        """
        return self.file(name).array

    def file(self, name: str) -> ArrayFile:
        """Return the file of an array."""
        if name not in self._files:
            raise ArgumentError(
                f"Expected {self.folder} to have the array `{name}`, but it has {', '.join(self._files)}."
            )
        return self._files[name]

    def degrees(self, nodes: np.ndarray) -> np.ndarray:
        """Return the number of edges that enter each of some nodes (ascending ids); no edge is read."""
        return self._bounds(nodes)[1]

    def _bounds(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the position of the first edge that enters each node, and the number of these edges."""
        file = self.file("indptr")
        begin = file.rows(nodes)
        return begin, file.rows(nodes + 1) - begin

    def in_edges(self, nodes: Any) -> tuple[Tensor, Tensor]:
        """Return the edges that enter some nodes, node by node.

        Args:
            nodes: Ids of nodes, ascending and distinct.

        Returns:
            The edges, [2, edges]: sources and destinations. And their positions among the edges of the folder.
        """
        ids = self.ids(nodes)
        sources, sizes, places = self.edges_into(ids)
        return torch.from_numpy(np.stack([sources, np.repeat(ids, sizes)])), torch.from_numpy(places)

    def edges_into(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sources of the edges that enter some nodes, their number for each node, and their positions."""
        begin, sizes = self._bounds(nodes)
        file = self.file("indices")
        places = np.arange(0) if not sizes.size else np.arange(int(sizes.sum()))
        places = places + np.repeat(begin - (sizes.cumsum() - sizes), sizes)
        return file.rows(places, np.int64), sizes, places

    def features(self, nodes: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the features of some nodes.

        Args:
            nodes: Ids of nodes, ascending.
            dtype: Type of the result. Files often hold a narrower type than the model runs in.
        """
        return self.rows("x", nodes, dtype)

    def rows(self, name: str, ids: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Return the rows of an attribute for some nodes or edges.

        Args:
            name: Name of the attribute.
            ids: Ids of nodes, or positions of edges, ascending.
            dtype: Type of the result; None for that of the file.
        """
        expect(name in self, "name", f"an attribute of the graph: {', '.join(self.attributes)}", name)
        ids = self.ids(ids, self._of[name])
        as_numpy = None if dtype is None else torch.zeros((), dtype=dtype).numpy().dtype
        return torch.from_numpy(self.file(name).rows(ids, as_numpy))

    def ids(self, nodes: Any, of: str = "node") -> np.ndarray:
        """Check the ids of nodes or edges, and return them as an array."""
        count = self.num_edges if of == "edge" else self.num_nodes
        ids = np.asarray(nodes.detach().cpu() if isinstance(nodes, Tensor) else nodes)
        expect(ids.size == 0 or ids.dtype.kind in "iu", "nodes", "integers", ids.dtype)
        ids = ids.reshape(-1).astype(np.int64, copy=False)
        fits = ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < count)
        expect(fits, "nodes", f"ids in [0, {count})", "others")
        expect(bool((ids[1:] >= ids[:-1]).all()), "nodes", "ascending", "another order")
        return ids

    def mask(self, name: str) -> Tensor:
        """Return the ids of the nodes of a mask, such as `train_mask`."""
        file, node_ids, begin = self.file(name), [], 0
        for piece in file.pieces(2**24):
            node_ids.append(np.flatnonzero(piece) + begin)
            begin += len(piece)
        return torch.from_numpy(np.concatenate([*node_ids, np.arange(0)]))

    def stores(self) -> tuple[FeatureStore, GraphStore]:
        """Return the graph as PyG's loaders take it: `NodeLoader(graph.stores(), ...)`."""
        return DiskFeatures(self), DiskEdges(self)

    def to_data(self) -> Data:
        """Read the whole graph into memory as a PyG `Data`, with edges in the order of the folder."""
        nodes = np.arange(self.num_nodes)
        sources, sizes, _ = self.edges_into(nodes)
        data = Data(edge_index=torch.from_numpy(np.stack([sources, np.repeat(nodes, sizes)])))
        for name in self.attributes:
            values = torch.from_numpy(np.array(self.array(name)))
            data[name] = values.float() if values.dtype == torch.float16 else values
        data.num_nodes = self.num_nodes
        if self.class_names is not None:
            data.class_names = list(self.class_names)
        return data

    def check(self) -> None:
        """Read all edges, and raise unless the pointers ascend and every source is a node."""
        last = 0
        for piece in self.file("indptr").pieces(2**22):
            if piece.size and (int(piece[0]) < last or bool((np.diff(piece) < 0).any())):
                raise MissingDataError(f"Expected {self.folder / 'indptr.npy'} to ascend, but it does not.")
            last = int(piece[-1]) if piece.size else last
        for piece in self.file("indices").pieces(2**22):
            if piece.size and (int(piece.min()) < 0 or int(piece.max()) >= self.num_nodes):
                raise MissingDataError(
                    f"Expected {self.folder / 'indices.npy'} to hold nodes in [0, {self.num_nodes:,}), but got others."
                )


def _words(shape: Sequence[int], dtype: str, checksum: str) -> str:
    return f"{dtype} {tuple(shape)}, checksum {checksum}"


def read_description(folder: Path) -> dict[str, Any]:
    """Read `graph.json`; raise unless the folder holds a whole graph of a format that is known."""
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_bytes())
        version = description["format"]
        if version == FORMAT:
            names = set(description["arrays"])
            missing = {"indptr", "indices", "self_loops"} - names
            if missing or not all(
                {"shape", "dtype", "of", "checksum"} <= set(fields) for fields in description["arrays"].values()
            ):
                raise ValueError("it does not describe all arrays")
            _ = int(description["num_nodes"]), int(description["num_edges"])
    except FileNotFoundError as error:
        raise MissingDataError(
            f"Expected {folder} to hold a graph that `attree convert` wrote, but it has no {DESCRIPTION}"
            + (": its conversion was stopped. Run the same `attree convert` again." if _is_begun(folder) else ".")
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MissingDataError(f"Expected {path} to describe a graph, but it does not ({error}).") from error
    if version != FORMAT:
        raise MissingDataError(f"Expected {path} to have the format {FORMAT}, but it has {version!r}.")
    return dict(description)


def _is_begun(folder: Path) -> bool:
    return (folder / ".unfinished").exists()


def write_description(folder: Path, num_nodes: int, arrays: Mapping[str, str], **about: Any) -> None:
    """Write `graph.json` for the arrays of a folder, last: a folder without it is unfinished.

    Args:
        folder: The folder.
        num_nodes: Number of nodes.
        arrays: What each array has one row for: `node`, `edge`, `pointer` or `list`.
        **about: Further facts: `name`, `class_names`, `source`.
    """
    described = {}
    for name, of in arrays.items():
        file = ArrayFile(folder / f"{name}.npy")
        described[name] = {
            "of": of,
            "dtype": str(file.array.dtype),
            "shape": list(file.array.shape),
            "checksum": file.checksum(),
        }
    edges = described["indices"]["shape"][0]
    content = {"format": FORMAT, "num_nodes": num_nodes, "num_edges": edges, **about, "arrays": described}
    write_text(folder / DESCRIPTION, json.dumps(content, indent=2) + "\n")


RESERVED = ("indptr", "indices", "self_loops", "edge_index", "num_nodes")


def write_graph(data: Data, folder: str | Path, name: str | None = None, half: bool = False) -> OnDiskGraph:
    """Write a PyG graph to a folder, and return it as a graph on disk.

    The edges that enter a node keep their order, so scores and effects are the same numbers on disk and in memory.

    Args:
        data: The graph: `edge_index`, and attributes with one row per node or edge.
        folder: The folder, which must be new or empty.
        name: Name of the dataset; None takes that of the folder.
        half: Write features as float16, which halves the disk they take, and loses digits.

    >>> import tempfile
    >>> edges = torch.tensor([[2, 0, 1], [1, 2, 1]])
    >>> folder = tempfile.mkdtemp()
    >>> graph = write_graph(Data(x=torch.eye(3), edge_index=edges), folder)
    >>> graph.in_edges([1, 2])[0].tolist()
    [[2, 1, 0], [1, 1, 2]]
    """
    expect_instance(data, "data", Data)
    folder = expect_path(folder, "folder")
    expect(isinstance(data.get("edge_index"), Tensor), "data", "a graph with `edge_index`", "one without")
    count = int(data.num_nodes or 0)
    check_edge_index(data.edge_index, count)
    if folder.exists() and any(folder.iterdir()):
        raise ArgumentError(f"Expected {folder} to be a new or an empty folder, but it holds {DESCRIPTION} or others.")
    folder.mkdir(parents=True, exist_ok=True)
    rows = group(data.edge_index[1].cpu(), count)
    arrays: dict[str, tuple[str, Any]] = {
        "indptr": ("pointer", rows.ptr),
        "indices": ("edge", data.edge_index[0].cpu()[rows.items]),
    }
    entered = data.edge_index[1].cpu()[rows.items]
    arrays["self_loops"] = "list", (arrays["indices"][1] == entered).nonzero().view(-1)
    for key, (of, values) in attributes(data).items():
        values = values.detach().cpu()
        values = values[rows.items] if of == "edge" else values
        arrays[key] = of, values.half() if half and key == "x" and values.is_floating_point() else values
    for key, (_, values) in arrays.items():
        np.save(folder / f"{key}.npy", np.ascontiguousarray(values.numpy()))
    about = {"class_names": list(data.class_names)} if data.get("class_names") is not None else {}
    write_description(folder, count, {key: of for key, (of, _) in arrays.items()}, name=name or folder.name, **about)
    return OnDiskGraph(folder)


def attributes(data: Data) -> dict[str, tuple[str, Tensor]]:
    """Return the attributes of a graph that have one row per node or per edge, each with `node` or `edge`."""
    attributes = {}
    for key in sorted(data.keys()):
        values = data[key]
        if key in RESERVED or not isinstance(values, Tensor) or values.layout != torch.strided or values.dim() == 0:
            continue
        if values.dtype in (torch.bfloat16, torch.complex64, torch.complex128):
            raise ArgumentError(
                f"Expected argument `data.{key}` to be of a type that NumPy has, but got {values.dtype}."
            )
        if data.is_node_attr(key):
            attributes[key] = (
                "node",
                values.view(-1) if key == "y" and values.dim() == 2 and values.shape[1] == 1 else values,
            )
        elif data.is_edge_attr(key):
            attributes[key] = "edge", values
    return attributes
