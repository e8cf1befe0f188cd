"""Find out whether a model reads edges outside its attention layers: for degrees, means, or features of self-loops.

Deleting an edge is then more than leaving it out of the softmaxes. The experiment runs the model twice without a random
half of the edges around a few targets: without them in the data, and without them in the softmaxes only. It is repeated
for the other half. If the model reads edges nowhere else, the outputs are equal.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch_geometric.nn.aggr import SumAggregation

from attree.attention.locality import difference
from attree.attention.softmax_hook import message_passing
from attree.attention.wiring import is_plain_stack
from attree.attribution.flows import frontier_bound
from attree.attribution.neighbourhoods import neighbourhoods
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import PROTOCOLS, reduced_run
from attree.faithfulness.wide_floats import WideFloats, widened
from attree.subject import ModelCall, Subject
from attree.subject.arguments import Kind
from attree.tensors.limits import REDUCTION_MEMORY

TARGETS = 4
"""Number of targets around which edges are deleted."""

CANDIDATES = 16
"""Number of targets from which those with few edges around them are chosen."""

FEW_EDGES = 8
"""With no more edges than this, each is deleted alone."""

BYTES_PER_EDGE = 1024
"""Rough memory that an edge takes in a pass; bounds the part of the graph that the experiment runs on."""


def rows_are_edges(subject: Subject) -> bool:
    """Whether a model returns one row per edge that it runs on, so that a deleted edge has no row."""
    return subject.level == "edge" and not subject.call.of_kind(Kind.IDS)


def is_known_to_delete(subject: Subject) -> bool:
    """Whether it is known without an experiment that a model reads edges in its attention layers only."""
    return is_plain_stack(subject.call.user_model) and all(
        isinstance(conv.aggr_module, SumAggregation)
        and (getattr(conv, "edge_dim", None) is None or not isinstance(getattr(conv, "fill_value", None), str))
        for conv in message_passing(subject.model)
    )


def reads_other_edges(subject: Subject, call: ModelCall, again: bool = False) -> bool:
    """Whether a model reads edges outside its attention layers, with its current weights.

    Args:
        subject: The subject.
        call: The call of its model with the current weights.
        again: Whether the model was found not to, with other weights: a cheaper experiment is enough.

    Raises:
        UnsupportedModelError: If it does, and returns one row per edge: a deleted edge would have no row.
    """
    part = _part(subject, call)
    of_rows = rows_are_edges(subject)
    differs = True  # if the model fails, nothing shows that leaving the softmaxes is deletion
    # Some models run in their own type only, or on the whole graph only.
    for where, is_wide in ((part, True), (part, False), (call, True), (call, False)):
        try:
            with WideFloats() if is_wide else nullcontext():
                differs = _differ(widened(where) if is_wide else where, of_rows, again)
            break
        except Exception:
            continue
    if differs and of_rows:
        raise UnsupportedModelError(
            f"Expected {call.name}, which reads edges outside its attention layers, to take the links that it predicts "
            "as an argument of their own (`edge_label_index`), but it returns one row per edge that it runs on: a "
            "deleted edge would have no prediction."
        )
    return differs


def _part(subject: Subject, call: ModelCall) -> ModelCall:
    """Return the call on the neighbourhoods of a few targets, or on the whole graph if that is not larger."""
    if subject.outputs.nodes is not None or subject.level == "edge":
        return call
    graph, count = subject.graph, subject.num_targets
    targets = torch.linspace(0, count - 1, min(CANDIDATES, count), device=subject.device).round().long().unique()
    if subject.level == "node":  # those with few edges around them, but with some
        nodes = subject.nodes_of(targets)
        size, degree = frontier_bound(graph, subject.num_layers)[nodes], graph.given_entering.sizes[nodes]
        targets = targets[torch.where(degree > 1, size, torch.inf).argsort()[:TARGETS]].sort().values
    for _, _, part in neighbourhoods(subject, targets[:TARGETS], BYTES_PER_EDGE, REDUCTION_MEMORY):
        if 0 < part.edge_index.shape[1] < graph.original_edge_index.shape[1]:
            return call.on(part.take(torch.arange(part.count, device=subject.device), graph.types))
        break
    return call


@torch.no_grad()
def _differ(call: ModelCall, of_rows: bool, again: bool) -> bool:
    """Whether outputs without some edges depend on whether these are deleted, or only leave the softmaxes."""
    graph = call.graph
    for edges in _edge_sets(graph.num_proper_edges)[: 1 if again else None]:
        edges = edges.to(graph.device)
        outputs: list[Tensor] = []
        for deletes in (True, False):
            with reduced_run(call.model, PROTOCOLS["removal"], deletes=deletes) as reduced:
                outputs.append(reduced(call, graph, edges))
        if of_rows:
            is_deleted = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
            outputs[1] = outputs[1][~is_deleted.index_fill(0, edges, True)[graph.position]]
        if outputs[0].shape != outputs[1].shape or difference(outputs[0], outputs[1], outputs[1].dtype) is not None:
            return True
    return False


def _edge_sets(count: int) -> list[Tensor]:
    """Return sets of edges to delete: a random half of all edges and the others, or each edge of a small graph."""
    if count <= FEW_EDGES:
        return list(torch.arange(count).split(1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [order[: count // 2], order[count // 2 :]]
