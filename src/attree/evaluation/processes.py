"""Bring the columns of all processes together in the first one, as tensors and one column at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import get_backend_config

from attree.evaluation.certainty import PairColumns

T = TypeVar("T")

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
"""Types of the columns that are sent; a process names the type of each by its place here."""


def computed_once(compute: Callable[[], T]) -> T:
    """Return what the first process computes, in all processes. All must call this together, for a small result."""
    box = [compute() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    result: T = box[0]  # type: ignore[assignment]
    return result


def gathered(columns: PairColumns | None) -> PairColumns | None:
    """Return the pairs of all processes in the first process, on the host, sorted by target; None in the others.

    All processes must call this together. Tensors are sent, one column of one process at a time: an object would be
    pickled, copied to the device whole, and received by every process.
    """
    if columns is None:
        return None
    sent: list[Tensor] = []
    columns.map(lambda column: sent.append(_sendable(column)) or column)  # type: ignore[func-returns-value]
    device = _device_of_messages(columns)
    header = torch.tensor([len(columns.owner), *(DTYPES.index(column.dtype) for column in sent)], device=device)
    headers = [torch.empty_like(header) for _ in range(dist.get_world_size())]
    dist.all_gather(headers, header)
    if dist.get_rank() > 0:
        for column in sent if len(columns.owner) else ():
            dist.send(column.to(device).contiguous(), dst=0)
        return None
    parts = [columns.on_cpu()]
    for rank, (length, *codes) in enumerate((one.tolist() for one in headers[1:]), start=1):
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


def _device_of_messages(columns: PairColumns) -> torch.device:
    """Return the device that messages are sent from: the host if a backend can, else that of the columns (NCCL)."""
    if "cpu:" in get_backend_config():
        return torch.device("cpu")
    return next(iter(columns.scores.values())).device if columns.scores else columns.owner.device
