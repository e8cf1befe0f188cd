"""Bring columns of all processes together, as tensors and one column at a time: in one process, or in all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import get_backend_config

from attree.evaluation.certainty import PairColumns

T = TypeVar("T")

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
"""Types of the columns that are sent; a process names the type of each by its place here."""


class Exchange:
    """Columns of the same length of all processes, joined in the order of their ranks.

    All processes must make it, and call each method, together.

    Args:
        length: Number of entries in this process.
        device: Device of the columns.
    """

    def __init__(self, length: int, device: torch.device) -> None:
        self.rank, self._size = dist.get_rank(), dist.get_world_size()
        self._device = device_of_messages(device)
        lengths = torch.zeros(self._size, dtype=torch.int64)
        lengths[self.rank] = length
        self._lengths: list[int] = self.summed(lengths).tolist()

    def shares(self, work: Sequence[T]) -> list[Sequence[T]]:
        """Return the share of each process of some work, of nearly equal lengths."""
        ends = [len(work) * rank // self._size for rank in range(self._size + 1)]
        return [work[begin:end] for begin, end in pairwise(ends)]

    def joined(self, column: Tensor, rank: int) -> Tensor | None:
        """Return a column of all processes in the process of a rank, and None in the others."""
        padded = self._padded(column)
        parts = [torch.empty_like(padded) for _ in self._lengths] if rank == self.rank else None
        dist.gather(padded, parts, dst=rank)
        return None if parts is None else self._cut(parts)

    def everywhere(self, column: Tensor) -> Tensor:
        """Return a column of all processes, in every process."""
        padded = self._padded(column)
        parts = [torch.empty_like(padded) for _ in self._lengths]
        dist.all_gather(parts, padded)
        return self._cut(parts)

    def summed(self, table: Tensor) -> Tensor:
        """Return the sum of a table over all processes, on the host."""
        table = table.to(self._device, copy=True)
        dist.all_reduce(table)
        return table.cpu()

    def _padded(self, column: Tensor) -> Tensor:
        """Return a column where messages are sent from, as long as the longest one."""
        column = column.detach().to(self._device)
        return torch.cat([column, column.new_zeros(max(self._lengths) - len(column))])

    def _cut(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part[:length] for part, length in zip(parts, self._lengths, strict=True)])


def gathered(columns: PairColumns | None) -> PairColumns | None:
    """Return the pairs of all processes in the first process, on the host, sorted by target; None in the others.

    All processes must call this together. Tensors are sent, one column of one process at a time: an object would be
    pickled, copied to the device whole, and received by every process.
    """
    if columns is None:
        return None
    sent: list[Tensor] = []
    columns.map(lambda column: sent.append(_sendable(column)) or column)  # type: ignore[func-returns-value]
    device = device_of_messages(columns.owner.device)
    header = torch.tensor([len(columns.owner), *(DTYPES.index(column.dtype) for column in sent)], device=device)
    headers = [torch.empty_like(header) for _ in range(dist.get_world_size())]
    dist.all_gather(headers, header)
    if dist.get_rank() > 0:
        for column in sent if len(columns.owner) else ():
            dist.send(column.to(device).contiguous(), dst=0)
        return None
    parts = [columns.on_cpu()]
    for rank, (length, *codes) in enumerate((header.tolist() for header in headers[1:]), start=1):
        received = iter([_received(rank, length, DTYPES[code], device) for code in codes])
        parts.append(columns.map(partial(_next_like, received)))
    return PairColumns.joined(parts)


def _sendable(column: Tensor) -> Tensor:
    """Return a column in a type that every backend can send: there are some that cannot send truth values."""
    column = column.detach()
    return column.to(torch.uint8) if column.dtype == torch.bool else column


def _received(rank: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Receive one column of another process, and move it to the host before the next one comes."""
    column = torch.empty(length, dtype=dtype, device=device)
    if length:
        dist.recv(column, src=rank)
    return column.cpu()


def _next_like(received: Iterator[Tensor], column: Tensor) -> Tensor:
    """Return the next received column, as truth values if this process's column holds such."""
    values = next(received)
    return values.bool() if column.dtype == torch.bool else values


def device_of_messages(device: torch.device) -> torch.device:
    """Return the device that messages are sent from: the host if a backend can, else that of the columns (NCCL)."""
    return torch.device("cpu") if "cpu:" in get_backend_config() else device
