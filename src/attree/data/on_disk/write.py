"""Write a graph that is in memory to a folder of `.npy` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.data.on_disk.graph import DESCRIPTION, OnDiskGraph, write_description
from attree.errors import ArgumentError, expect, expect_instance, expect_path
from attree.tensors.arrays import check_edge_index
from attree.tensors.ragged import group

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
