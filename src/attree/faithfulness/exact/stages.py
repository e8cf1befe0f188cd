"""Finds which attention call feeds which, by following tensors through the operations of one forward pass.

A *stage* is the output of a call, or the model's input. Every operation passes the stages of its inputs on to its
outputs, for any values: a weight that happens to be 0 does not hide a dependence. Stages that an operation combines
must have the same rows; they form a *family*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from attree.attention.marked_tensors import Marks, Provenance, storage_of, tensors_in

INPUT = 0
"""Stage of features and other arguments with one row per node; call c, counted from 1, returns stage c."""

READOUT = -1
"""Stage of the argument that selects the rows of an output: the graph of each node, or the ends of each link."""

EDGES = -2
"""The stage of arguments about edges."""

INSIDE = -3
"""Stage of the features that a layer is given, while it runs: of call c it is `INSIDE - c`."""


Reads = Literal["graphs", "one graph", "links"]
"""Rows that one output depends on, if not a single node: a graph of a batch, all nodes, or the two ends of a link."""


InputCalls = tuple[tuple[int, ...], ...]
"""For each features tensor of a call, the calls that directly produced it."""


@dataclass(frozen=True)
class Stages:
    """Which call of a convolution feeds which, and which stages share their rows.

    Attributes:
        inputs: For each call and each of its features tensors, the calls that directly produced it, numbered from 1;
            empty if it comes from the model's input.
        family: The family number of each stage, from `INPUT` on; stages of one family share their rows.
        outputs: The calls that directly produced the output.
        width: Length of a row of the widest tensor.
        reads: Rows that one output depends on; None for a single node.
        readout: The family whose rows outputs read; None with `reads`.
        rooted: For each call, whether the layer reads its nodes' own features after its messages (a root weight). Such
            a layer is given them at the rows that it returns, so they need not share rows with its input.
    """

    inputs: tuple[InputCalls, ...]
    family: tuple[int, ...]
    outputs: tuple[int, ...]
    width: int
    reads: Reads | None = None
    readout: int | None = None
    rooted: tuple[bool, ...] = ()

    @cached_property
    def feeds(self) -> tuple[tuple[int, ...], ...]:
        """For each call, the calls that directly produced its inputs."""
        return tuple(tuple(sorted({call for feeds in inputs for call in feeds})) for inputs in self.inputs)

    @property
    def num_families(self) -> int:
        """Number of families."""
        return max(*self.family, -1 if self.readout is None else self.readout) + 1

    @property
    def depth(self) -> int:
        """Length of the longest path of calls from the input to the output."""
        depths: list[int] = []
        for feeds in self.feeds:
            depths.append(1 + max((depths[before - 1] for before in feeds), default=0))
        return max((depths[call - 1] for call in self.outputs), default=0)

    @property
    def stages_meet(self) -> bool:
        """Whether any stages share their rows."""
        return len(set(self.family)) < len(self.family)


GATHERS = frozenset({"index", "index_select", "embedding"})
"""Operations that read rows of a tensor at given positions."""

MAKERS = frozenset({"zeros", "ones", "full", "empty", "arange", "rand", "randn"})
"""Operations that make a tensor of a size; others of this kind begin with `new_`."""


def _is_maker(func: Any) -> bool:
    name = func.overloadpacket.__name__
    return name in MAKERS or name.startswith("new_")


class StageError(Exception):
    """An operation combines stages that must stay separate. Not a TypeError: torch takes it for a missing operator."""


class StageMode(Provenance):
    """Context that follows stages through every operation, as marks of tensors.

    Args:
        rows: Number of rows that the model runs on, of each type if there are several.
    """

    def __init__(self, rows: Collection[int]) -> None:
        super().__init__()
        self.rows = frozenset(rows)
        self.width = 1
        self.inputs: list[InputCalls] = []
        self.meetings: set[Marks] = set()
        self.reshaped: set[int] = set()
        self._rooted: dict[int, bool] = {}
        self._made: set[StorageWeakRef] = set()
        self.reads_ends = False
        self._is_model = True
        self._outside: dict[int, Marks] = {}
        self._open: int | None = None

    def enter(self, call: int, values: Any) -> Any:
        """Return the arguments of a layer with stages of their own, so that they need not have the rows of its output.

        Args:
            call: The number of the call that the layer makes, from 1.
            values: Its arguments.
        """
        of_nodes = [tensor for tensor in tensors_in(values) if self.marks(tensor) and not self._is_other(tensor)]
        self._outside[call] = self.marks(of_nodes)
        copies = {id(tensor): tensor.clone() for tensor in of_nodes}
        self.mark(list(copies.values()), INSIDE - call)
        self._open = call
        return torch.utils._pytree.tree_map_only(Tensor, lambda tensor: copies.get(id(tensor), tensor), values)

    def leave(self, call: int, output: Any) -> None:
        """Mark what a layer returns as the output of its call alone."""
        self._open = None
        self._rooted[call] = INSIDE - call in self.marks(output)
        self.mark(output, call)

    def _is_other(self, tensor: Tensor) -> bool:
        """Whether a tensor belongs to edges, graphs or links."""
        return not self.marks(tensor).isdisjoint((EDGES, READOUT))

    def outside(self, stages: Marks) -> Marks:
        """Return stages as they are outside the layer that runs."""
        if self._open is None or INSIDE - self._open not in stages:
            return stages
        return stages - {INSIDE - self._open} | self._outside[self._open]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass stages on to the outputs of an operation, and record which stages an operation combines."""
        stages = self.marks((args, kwargs))
        if EDGES in stages and len(stages) > 1:
            return self._gathered(func, types, args, kwargs or {})
        if any(stage < EDGES and stage != INSIDE - (self._open or 0) for stage in stages):
            raise StageError("its forward reads what was inside a layer after the layer has run")
        if len(stages) > 1:
            self.meetings.add(stages)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._follow_made(func, args, kwargs, out, stages)
        if stages and EDGES not in stages:
            if READOUT not in stages and any(_length(tensor) not in self.rows for tensor in tensors_in(out)):
                self.reshaped |= {stage for stage in stages if stage > 0}
            self.width = max(self.width, *(self._width(tensor) for tensor in tensors_in(out)), 1)
        return out

    @contextmanager
    def outside_model(self) -> Iterator[None]:
        """Context of code that is not the model's: what it makes belongs to no stage."""
        self._is_model = False
        try:
            yield
        finally:
            self._is_model = True

    def _follow_made(self, func: Any, args: Any, kwargs: Any, out: Any, stages: Marks) -> None:
        """Follow tensors that are made with one row per row, such as zeros: they have the rows of the model's input."""
        if not self._is_model:
            return
        read = [storage_of(tensor) for tensor in tensors_in((args, kwargs))]
        if _is_maker(func) or (not stages and not self._made.isdisjoint(read)):
            self._made |= {storage_of(tensor) for tensor in tensors_in(out) if _length(tensor) in self.rows}
        elif not self._made.isdisjoint(read) and stages.isdisjoint((EDGES, READOUT)):
            self.meetings.add(stages | {INPUT})

    def _gathered(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what edges read of nodes: one row per edge, if it is the model's input at their ends.

        Such features of edges do not depend on the reduced edge. Rows have no edges of the graph, so the result is
        empty or of no meaning; what is recorded was computed on all edges.
        """
        if func.overloadpacket.__name__ not in GATHERS or EDGES in self.marks(args[0]):
            raise StageError("its forward mixes nodes and edges outside its attention layers")
        read = self.outside(self.marks(args[0]))
        if READOUT in read or self.marks((args[1:], kwargs)) != {EDGES}:
            raise StageError("its forward mixes nodes and edges outside its attention layers")
        if any(stage > 0 for stage in read):
            raise StageError("its edge features depend on the outputs of layers at their ends, which an edge changes")
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.mark(out, EDGES)
        self.reads_ends = True
        return out

    def _width(self, tensor: Tensor) -> int:
        """Return the length of a tensor's rows."""
        length = _length(tensor)
        return tensor.numel() // max(length if length in self.rows and length is not None else min(self.rows), 1)

    def result(self, output: Any, reads: Reads | None) -> Stages:
        """Return the stages seen in one pass.

        Args:
            output: The output of the pass.
            reads: What outputs read; None for single nodes.
        """
        has_argument = reads in ("graphs", "links")
        stages = [*range(len(self.inputs) + 1), *([READOUT] if has_argument else [])]
        family = {stage: number for number, stage in enumerate(stages)}
        meetings = set(self.meetings)
        if has_argument:
            # Operations that are not row-wise may still treat each output separately, if all its rows are present.
            meetings |= {frozenset({stage, READOUT}) for stage in self.reshaped}
        elif reads == "one graph":
            meetings.add(frozenset(stages))
        for met in meetings:
            joined = {family[stage] for stage in met if stage in family}
            family = {stage: min(joined) if number in joined else number for stage, number in family.items()}
        numbers = {number: position for position, number in enumerate(dict.fromkeys(family.values()))}
        outputs = tuple(sorted(stage for stage in self.marks(output) if stage > 0))
        readout = None
        if reads is not None:
            readout = numbers[family[READOUT if has_argument else outputs[0] if outputs else INPUT]]
        families = tuple(numbers[family[stage]] for stage in stages if stage != READOUT)
        rooted = tuple(self._rooted.get(call, False) for call in range(1, len(self.inputs) + 1))
        return Stages(tuple(self.inputs), families, outputs, self.width, reads, readout, rooted)


def _length(tensor: Tensor) -> int | None:
    return tensor.shape[0] if tensor.dim() else None
