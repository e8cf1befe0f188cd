"""Exact effects of nodes, and of pairs of nodes that attend to each other, by cutting them out of copies of graphs.

A *cut* takes edges from the graph, and one node as a key from attention over all nodes: for one query, or for all. Each
cut runs on a copy of the target's graph, many copies in one batch. If the model has no argument that separates graphs,
or computes something else on copies, each cut takes a pass of its own.

The effect of a node is the change of a prediction when all messages of the node are removed: its out-edges and its
self-loop in every layer, and, in attention over all nodes, the node as a key. Its own state stays: a residual still
carries it, and a readout still reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attree.attention.global_attention_calls import (
    GlobalModuleCall,
    GlobalWatcher,
    global_modules,
    place_nodes,
    watch_global,
)
from attree.attention.global_weight_matrices import Reduced
from attree.attribution.pairs import Pairs
from attree.attribution.subgraphs import part_of_targets, subject_pairs
from attree.errors import UnsupportedModelError, expect, expect_instance, expect_memory
from attree.faithfulness.effect_measures import ReductionWriter
from attree.faithfulness.engine_choice import SET_ENGINES, Reducer
from attree.faithfulness.protocol import ReducedRun, ReductionProtocol, reduced_run, resolve_protocol
from attree.faithfulness.shared_attention import Removed
from attree.faithfulness.shared_rows import SharedRows, sharing
from attree.faithfulness.wide_floats import WideSubject
from attree.subject import Part, Subject
from attree.subject.arguments import Kind
from attree.subject.facts import facts_of
from attree.subject.local_and_global_layers import GlobalTrace
from attree.subject.model_call import NotLocalError, check_local, target_outputs
from attree.subject.target_roots import Targets
from attree.tensors.arrays import Rows, expand, group, pointers
from attree.tensors.memory import REDUCTION_MEMORY, chunk_bounds
from attree.tensors.precision import exact_dtype, resolution

if TYPE_CHECKING:
    import pandas as pd

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
        self._facts = facts_of(subject.call)

    @torch.no_grad()
    def outputs(self, targets: Tensor, cuts: Cuts, protocol: ReductionProtocol) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield numbers of cuts, and the outputs of their targets with each of them."""
        part = self._part(targets)
        if part is None:
            yield from self._whole(targets, cuts, protocol)
            return
        with self._opened(protocol) as (run, watcher):

            def outputs(which: Tensor, shared: SharedRows | None) -> Tensor:
                return self._on_copies(part, cuts.at(which), run, watcher, shared)

            kind = cuts.edges.items.numel() > 0, bool((cuts.query != EVERY_QUERY).any())
            with sharing(self.subject.call, part, run, self._facts, len(cuts), outputs, kind) as shared:
                for begin, end in chunk_bounds(self._cost(part)[cuts.owner], self._memory):
                    which = torch.arange(begin, end, device=cuts.owner.device)
                    yield which, outputs(which, shared)

    def _on_copies(
        self, part: Part, cuts: Cuts, run: ReducedRun, watcher: _CutWatcher, shared: SharedRows | None
    ) -> Tensor:
        """Return the outputs of the targets of some cuts, from one pass over a copy for each."""
        copies, copy = part.take(cuts.owner), torch.arange(len(cuts), device=cuts.owner.device)
        call = self.subject.call.on(copies)
        graph = call.graph
        owner, place = expand(cuts.edges.ptr, copy)
        edges = copies.looped_ids(self.subject.graph, graph, owner, cuts.edges.items[place])
        query, key = copies.find(copy, cuts.query), copies.find(copy, cuts.key)
        assert copies.graph is not None
        watcher.cut(copies.graph, None, query, key, cuts)
        if shared is not None:
            is_cut, first = cuts.key != NO_KEY, copies.bounds[0][:-1]
            place = torch.where(cuts.query == EVERY_QUERY, EVERY_QUERY, query - first)[is_cut]
            removed = Removed(copy[is_cut], place, (key - first)[is_cut], run.deletes)
            shared.take(cuts.owner, run.columns(graph, edges), removed)
        return target_outputs(self.subject.call, copies, run(call, graph, edges))

    def _whole(self, targets: Tensor, cuts: Cuts, protocol: ReductionProtocol) -> Iterator[tuple[Tensor, Tensor]]:
        """Do the same by one pass for each cut; equal cuts of different targets share their pass."""
        rows, batch = self.subject.rows(targets), self.subject.graph_of_nodes
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
        subject, batch = self.subject, self.subject.graph_of_nodes
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
        self._key = torch.empty(0)

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


@dataclass(frozen=True)
class NodeEffects:
    """Effects of cutting nodes, or pairs of nodes, off some targets.

    Attributes:
        targets: Ids of the targets, [T].
        ptr: The effects on target k are at `ptr[k]:ptr[k + 1]`, [T + 1].
        node: The node whose messages are removed, [M].
        query: The only node that does not read it; `EVERY_QUERY` (-1) if no node does, [M].
        delta_pc: Decline of the probability of the predicted class, or of the predicted number, [M].
        delta_ne: Change of the negative entropy, [M]; NaN for regression.
        changed: Whether the predicted class changes, [M].
        probability: Class probabilities without the node, [M, classes]; None for regression.
    """

    targets: Tensor
    ptr: Tensor
    node: Tensor
    query: Tensor
    delta_pc: Tensor
    delta_ne: Tensor
    changed: Tensor
    probability: Tensor | None = None

    def __len__(self) -> int:
        return self.node.numel()

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with the columns target, node, effect, changes, and query if single pairs were cut."""
        owner = self.targets.repeat_interleave(self.ptr.diff())
        columns: dict[str, Any] = {"target": owner.tolist(), "node": self.node.tolist()}
        if bool((self.query != EVERY_QUERY).any()):
            columns["query"] = self.query.tolist()
        import pandas as pd

        return pd.DataFrame(columns | {"effect": self.delta_pc.tolist(), "changes": self.changed.tolist()})


def node_effects(
    subject: Subject,
    targets: Targets = "all",
    protocol: str | ReductionProtocol = "removal",
    *,
    memory: int = REDUCTION_MEMORY,
) -> NodeEffects:
    """Remove all messages of one node at a time, and measure the effect on the targets.

    Under `removal`, the node's out-edges are deleted and it leaves the softmaxes of attention over all nodes; under
    `weight`, their weights become 0. The nodes of a target are those within reach of the layers; all nodes of its graph
    if some layer attends over all nodes.

    Args:
        subject: The subject.
        targets: Nodes, links or graphs.
        protocol: `removal`, `weight`, or a `ReductionProtocol`.
        memory: Bytes of working memory.
    """
    subject, resolved, ids, trace = _checked(subject, targets, protocol, memory)
    owner, node = _nodes_of(subject, ids, trace)
    leaving = group(subject.graph.source, subject.graph.num_nodes)
    row, place = expand(leaving.ptr, node)
    edges = Rows(pointers(row.bincount(minlength=node.numel())), leaving.items[place])
    if trace is None:
        return _by_edges(subject, ids, owner, node, edges, resolved, memory)
    cuts = Cuts(owner, edges, torch.full_like(node, EVERY_QUERY), node)
    return _measured(subject, ids, cuts, trace, resolved, memory)


def key_effects(
    subject: Subject,
    targets: Targets = "all",
    protocol: str | ReductionProtocol = "removal",
    *,
    memory: int = REDUCTION_MEMORY,
) -> NodeEffects:
    """Take one node at a time from attention over all nodes as a key, for all queries; its edges stay.

    The arguments are those of `node_effects`.
    """
    subject, resolved, ids, trace = _checked(subject, targets, protocol, memory)
    trace = _needed(subject, trace)
    owner, node = _nodes_of(subject, ids, trace)
    return _measured(subject, ids, _of_keys(owner, torch.full_like(node, EVERY_QUERY), node), trace, resolved, memory)


def pair_effects(
    subject: Subject,
    targets: Targets = "all",
    protocol: str | ReductionProtocol = "removal",
    *,
    pairs: Tensor | None = None,
    memory: int = REDUCTION_MEMORY,
) -> NodeEffects:
    """Remove the attention of one node to one other in all global layers and heads at once; edges stay.

    Args:
        subject: The subject.
        targets: Nodes, links or graphs.
        protocol: `removal` (the pair leaves the softmax), `weight` (its weight becomes 0), or a `ReductionProtocol`.
        pairs: The pairs (query, key) to measure for every target, [2, P]; None for all pairs of the target's graph,
            which are n^2 passes of one graph: for molecules.
        memory: Bytes of working memory.
    """
    subject, resolved, ids, trace = _checked(subject, targets, protocol, memory)
    trace = _needed(subject, trace)
    if pairs is not None:
        expect(pairs.dim() == 2 and pairs.shape[0] == 2, "pairs", "of shape [2, P]: queries, keys", tuple(pairs.shape))
        inside = bool(((pairs >= 0) & (pairs < subject.graph.num_nodes)).all())
        expect(inside, "pairs", f"nodes in [0, {subject.graph.num_nodes})", pairs.tolist())
        owner = torch.arange(ids.numel(), device=subject.device).repeat_interleave(pairs.shape[1])
        cuts = _of_keys(owner, pairs[0].repeat(ids.numel()), pairs[1].repeat(ids.numel()))
        return _measured(subject, ids, cuts, trace, resolved, memory)
    owner, node = _nodes_of(subject, ids, trace)
    rows = group(owner, ids.numel())
    of_query, place = expand(rows.ptr, owner)
    cuts = _of_keys(owner[of_query], node[of_query], node[rows.items[place]])
    return _measured(subject, ids, cuts, trace, resolved, memory)


def _checked(
    subject: Subject, targets: Targets, protocol: str | ReductionProtocol, memory: int
) -> tuple[Subject, ReductionProtocol, Tensor, GlobalTrace | None]:
    """Check the arguments; return the subject, the protocol, the targets, and the layers if some are global."""
    expect_instance(subject, "subject", Subject)
    expect_memory(memory)
    resolved = resolve_protocol(protocol, subject.model)
    if not resolved.deletes and resolved.weight_factor != 0.0:
        raise UnsupportedModelError(
            f"Expected a protocol that takes messages away (`removal`, `weight`), but got `{resolved}`, which keeps "
            "scores before a softmax."
        )
    if not subject.layers.runs_on_data:
        raise UnsupportedModelError(
            f"Expected layers that run on the nodes and edges of the data for effects of nodes, which also lose their "
            f"self-loops in every layer, but {subject.call.name} has others: `attree.explain` deletes single edges."
        )
    readers = global_modules(subject.model)
    if subject.call.types is not None and readers:
        raise UnsupportedModelError(
            f"Expected nodes of one type for effects of nodes in attention over all nodes, but {subject.call.name} has "
            f"several types and `{next(iter(readers))}`, and it is not known which node it reads in which place: "
            "`attree.explain` deletes single edges, exactly."
        )
    return subject, resolved, subject.targets(targets), subject.global_trace


def _needed(subject: Subject, trace: GlobalTrace | None) -> GlobalTrace:
    if trace is None:
        raise UnsupportedModelError(
            f"Expected {subject.call.name} to attend over all nodes, but it has no such layer that attree can read: "
            "`node_effects` removes the messages of a node along edges."
        )
    return trace


def _nodes_of(subject: Subject, targets: Tensor, trace: GlobalTrace | None) -> tuple[Tensor, Tensor]:
    """Return the nodes that may affect each target: the position of the target, and the node."""
    if trace is None:
        pairs = subject_pairs(subject, targets, only_flows=True)
        key = pairs.owner * max(subject.graph.num_nodes, 1) + subject.graph.source[pairs.edges]
        key = key.unique()
        return key // max(subject.graph.num_nodes, 1), key % max(subject.graph.num_nodes, 1)
    batch = subject.graph_of_nodes
    roots = subject.roots(targets, torch.float32)
    where = torch.stack([roots.owner, batch[roots.node]]).unique(dim=1)
    members = group(batch, int(batch.max()) + 1 if batch.numel() else 0)
    row, place = expand(members.ptr, where[1])
    return where[0][row], members.items[place]


def _of_keys(owner: Tensor, query: Tensor, key: Tensor) -> Cuts:
    none = Rows(torch.zeros(owner.numel() + 1, dtype=torch.long, device=owner.device), owner[:0])
    return Cuts(owner, none, query, key)


def _writer(subject: Subject, targets: Tensor, owner: Tensor, output: Tensor, step: float) -> ReductionWriter:
    """Return a writer with one entry for each cut."""
    ptr, numbers = pointers(owner.bincount(minlength=targets.numel())), torch.zeros_like(owner)
    rows = None if subject.outputs.nodes is None else subject.rows(targets)
    pairs = Pairs(targets, ptr, numbers, numbers.bool(), subject.graph, None, rows, subject.level)
    is_number = subject.head.mode == "regression"
    return ReductionWriter(pairs, output, subject.head, not is_number, step=step)


def _result(writer: ReductionWriter, node: Tensor, query: Tensor) -> NodeEffects:
    reduction = writer.result
    return NodeEffects(
        reduction.pairs.targets,
        reduction.pairs.ptr,
        node,
        query,
        reduction.delta_pc,
        reduction.delta_ne,
        reduction.changed,
        reduction.probability,
    )


def _measured(
    subject: Subject, targets: Tensor, cuts: Cuts, trace: GlobalTrace, protocol: ReductionProtocol, memory: int
) -> NodeEffects:
    """Return the effects of cuts in a network with attention over all nodes."""
    runner = GlobalCuts(subject, trace, memory)
    writer = _writer(subject, targets, cuts.owner, runner.output, runner.resolution)
    for which, outputs in runner.outputs(targets, cuts, protocol):
        writer.fill(which, outputs)
    return _result(writer, cuts.key, cuts.query)


def _by_edges(
    subject: Subject,
    targets: Tensor,
    owner: Tensor,
    node: Tensor,
    edges: Rows,
    protocol: ReductionProtocol,
    memory: int,
) -> NodeEffects:
    """Return the effects of reducing sets of edges at once."""
    effects = Reducer(subject, memory, SET_ENGINES).record()
    pairs = subject_pairs(subject, targets)
    outputs = effects.reduce_sets(pairs, owner, edges, protocol)
    output = effects.attention.output.to(outputs.dtype)
    writer = _writer(subject, targets, owner, output, resolution(output.dtype))
    writer.fill(torch.arange(node.numel(), device=node.device), outputs)
    return _result(writer, node, torch.full_like(node, EVERY_QUERY))
