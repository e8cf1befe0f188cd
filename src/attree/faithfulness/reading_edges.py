"""Find out whether a model reads edges outside its attention layers: for degrees, means, or features of self-loops.

Deleting an edge is then more than leaving it out of the softmaxes. The experiment runs the model twice without a random
half of the edges around a few targets: without them in the data, and without them in the softmaxes only. It is repeated
for the other half. If the model reads edges nowhere else, the outputs are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn.aggr import SumAggregation

from attree.attention.locality import difference
from attree.attention.softmax_hook import message_passing
from attree.attention.wiring import is_plain_stack
from attree.attribution.neighbourhoods import neighbourhoods
from attree.errors import UnsupportedModelError
from attree.faithfulness.protocol import PROTOCOLS, reduced_run
from attree.faithfulness.wide_floats import ExactRun
from attree.subject import ModelCall, Subject
from attree.subject.arguments import Kind
from attree.tensors.limits import REDUCTION_MEMORY

TARGETS = 4
"""Number of targets around which edges are deleted."""

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


def reads_other_edges(run: ExactRun) -> bool:
    """Whether a model reads edges outside its attention layers, with the current weights.

    Args:
        run: The subject in the type to run it in.

    Raises:
        UnsupportedModelError: If it does, and returns one row per edge: a deleted edge would have no row.
    """
    subject = run.subject
    if rows_are_edges(subject):
        if _differ(run, subject.call, of_rows=True):
            raise UnsupportedModelError(
                f"Expected {subject.call.name}, which reads edges outside its attention layers, to take the links that "
                "it predicts as an argument of their own (`edge_label_index`), but it returns one row per edge that it "
                "runs on: a deleted edge would have no prediction."
            )
        return False
    part = _part(subject)
    if part is not None:
        try:
            return _differ(run, part)
        except Exception:
            pass
    try:
        return _differ(run, subject.call)
    except Exception:  # nothing shows that leaving the softmaxes is deletion
        return True


def _part(subject: Subject) -> ModelCall | None:
    """Return the call on the neighbourhoods of a few targets; None if the whole graph is as small, or must be used."""
    if subject.outputs.nodes is not None or subject.level == "edge":
        return None
    count = subject.num_targets
    targets = torch.linspace(0, count - 1, min(TARGETS, count), device=subject.device).round().long().unique()
    for _, _, part in neighbourhoods(subject, targets, BYTES_PER_EDGE, REDUCTION_MEMORY):
        if part.edge_index.shape[1] < subject.graph.original_edge_index.shape[1]:
            whole = torch.arange(part.count, device=subject.device)
            return subject.call.on(part.take(whole, subject.graph.types))
        return None
    return None


@torch.no_grad()
def _differ(run: ExactRun, call: ModelCall, of_rows: bool = False) -> bool:
    """Whether outputs without some edges depend on whether these are deleted, or only leave the softmaxes."""
    graph = call.graph
    for edges in _edge_sets(graph.num_proper_edges):
        outputs: list[Tensor] = []
        for deletes in (True, False):
            with run.context(), reduced_run(call.model, PROTOCOLS["removal"], deletes=deletes) as reduced:
                outputs.append(reduced(call, graph, edges.to(graph.device)))
        if of_rows:
            is_deleted = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
            outputs[1] = outputs[1][~is_deleted.index_fill(0, edges.to(graph.device), True)[graph.position]]
        if outputs[0].shape != outputs[1].shape or difference(*outputs, outputs[1].dtype) is not None:
            return True
    return False


def _edge_sets(count: int) -> list[Tensor]:
    """Return sets of edges to delete: a random half of all edges and the others, or each edge of a small graph."""
    if count <= FEW_EDGES:
        return list(torch.arange(count).split(1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [order[: count // 2], order[count // 2 :]]
