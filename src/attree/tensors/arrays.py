"""Types of NumPy arrays, and the check of an `edge_index` that a user passes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attree.errors import expect, expect_int

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def check_edge_index(edge_index: object, num_nodes: int, name: str = "edge_index") -> None:
    """Raise unless `edge_index` is a [2, E] tensor of node ids in [0, num_nodes).

    Args:
        edge_index: The value to check.
        num_nodes: Number of nodes.
        name: What to call the value in a message.
    """
    dense = isinstance(edge_index, Tensor) and edge_index.layout == torch.strided
    expect(dense, name, "a dense tensor of node ids, not a sparse matrix", type(edge_index).__name__)
    assert isinstance(edge_index, Tensor)
    expect_int(num_nodes, "num_nodes")
    fits = edge_index.dim() == 2 and edge_index.shape[0] == 2
    expect(fits, name, "of shape [2, num_edges]", tuple(edge_index.shape))
    expect(edge_index.dtype == torch.int64, name, "of dtype torch.int64", edge_index.dtype)
    if edge_index.numel():
        low, high = (int(bound) for bound in edge_index.aminmax())
        expect(low >= 0 and high < num_nodes, name, f"node ids in [0, {num_nodes})", f"[{low}, {high}]")
