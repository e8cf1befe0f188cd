"""Layout of a neighbourhood on the page. The same neighbourhood always gets the same layout."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, shortest_path

from attree.report.selection import DrawnPart
from attree.tensors.arrays import Floats, Ints

STEPS = 60
PULL = 6.0
"""Weight of distances to the target relative to other distances. It makes hops show as rings."""


def place(part: DrawnPart) -> Floats:
    """Return positions in [-1, 1] x [-1, 1], [n, 2], so that distances on screen follow distances in the graph.

    This minimises the energy of Kamada and Kawai's layout by majorisation (Gansner, Koren and North, 2004), which takes
    milliseconds; a general optimiser takes seconds. The start is a tree around the target, so the result is
    deterministic. The target stays in the middle.
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
    axes *= np.where(axes[:, :1] < 0, -1.0, 1.0)  # the signs of singular vectors are arbitrary
    positions = positions @ axes.T  # the longer side becomes horizontal
    return positions / np.abs(positions).max()


def spacing(positions: Floats) -> float:
    """Return the 20 % quantile of the distances between nearest neighbours. The page sizes nodes by it."""
    if len(positions) == 1:
        return 1.0
    gaps = _lengths(positions)
    np.fill_diagonal(gaps, np.inf)
    return float(np.quantile(gaps.min(axis=1), 0.2))


def _distances(part: DrawnPart) -> Floats:
    """Return the distance between any two nodes; between components, the longest distance plus two."""
    size = len(part.nodes)
    links = csr_matrix((np.ones(len(part.edges)), (part.source, part.destination)), shape=(size, size))
    steps: Floats = shortest_path(links, directed=False, unweighted=True)
    apart = steps[np.isfinite(steps)].max() + 2.0
    steps[~np.isfinite(steps)] = apart
    return steps


def _tree_around(part: DrawnPart, root: int) -> Floats:
    """Return start positions: one ring around the root per hop. The angle of a branch is proportional to its leaves."""
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
    apart = np.setdiff1d(np.arange(size), order)  # nodes that are not connected to the root
    angle[apart] = np.linspace(0.0, 2 * np.pi, len(apart), endpoint=False)
    radius[apart] = radius.max() + 2.0
    return radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])


def _majorise(positions: Floats, steps: Floats, weights: Floats) -> Floats:
    """Minimise the energy, the sum of weights * (length - steps)^2, by at most `STEPS` steps of majorisation."""
    laplacian = np.diag(weights.sum(axis=1)) - weights
    # The energy depends on differences only. Fixing one node at the origin makes the system regular.
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
    """Return the distance from each node to the target along the edges; -1 without a path or a target."""
    if part.target is None:
        return np.full(len(part.nodes), -1, dtype=np.int64)
    size = len(part.nodes)
    backward = csr_matrix((np.ones(len(part.edges)), (part.destination, part.source)), shape=(size, size))
    steps = shortest_path(backward, unweighted=True, indices=part.target)
    return np.where(np.isfinite(steps), steps, -1).astype(np.int64)
