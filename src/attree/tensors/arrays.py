"""Types of NumPy arrays, and the check of an `edge_index` that a user passes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attree.errors import ArgumentError, expect, expect_int

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


EDGES_OF_ADJACENCY = "`torch_geometric.utils.to_edge_index(adj_t)[0].flip(0)`"
"""The edges of a transposed adjacency matrix, as PyG's layers read it."""


def is_sparse(value: object) -> bool:
    """Whether a value is a sparse matrix: of PyTorch, or of torch_sparse."""
    return (isinstance(value, Tensor) and value.layout != torch.strided) or type(value).__name__ == "SparseTensor"


def check_edge_index(edge_index: object, num_nodes: int, name: str = "edge_index") -> None:
    """Raise unless `edge_index` is a [2, E] tensor of node ids in [0, num_nodes).

    Args:
        edge_index: The value to check.
        num_nodes: Number of nodes.
        name: What to call the value in a message.
    """
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        kind = f"{edge_index.layout} tensor" if isinstance(edge_index, Tensor) else type(edge_index).__name__
        way_out = f": {EDGES_OF_ADJACENCY} are its edges" if is_sparse(edge_index) else ""
        raise ArgumentError(
            f"Expected argument `{name}` to be a dense tensor of node ids, not a sparse matrix, but got "
            f"{kind!r}{way_out}."
        )
    expect_int(num_nodes, "num_nodes")
    fits = edge_index.dim() == 2 and edge_index.shape[0] == 2
    expect(fits, name, "of shape [2, num_edges]", tuple(edge_index.shape))
    expect(edge_index.dtype == torch.int64, name, "of dtype torch.int64", edge_index.dtype)
    if edge_index.numel():
        low, high = (int(bound) for bound in edge_index.aminmax())
        expect(low >= 0 and high < num_nodes, name, f"node ids in [0, {num_nodes})", f"[{low}, {high}]")
