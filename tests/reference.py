"""Slow, obvious versions of attree's mathematics, written from the definitions with plain lists and dense matrices.

Nothing here uses attree: the graph is a list of (source, destination) pairs with one self-loop per node at its end,
and attention is `alpha[layer][edge]`, first layer first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

Edge = tuple[int, int]


def looped_edges(edges: Sequence[Edge], num_nodes: int) -> list[Edge]:
    """The edge list that attention lives on: no self-loop but one per node, last."""
    return [(i, j) for i, j in edges if i != j] + [(i, i) for i in range(num_nodes)]


def flows_to(
    edges: Sequence[Edge], num_layers: int, target: int, used: Sequence[Sequence[bool]] | None = None
) -> Iterator[list[tuple[int, int]]]:
    """All flows that end in `target`, each as a list of (layer, edge id), first step first; layers count from 0."""

    def extend(node: int, layer: int) -> Iterator[list[tuple[int, int]]]:
        if layer < 0:
            return
        for number, (i, j) in enumerate(edges):
            if j == node and (used is None or used[layer][number]):
                yield [(layer, number)]
                for before in extend(i, layer - 1):
                    yield [*before, (layer, number)]

    yield from extend(target, num_layers - 1)


def attribution_by_flows(
    edges: Sequence[Edge],
    alpha: Sequence[Sequence[float]],
    target: int,
    used: Sequence[Sequence[bool]] | None = None,
) -> dict[str, dict[int, float]]:
    """GAtt and its ablations by their definitions: edge id -> score, for the edges that start a flow."""
    gatt: dict[int, float] = {}
    sim: dict[int, float] = {}
    count: dict[int, int] = {}
    for flow in flows_to(edges, len(alpha), target, used):
        layer, first = flow[0]
        product = alpha[layer][first]
        for later_layer, later in flow[1:]:
            product *= alpha[later_layer][later]
        gatt[first] = gatt.get(first, 0.0) + product
        sim[first] = sim.get(first, 0.0) + alpha[layer][first]
        count[first] = count.get(first, 0) + 1
    return {"gatt": gatt, "gatt_sim": sim, "gatt_avg": {edge: gatt[edge] / count[edge] for edge in gatt}}


def gatt_by_matrices(edges: Sequence[Edge], num_nodes: int, alpha: Sequence[Sequence[float]]) -> np.ndarray:
    """The paper's matrix form: phi[v, e] = sum over m of [A(L) ... A(m + 1)][v, j] * A(m)[j, i], as [N, E]."""
    num_layers = len(alpha)
    matrices = []
    for layer in range(num_layers):
        matrix = np.zeros((num_nodes, num_nodes))
        for number, (i, j) in enumerate(edges):
            matrix[j, i] += alpha[layer][number]
        matrices.append(matrix)
    scores = np.zeros((num_nodes, len(edges)))
    for layer in range(num_layers):
        way = np.eye(num_nodes)
        for later in range(num_layers - 1, layer, -1):
            way = way @ matrices[later]
        for number, (_, j) in enumerate(edges):
            scores[:, number] += way[:, j] * alpha[layer][number]
    return scores


def hops_to(edges: Sequence[Edge], target: int) -> dict[int, int]:
    """Fewest steps along the edges from each node to `target`, for the nodes that reach it."""
    distance = {target: 0}
    queue = [target]
    for node in queue:
        for i, j in edges:
            if j == node and i not in distance:
                distance[i] = distance[node] + 1
                queue.append(i)
    return distance


Node = tuple[str, int]
"""A node of a heterogeneous graph: its type, and its number within the type."""

TypedEdge = tuple[str, int]
"""An edge of a heterogeneous graph: its relation, and its number within the relation."""

Call = list[tuple[Node, Node, TypedEdge, float]]
"""What one call of a convolution attends to: source, destination, edge and weight."""


def gatt_by_calls(
    calls: dict[str, Call],
    fed_by: dict[str, list[tuple[str, float]]],
    output: list[tuple[str, float]],
    targets: Sequence[tuple[Node, float]],
) -> dict[TypedEdge, float]:
    """GAtt over calls of convolutions that feed each other in any way, by following every flow.

    Args:
        calls: The calls by name.
        fed_by: For each call, the calls that its sources' features come from, and the factor of each.
        output: The calls that the output comes from, and the factor of each.
        targets: The nodes that the output reads, and the weight of each.
    """
    scores: dict[TypedEdge, float] = {}

    def extend(call: str, node: Node, way: float) -> None:
        for source, destination, edge, weight in calls[call]:
            if destination == node:
                scores[edge] = scores.get(edge, 0.0) + way * weight
                for before, factor in fed_by.get(call, []):
                    extend(before, source, way * weight * factor)

    for target, start in targets:
        for call, factor in output:
            extend(call, target, start * factor)
    return scores


def nodes_by_calls(
    calls: dict[str, Call],
    fed_by: dict[str, list[tuple[str, float]]],
    output: list[tuple[str, float]],
    targets: Sequence[tuple[Node, float]],
) -> dict[Node, float]:
    """r at the input: for each node, the sum over all flows from the input to the targets; arguments as above."""
    scores: dict[Node, float] = {}

    def extend(call: str, node: Node, way: float) -> None:
        for source, destination, _, weight in calls[call]:
            if destination == node:
                if not fed_by.get(call):
                    scores[source] = scores.get(source, 0.0) + way * weight
                for before, factor in fed_by.get(call, []):
                    extend(before, source, way * weight * factor)

    for target, start in targets:
        for call, factor in output:
            extend(call, target, start * factor)
    return scores
