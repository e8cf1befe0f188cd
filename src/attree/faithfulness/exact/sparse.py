"""Products with sparse matrices, where they are faster than lists of entries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from attree.tensors.ragged import take_rows

SPARSE_SHARE = 20
"""Features of which fewer than one in this many is not 0 are multiplied as a sparse matrix."""


def compact_features(x: Tensor) -> Tensor:
    """Node features as a sparse matrix where few are not 0, as in bags of words: the first projection is then cheap.

    Half-precision features stay as they are, for which torch has no such product, and so do sparse ones.
    """
    x = x.detach()
    fits = _has_sparse(x.device) and x.dtype.itemsize >= 4 and x.layout == torch.strided and x.dim() == 2
    if fits and int(x.count_nonzero()) * SPARSE_SHARE < x.numel():
        with _no_beta_warning():
            return x.to_sparse_csr()
    return x


def weighted_sums(ptr: Tensor, row: Tensor, source: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Sum, for each row and head, the values of its sources by their weights: [rows, heads, channels].

    One head is one product of matrices; several are faster entry by entry.

    Args:
        ptr: Row j's entries are `ptr[j]:ptr[j + 1]`.
        row: The row of each entry.
        source: The node that each entry comes from.
        weights: The weight of each entry, [entries, heads].
        values: Values of all nodes, [nodes, heads, channels].
    """
    num_rows, (num_nodes, heads, channels) = ptr.numel() - 1, values.shape
    if heads == 1 and _has_sparse(values.device):
        with _no_beta_warning():
            matrix = torch.sparse_csr_tensor(
                ptr, source, weights.reshape(-1), (num_rows, num_nodes), check_invariants=False
            )
        return torch.sparse.mm(matrix, values.reshape(num_nodes, channels)).unsqueeze(1)
    entries = take_rows(values, source).mul_(weights.unsqueeze(-1))
    return values.new_zeros(num_rows, heads, channels).index_add_(0, row, entries)


def _has_sparse(device: torch.device) -> bool:
    return device.type in ("cpu", "cuda")


@contextmanager
def _no_beta_warning() -> Iterator[None]:
    """Torch announces once that compressed rows are in beta; what is used of them here has long been stable."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        yield
