"""A few pairs on which deletion by exact updates is compared with deletion from the data."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attribution.neighbourhoods import subject_pairs
from attree.attribution.pairs import Pairs
from attree.subject import Subject

TARGETS = 3
"""Number of targets around which edges are deleted."""

CANDIDATES = 16
"""Number of targets among which those with edges around them are found."""


def tried_pairs(subject: Subject, targets: int = TARGETS) -> Pairs:
    """Return pairs with one edge of the data, of each relation, at each distance from a few targets.

    A layer reads an edge at its distance from the target, so a wrong deletion in any layer changes the output of one of
    these targets.

    Args:
        subject: The subject.
        targets: Number of targets.
    """
    total = subject.num_targets
    ids = torch.arange(CANDIDATES, device=subject.device) * (total - 1) // (CANDIDATES - 1)
    ids = ids.unique()
    pairs = subject_pairs(subject, ids)
    roots = subject.roots(ids)
    graph, is_tried = subject.graph, torch.zeros(len(pairs), dtype=torch.bool, device=subject.device)
    is_given = torch.zeros(graph.num_edges, dtype=torch.bool, device=subject.device)
    is_given[graph.position] = True
    left = targets
    for position in range(ids.numel()):
        begin, end = int(pairs.ptr[position]), int(pairs.ptr[position + 1])
        edges = pairs.edges[begin:end]
        picked = _by_distance(subject, edges, is_given[edges], roots.node[roots.owner == position])
        is_tried[picked + begin] = True
        left -= int(picked.numel() > 0)
        if not left:
            break
    return pairs.only(is_tried)


def _by_distance(subject: Subject, edges: Tensor, is_given: Tensor, frontier: Tensor) -> Tensor:
    """Return the positions of one edge per distance from some nodes, and per relation."""
    graph, picked = subject.graph, []
    ends = graph.edge_index[:, edges]
    relation = torch.zeros_like(edges)
    if graph.types is not None:
        relation = graph.types.type_of_edges(edges.clamp(max=max(graph.num_proper_edges - 1, 0)))
    for distance in range(subject.num_layers):
        enters = torch.isin(ends[1], frontier)
        for kind in relation.unique():
            places = (enters & is_given & (relation == kind)).nonzero().view(-1)
            if places.numel():
                picked.append(places[(distance + 1) * places.numel() // (subject.num_layers + 1)])
        frontier = torch.cat([frontier, ends[0, enters]]).unique()
    return torch.stack(picked) if picked else edges[:0]
