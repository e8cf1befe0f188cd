"""Exact effects of nodes, and of pairs of nodes that attend to each other.

The effect of a node is the change of a prediction when all messages of the node are removed: its out-edges and its
self-loop in every layer, and, in attention over all nodes, the node as a key. Its own state stays: a residual still
carries it, and a readout still reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attree.attribution.neighbourhoods import subject_pairs
from attree.attribution.pairs import Pairs
from attree.errors import UnsupportedModelError, expect, expect_instance, expect_memory
from attree.faithfulness.choose import SET_ENGINES, Reducer
from attree.faithfulness.global_cuts import EVERY_QUERY, Cuts, GlobalCuts
from attree.faithfulness.protocol import ReductionProtocol, resolve_protocol
from attree.faithfulness.reduction import ReductionWriter
from attree.subject import Subject
from attree.subject.global_trace import GlobalTrace, batch_of, global_trace
from attree.subject.roots import Targets
from attree.tensors.limits import REDUCTION_MEMORY, resolution
from attree.tensors.ragged import Rows, expand, group, pointers


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
    return subject, resolved, subject.targets(targets), global_trace(subject)


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
    batch = batch_of(subject)
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
