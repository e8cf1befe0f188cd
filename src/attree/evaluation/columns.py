"""Columns with one entry per (target, edge) pair, and how several processes bring theirs together.

Columns are sent as tensors, one at a time: an object would be pickled, copied to the device whole, and received by
every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import get_backend_config

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)
"""Types of the columns that are sent; processes name the type of each by its place here."""


@dataclass(frozen=True)
class PairColumns:
    """Columns with one entry per (target, edge) pair.

    Attributes:
        owner: Position of each pair's target among all targets.
        scores: Each method's score of every pair.
        deltas: By protocol: dPC, dNE and whether the class changed. Empty in a comparison with ground truth.
        labels: Whether each pair's edge is true, in a comparison with ground truth; else None.
    """

    owner: Tensor
    scores: Mapping[str, Tensor]
    deltas: Mapping[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    labels: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> PairColumns:
        """Return the columns with a function applied to each of them."""
        return PairColumns(
            function(self.owner),
            {name: function(values) for name, values in self.scores.items()},
            {name: (function(pc), function(ne), function(changed)) for name, (pc, ne, changed) in self.deltas.items()},
            None if self.labels is None else function(self.labels),
        )

    def at(self, positions: Tensor) -> PairColumns:
        """Return the pairs at some positions, in the given order."""
        return self.map(lambda column: column[positions])

    def on_cpu(self) -> PairColumns:
        """Return the columns as tensors on the CPU, without gradients."""
        return self.map(lambda column: column.detach().cpu())


class Exchange:
    """Joins columns of the same length of all processes, in the order of their ranks.

    All processes must make it, and call each method, together.

    Args:
        length: Number of entries in this process.
        device: Device of the columns.
        together: Whether there are other processes; otherwise, columns stay as they are.
    """

    def __init__(self, length: int, device: torch.device, together: bool = True) -> None:
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        self._device = device_of_messages(device) if together else device
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = length
        ends: list[int] = self.summed(lengths).cumsum(0).tolist()
        self._parts = [slice(begin, end) for begin, end in pairwise([0, *ends])]

    def joined(self, column: Tensor, rank: int) -> Tensor:
        """Return a column of all processes in the process of a rank, and an empty one in the others."""
        if self.size == 1:
            return column
        sent = self._sent(column)
        if rank != self.rank:
            if len(sent):
                dist.send(sent, dst=rank)
            return column[:0]
        whole = self._whole(sent)
        for sender, part in enumerate(self._parts):
            if sender != rank and part.start < part.stop:
                dist.recv(whole[part], src=sender)
        return self._received(whole, column)

    def everywhere(self, column: Tensor) -> Tensor:
        """Return a column of all processes, in every process."""
        if self.size == 1:
            return column
        whole = self._whole(self._sent(column))
        for sender, part in enumerate(self._parts):
            if part.start < part.stop:
                dist.broadcast(whole[part], src=sender)
        return self._received(whole, column)

    def summed(self, table: Tensor) -> Tensor:
        """Return the sum of a table over all processes, on the host."""
        if self.size > 1:
            table = table.to(self._device, copy=True)
            dist.all_reduce(table)
        return table.cpu()

    def _sent(self, column: Tensor) -> Tensor:
        """Return a column where messages are sent from, in the type that it has in all processes.

        A process without pairs may have another type, because nothing says which type a score has. Some backends cannot
        send truth values.
        """
        column = column.detach().to(self._device)
        column = column.to(torch.uint8) if column.dtype == torch.bool else column
        place = torch.tensor([DTYPES.index(column.dtype) if len(column) else 0], device=self._device)
        dist.all_reduce(place, op=dist.ReduceOp.MAX)
        return column.to(DTYPES[int(place)]).contiguous()

    def _whole(self, sent: Tensor) -> Tensor:
        """Return a column with this process's part in its place, and room for those of the others."""
        whole = sent.new_empty(self._parts[-1].stop)
        whole[self._parts[self.rank]] = sent
        return whole

    def _received(self, whole: Tensor, column: Tensor) -> Tensor:
        """Return a column of all processes on the device of this process's, as truth values if it holds such."""
        whole = whole.to(column.device)
        return whole.bool() if column.dtype == torch.bool else whole


def gathered(columns: PairColumns | None) -> PairColumns | None:
    """Return the pairs of all processes in the first process, on the host, sorted by target; None in the others.

    All processes must call this together.
    """
    if columns is None:
        return None
    exchange = Exchange(len(columns.owner), columns.owner.device)
    whole = columns.map(lambda column: exchange.joined(column, 0).cpu())
    return whole.at(whole.owner.argsort(stable=True)) if exchange.rank == 0 else None


def device_of_messages(device: torch.device) -> torch.device:
    """Return the device that messages are sent from: the host if a backend can, else that of the columns (NCCL)."""
    return torch.device("cpu") if "cpu:" in get_backend_config() else device
