"""Ragged arrays, types of NumPy arrays, and the check of an `edge_index`.

Examples: the edges that enter each node, the nodes of each neighbourhood, the scores of each target. `ptr` always has
one entry more than there are rows. Row k is `ptr[k]:ptr[k + 1]`, as in the CSR format.
"""

from __future__ import annotations

from typing import NamedTuple

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


def is_same_view(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors are the same view of the same memory.

    >>> import torch
    >>> x = torch.zeros(4)
    >>> is_same_view(x, x.view(4)), is_same_view(x, x[:2]), is_same_view(x, x.clone())
    (True, False, False)
    """
    if left is right:
        return True
    return (left.data_ptr(), left.shape, left.stride()) == (right.data_ptr(), right.shape, right.stride())


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


class Rows(NamedTuple):
    """Items grouped into rows: row `j` is `items[ptr[j]:ptr[j + 1]]`, in ascending order.

    Attributes:
        ptr: Start of each row, and the total number of items, [rows + 1].
        items: The items (for example edge ids), row by row.
    """

    ptr: Tensor
    items: Tensor

    @property
    def sizes(self) -> Tensor:
        """Number of items in each row."""
        return self.ptr.diff()


def pointers(sizes: Tensor) -> Tensor:
    """Return the start of each row, and the total at the end, from the sizes of the rows.

    >>> pointers(torch.tensor([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    ptr = sizes.new_zeros(sizes.numel() + 1)
    torch.cumsum(sizes, dim=0, out=ptr[1:])
    return ptr


def are_pointers(ptr: Tensor, num_rows: int, num_items: int) -> bool:
    """Whether `ptr` is valid: `num_rows` + 1 integers that start at 0, never decrease and end at `num_items`.

    >>> are_pointers(torch.tensor([0, 2, 2, 3]), 3, 3), are_pointers(torch.tensor([0, 3, 2, 3]), 3, 3)
    (True, False)
    """
    if ptr.shape != (num_rows + 1,) or ptr.dtype != torch.int64:
        return False
    # Check the bounds first: differences of very large numbers overflow.
    within = bool(((ptr >= 0) & (ptr <= num_items)).all())
    return within and int(ptr[0]) == 0 and int(ptr[-1]) == num_items and bool((ptr.diff() >= 0).all())


def row_of(sizes: Tensor) -> Tensor:
    """Return the row of each item from the sizes of the rows; equals `torch.repeat_interleave(sizes)`.

    `repeat_interleave` wakes all threads, which is slow for small inputs. Counting the row ends up to each item is not.

    >>> row_of(torch.tensor([2, 0, 1])).tolist()
    [0, 0, 2]
    """
    end = sizes.cumsum(0)
    total = int(end[-1]) if end.numel() else 0
    ends = sizes.new_zeros(total + 1).index_add_(0, end, torch.ones_like(end))
    return ends[:total].cumsum(0)


def group(row: Tensor, num_rows: int) -> Rows:
    """Group the items 0, 1, 2, ... by their rows.

    >>> rows = group(torch.tensor([2, 0, 2]), num_rows=3)
    >>> rows.ptr.tolist(), rows.items.tolist()
    ([0, 1, 1, 3], [1, 0, 2])
    """
    return Rows(pointers(row.bincount(minlength=num_rows)), row.argsort(stable=True))


def expand(ptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """List the items of several rows one after the other.

    Args:
        ptr: Start of each row.
        rows: The rows to list; a row may occur more than once.

    Returns:
        For every listed item, the position of its row in `rows`, and its position among all items.

    >>> owner, place = expand(torch.tensor([0, 2, 3]), torch.tensor([1, 0]))
    >>> owner.tolist(), place.tolist()
    ([0, 1, 1], [2, 0, 1])
    """
    start = ptr.index_select(0, rows)
    size = ptr.index_select(0, rows + 1) - start
    owner = row_of(size)
    begin = size.cumsum(0) - size
    place = (start - begin).index_select(0, owner).add_(torch.arange(owner.numel(), device=rows.device))
    return owner, place


def find(ascending: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each key among ascending keys, and whether it is one of them.

    >>> place, known = find(torch.tensor([1, 4]), torch.tensor([4, 5]))
    >>> place.tolist(), known.tolist()
    ([1, 1], [True, False])
    """
    if ascending.numel() == 0:
        return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
    if torch.equal(ascending, keys):  # all keys in their order: no search needed
        return torch.arange(keys.numel(), device=keys.device), torch.ones_like(keys, dtype=torch.bool)
    place = torch.searchsorted(ascending, keys.contiguous()).clamp_(max=ascending.numel() - 1)
    return place, ascending[place] == keys


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Return `values[rows]`, computed in the way that is fastest on a CPU for any row width."""
    if values.dim() > 1 and values.numel() == values.shape[0]:
        return values.reshape(-1).index_select(0, rows).view(-1, *values.shape[1:])
    return values.index_select(0, rows)
