"""PyG's interfaces around a graph on disk, for loaders and code that read a `FeatureStore` and a `GraphStore`."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr

from attree.data.on_disk.graph import OnDiskGraph


class DiskFeatures(FeatureStore):
    """The attributes of the nodes of a graph on disk as PyG's `FeatureStore`; features are float32 at least.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: OnDiskGraph) -> None:
        super().__init__()
        self.__dict__["graph"] = graph  # PyG's `__setattr__` would store a tensor

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(None, name) for name, of in self.graph.attributes.items() if of == "node"]

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        graph: OnDiskGraph = self.graph
        name, index = str(attr.attr_name), attr.index
        every = index is None or isinstance(index, slice)
        ids = np.arange(graph.num_nodes)[index or slice(None)] if every else np.asarray(index)
        ids = np.flatnonzero(ids) if ids.dtype == bool else ids
        half = graph.array(name).dtype == np.float16
        distinct, place = np.unique(ids, return_inverse=True)
        return graph.rows(name, distinct, torch.float32 if half else None)[torch.from_numpy(place.reshape(-1))]

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
        return mapped(self.graph.array("indices")).long(), mapped(self.graph.array("indptr"))

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> NoReturn:
        raise NotImplementedError("A graph on disk is read only: convert it again with other edges.")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise NotImplementedError("A graph on disk is read only.")


def mapped(array: np.ndarray) -> Tensor:
    """Return a memory map as a tensor, which must not be written to; nothing is read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
