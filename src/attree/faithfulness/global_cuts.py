"""Run a graph transformer with edges and attention over all nodes cut, many times at once.

A *cut* takes edges from the graph, and one node as a key from attention over all nodes: for one query, or for all. Each
cut runs on a copy of the target's graph, many copies in one batch. If the model has no argument that separates graphs,
or computes something else on copies, each cut takes a pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attree.attention.global_attention import GlobalModuleCall, GlobalWatcher, place_nodes, watch_global
from attree.attention.global_weights import Reduced
from attree.attribution.neighbourhoods import part_of_targets
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import ReducedRun, ReductionProtocol, reduced_run
from attree.faithfulness.wide_floats import WideSubject
from attree.subject import Part, Subject
from attree.subject.arguments import Kind
from attree.subject.global_trace import GlobalTrace, batch_of
from attree.subject.part_check import NotLocalError, check_local, target_outputs
from attree.tensors.limits import REDUCTION_MEMORY, chunk_bounds, exact_dtype, resolution
from attree.tensors.ragged import Rows, expand, group

NO_KEY = -2
"""The key of a cut that leaves attention over all nodes as it is."""

EVERY_QUERY = -1
"""The query of a cut that takes its key from all nodes."""

BYTES_PER_PLACE = 4096
"""Rough memory that a node takes in a pass."""

BYTES_PER_PAIR = 256
"""Rough memory that a pair of nodes takes in a pass, over all heads."""


@dataclass(frozen=True)
class Cuts:
    """Some cuts, grouped by target.

    Attributes:
        owner: Position of each cut's target, ascending, [C].
        edges: The edges that are cut, as positions in `graph.edge_index`, one row for each cut.
        query: The node that does not read the key; `EVERY_QUERY` for all nodes, [C].
        key: The node that is not read; `NO_KEY` for none, [C].
    """

    owner: Tensor
    edges: Rows
    query: Tensor
    key: Tensor

    def __len__(self) -> int:
        return self.owner.numel()

    def at(self, which: Tensor) -> Cuts:
        """Return some of the cuts."""
        row, place = expand(self.edges.ptr, which)
        edges = Rows(group(row, which.numel()).ptr, self.edges.items[place])
        return Cuts(self.owner[which], edges, self.query[which], self.key[which])


class GlobalCuts:
    """Runs cuts of one subject with attention over all nodes.

    Args:
        subject: The subject.
        trace: Its layers.
        memory: Bytes of working memory.

    Attributes:
        output: The output without a cut, in the type to measure effects in.
        resolution: The smallest effect that counts.
    """

    def __init__(self, subject: Subject, trace: GlobalTrace, memory: int = REDUCTION_MEMORY) -> None:
        run = WideSubject(subject).run()
        self.subject, self.output = run.subject, run.subject.output.to(exact_dtype(subject.device))
        self.resolution = resolution(run.dtype)
        self._context, self._trace, self._memory = run.context, trace, memory

    @torch.no_grad()
    def outputs(self, targets: Tensor, cuts: Cuts, protocol: ReductionProtocol) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield numbers of cuts, and the outputs of their targets with each of them."""
        part = self._part(targets)
        if part is None:
            yield from self._whole(targets, cuts, protocol)
            return
        with self._opened(protocol) as (run, watcher):
            for begin, end in chunk_bounds(self._cost(part)[cuts.owner], self._memory):
                which = torch.arange(begin, end, device=cuts.owner.device)
                part_cuts = cuts.at(which)
                copies = part.take(part_cuts.owner)
                call = self.subject.call.on(copies)
                graph = call.graph
                owner, place = expand(part_cuts.edges.ptr, torch.arange(end - begin, device=which.device))
                edges = copies.looped_ids(self.subject.graph, graph, owner, part_cuts.edges.items[place])
                copy = torch.arange(end - begin, device=which.device)
                assert copies.graph is not None
                watcher.cut(
                    copies.graph, None, copies.find(copy, part_cuts.query), copies.find(copy, part_cuts.key), part_cuts
                )
                yield which, target_outputs(self.subject.call, copies, run(call, graph, edges))

    def _whole(self, targets: Tensor, cuts: Cuts, protocol: ReductionProtocol) -> Iterator[tuple[Tensor, Tensor]]:
        """Do the same by one pass for each cut; equal cuts of different targets share their pass."""
        rows, batch = self.subject.rows(targets), batch_of(self.subject)
        nodes = {call.number: call.nodes for call in self._trace.calls}
        first: dict[tuple[Any, ...], list[int]] = {}
        for number, (query, key) in enumerate(zip(cuts.query.tolist(), cuts.key.tolist(), strict=True)):
            edges = cuts.edges.items[cuts.edges.ptr[number] : cuts.edges.ptr[number + 1]]
            first.setdefault((query, key, *edges.tolist()), []).append(number)
        with self._opened(protocol) as (run, watcher):
            for numbers in first.values():
                which = torch.tensor(numbers, device=cuts.owner.device)
                cut = cuts.at(which[:1])
                watcher.cut(batch, nodes, cut.query, cut.key, cut)
                output = run(self.subject.call, self.subject.graph, cut.edges.items)
                if not isinstance(output, Tensor) or output.shape != self.output.shape:
                    raise UnsupportedModelError(
                        f"Expected {self.subject.call.name} to return an output of the same shape with attention cut, "
                        "but got another."
                    )
                yield which, output[rows[cuts.owner[which]]]

    def _opened(self, protocol: ReductionProtocol) -> _Opened:
        return _Opened(self, protocol)

    def _part(self, targets: Tensor) -> Part | None:
        """Return a part with the whole graph of each target; None if the model does not run on copies of it."""
        subject, batch = self.subject, batch_of(self.subject)
        call, outputs = subject.call, subject.outputs
        if (
            call.batch is None
            or outputs.nodes is not None
            or len(call.of_kind(Kind.IDS)) > int(outputs.level == "edge")
        ):
            return None
        for global_call in self._trace.calls:  # the order of nodes in a copy is known only if it is the usual one
            nodes = global_call.nodes[global_call.nodes >= 0]
            if not torch.equal(nodes, batch.argsort(stable=True)):
                return None
        where = self._graph_of(targets, batch)
        if where is None:
            return None
        members = group(batch, int(batch.max()) + 1)
        owner, place = expand(members.ptr, where)
        part = Part.entering(subject.graph, targets.numel(), owner, members.items[place])
        part = part_of_targets(subject, part, targets)
        try:
            with self._context():
                check_local(call, part, self.output[subject.rows(targets)])
        except NotLocalError:
            return None
        return part

    def _graph_of(self, targets: Tensor, batch: Tensor) -> Tensor | None:
        """Return the graph of each target; None if a target is in several, or edges lead from graph to graph."""
        ends = batch[self.subject.graph.edge_index]
        if not torch.equal(ends[0], ends[1]):
            return None
        roots = self.subject.roots(targets, torch.float32)
        where = torch.full_like(targets, -1).index_copy_(0, roots.owner, batch[roots.node])
        return where if torch.equal(where[roots.owner], batch[roots.node]) and bool((where >= 0).all()) else None

    def _cost(self, part: Part) -> Tensor:
        """Return the bytes of a copy of each graph of a part."""
        nodes = part.bounds[0].diff().double()
        return nodes * BYTES_PER_PLACE + nodes.square() * BYTES_PER_PAIR


class _Opened:
    """Context of runs with cuts: the run that cuts edges, and the watcher that cuts attention over all nodes."""

    def __init__(self, cuts: GlobalCuts, protocol: ReductionProtocol) -> None:
        self._cuts, self._protocol, self._stack = cuts, protocol, ExitStack()

    def __enter__(self) -> tuple[ReducedRun, _CutWatcher]:
        model, watcher = self._cuts.subject.model, _CutWatcher(self._protocol)
        self._stack.enter_context(self._cuts._context())
        run = self._stack.enter_context(reduced_run(model, self._protocol))
        self._stack.enter_context(watch_global(model, watcher))
        return run, watcher

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()


class _CutWatcher(GlobalWatcher):
    """Computes the output of every module over all nodes without some pairs."""

    def __init__(self, protocol: ReductionProtocol) -> None:
        self._protocol = protocol
        self._number = 0

    def cut(self, batch: Tensor, nodes: dict[int, Tensor] | None, query: Tensor, key: Tensor, cuts: Cuts) -> None:
        """Set what is cut in the next pass.

        Args:
            batch: The graph of each node of the pass.
            nodes: The node in each place, by the number of the call; None if that of `to_dense_batch`.
            query: The position of each cut's query among the nodes of the pass.
            key: The position of its key.
            cuts: The cuts.
        """
        self._batch, self._nodes, self._number = batch, nodes, 0
        is_cut = cuts.key != NO_KEY
        self._query = torch.where(cuts.query == EVERY_QUERY, EVERY_QUERY, query)[is_cut]
        self._key = key[is_cut]

    def begin(self, call: GlobalModuleCall) -> None:
        call.number = self._number  # counted within the pass
        self._number += 1

    def end(self, call: GlobalModuleCall, output: Any) -> Tensor | None:
        if not self._key.numel():
            return None
        if self._nodes is not None and call.number not in self._nodes:
            return None
        mixing = call.read(output)
        if mixing is None:
            return None
        nodes = place_nodes(mixing, self._batch) if self._nodes is None else self._nodes[call.number]
        if nodes is None:
            return None
        graph, place = (torch.zeros_like(self._batch) for _ in range(2))
        row, column = (nodes >= 0).nonzero().unbind(1)
        graph[nodes[row, column]], place[nodes[row, column]] = row, column
        query = torch.where(self._query < 0, EVERY_QUERY, place[self._query.clamp(min=0)])
        reduced = Reduced(graph[self._key], query, place[self._key])
        deletes = self._protocol.deletes
        return mixing.finish(mixing.weights.without(reduced, deletes).mix(mixing.values))
