"""Shortest paths from infected nodes: labels and per-target ground truth of the Infection benchmark."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.data.ground_truth import GroundTruth
from attree.tensors.ragged import pointers


def infection_paths(edge_index: Tensor, infected: Tensor, max_distance: int) -> tuple[Tensor, GroundTruth]:
    """Return how far each node is from the nearest infected one, and the nodes' unique shortest paths.

    A breadth-first search from all infected nodes at once, along the edges, which also counts shortest paths:

        count(v) = sum of count(u) over edges u -> v with distance(u) = distance(v) - 1,  count(infected) = 1

    A node is a target if its distance is 1 .. `max_distance` and count is 1 over all infected sources
    together; its true edges are those of that path, from the infected node to the target.

    Args:
        edge_index: Directed edges without duplicates, shape [2, E].
        infected: Boolean mask, shape [N].
        max_distance: Longest path considered; nodes farther away have distance `max_distance` + 1.

    Returns:
        Distances of shape [N] (0 for infected nodes) and the ground truth, targets ascending.

    >>> chain = torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> distance, truth = infection_paths(chain, torch.tensor([True, False, False, False]), max_distance=2)
    >>> distance.tolist(), truth.targets.tolist(), truth.edges_of(2).tolist()
    ([0, 1, 2, 3], [1, 2], [[0, 1], [1, 2]])
    """
    source, destination = edge_index
    far = max_distance + 1
    distance = torch.full_like(infected, far, dtype=torch.long).masked_fill_(infected, 0)
    count = infected.long()
    parent = torch.full_like(distance, -1)
    for step in range(1, far):
        onward = (distance[source] == step - 1) & (distance[destination] == far)
        tail, head = source[onward], destination[onward]
        # Only "one" and "more than one" matter; clamping keeps deep searches from overflowing.
        count.index_add_(0, head, count[tail]).clamp_(max=2)
        distance[head] = step
        parent[head] = tail

    targets = ((count == 1) & (distance > 0)).nonzero().view(-1)
    length = distance[targets]
    ptr = pointers(length)
    edges = edge_index.new_empty(2, int(ptr[-1]))
    node, slot = targets, ptr[1:] - 1
    while node.numel():
        edges[0, slot], edges[1, slot] = parent[node], node
        on_path = distance[node] > 1
        node, slot = parent[node[on_path]], slot[on_path] - 1
    return distance, GroundTruth(targets, edges, ptr)
