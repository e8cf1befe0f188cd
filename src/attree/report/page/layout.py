"""Where the nodes of a neighbourhood stand on the page: computed once, the same in every panel and every time."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, shortest_path

from attree.report.drawn_part import DrawnPart
from attree.tensors.arrays import Floats, Ints

STEPS = 60
PULL = 6.0
"""How many times more the distance to the target weighs than other distances: hops show as rings."""


def place(part: DrawnPart) -> Floats:
    """Positions in [-1, 1] x [-1, 1], [n, 2]: distances on screen follow distances in the graph.

    This minimises the energy of Kamada and Kawai's layout by majorisation (Gansner, Koren and North, 2004), which takes
    milliseconds where a general optimiser takes seconds. The start is a tree around the target, so the same
    neighbourhood always looks the same; the target stays in the middle.
    """
    size = len(part.nodes)
    if size == 1:
        return np.zeros((1, 2))
    steps = _distances(part)
    root = part.target if part.target is not None else int(steps.max(axis=1).argmin())
    weights = 1.0 / np.maximum(steps, 1.0) ** 2
    if part.target is not None:
        weights[root] *= PULL
        weights[:, root] *= PULL
    np.fill_diagonal(weights, 0.0)
    positions = _majorise(_tree_around(part, root), steps, weights)
    if part.target is not None:
        positions = positions - positions[root]
    else:
        positions = positions - (positions.max(axis=0) + positions.min(axis=0)) / 2
    axes = np.linalg.svd(positions, full_matrices=False)[2]
    axes *= np.where(axes[:, :1] < 0, -1.0, 1.0)  # the signs of singular vectors are anyone's choice
    positions = positions @ axes.T  # the longer side across
    return positions / np.abs(positions).max()


def spacing(positions: Floats) -> float:
    """The 20 % quantile of the distances between nearest neighbours, from which nodes get their size."""
    if len(positions) == 1:
        return 1.0
    gaps = _lengths(positions)
    np.fill_diagonal(gaps, np.inf)
    return float(np.quantile(gaps.min(axis=1), 0.2))


def _distances(part: DrawnPart) -> Floats:
    """Steps between any two nodes; parts that do not hang together stand two steps beyond the longest way apart."""
    size = len(part.nodes)
    links = csr_matrix((np.ones(len(part.edges)), (part.source, part.destination)), shape=(size, size))
    steps: Floats = shortest_path(links, directed=False, unweighted=True)
    apart = steps[np.isfinite(steps)].max() + 2.0
    steps[~np.isfinite(steps)] = apart
    return steps


def _tree_around(part: DrawnPart, root: int) -> Floats:
    """A start: rings around the root, one a hop; every branch has an angle as wide as it has ends."""
    size = len(part.nodes)
    links = csr_matrix((np.ones(len(part.edges)), (part.source, part.destination)), shape=(size, size))
    order, parents = breadth_first_order(links, root, directed=False, return_predecessors=True)
    children: list[list[int]] = [[] for _ in range(size)]
    ends = np.ones(size)
    for node in order[1:].tolist():
        children[int(parents[node])].append(node)
    for node in order[::-1].tolist():
        if children[node]:
            ends[node] = sum(ends[child] for child in children[node])
    begin, width, radius = np.zeros(size), np.zeros(size), np.zeros(size)
    width[root] = 2 * np.pi
    for node in order.tolist():
        reached = begin[node]
        for child in children[node]:
            begin[child], width[child] = reached, width[node] * ends[child] / ends[node]
            radius[child] = radius[node] + 1.0
            reached += width[child]
    angle = begin + width / 2
    apart = np.setdiff1d(np.arange(size), order)  # nodes that the root does not hang together with
    angle[apart] = np.linspace(0.0, 2 * np.pi, len(apart), endpoint=False)
    radius[apart] = radius.max() + 2.0
    return radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])


def _majorise(positions: Floats, steps: Floats, weights: Floats) -> Floats:
    """Lower the energy sum of weights * (length - steps)^2, a few exact steps of majorisation at a time."""
    laplacian = np.diag(weights.sum(axis=1)) - weights
    # One node is held at the origin, which makes the system regular: the energy knows differences alone.
    inverse = np.linalg.inv(laplacian[1:, 1:])
    pulls = weights * steps
    for _ in range(STEPS):
        ratio = pulls / np.maximum(_lengths(positions), 1e-9)
        np.fill_diagonal(ratio, 0.0)
        forces = ratio.sum(axis=1)[:, None] * positions - ratio @ positions
        moved = np.vstack([np.zeros((1, 2)), inverse @ forces[1:]])
        moved = moved - moved.mean(axis=0)
        if np.abs(moved - (positions - positions.mean(axis=0))).max() < 1e-3:
            return moved
        positions = moved
    return positions


def _lengths(positions: Floats) -> Floats:
    squares = (positions**2).sum(axis=1)
    products = squares[:, None] + squares[None] - 2.0 * positions @ positions.T
    lengths: Floats = np.sqrt(np.maximum(products, 0.0))
    return lengths


def hops(part: DrawnPart) -> Ints:
    """Steps from each node to the target along the edges; -1 where there is no way, or no target."""
    if part.target is None:
        return np.full(len(part.nodes), -1, dtype=np.int64)
    size = len(part.nodes)
    backward = csr_matrix((np.ones(len(part.edges)), (part.destination, part.source)), shape=(size, size))
    steps = shortest_path(backward, unweighted=True, indices=part.target)
    return np.where(np.isfinite(steps), steps, -1).astype(np.int64)
