"""Where the nodes of a small graph stand in figures and on pages, so that distances follow distances in the graph."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, shortest_path

from attree.tensors.arrays import Floats, Ints

STEPS = 60
PULL = 6.0
"""Weight of distances to the target relative to other distances. It makes hops show as rings."""


def place(sources: Ints, destinations: Ints, num_nodes: int, target: int | None = None) -> Floats:
    """Return positions in [-1, 1] x [-1, 1], [n, 2], so that distances on screen follow distances in the graph.

    This minimises the energy of Kamada and Kawai's layout by majorisation (Gansner, Koren and North, 2004), which takes
    milliseconds; a general optimiser takes seconds. The start is a tree around the target, so the result is
    deterministic. The graph need not be connected.

    Args:
        sources: The source of each edge, from 0 to n - 1.
        destinations: Its destination.
        num_nodes: Number of nodes, n.
        target: A node that stays in the middle; None for none.
    """
    if num_nodes == 1:
        return np.zeros((1, 2))
    links = csr_matrix((np.ones(len(sources)), (sources, destinations)), shape=(num_nodes, num_nodes))
    steps = _distances(links)
    root = target if target is not None else int(steps.max(axis=1).argmin())
    weights = 1.0 / np.maximum(steps, 1.0) ** 2
    if target is not None:
        weights[root] *= PULL
        weights[:, root] *= PULL
    np.fill_diagonal(weights, 0.0)
    positions = _majorise(_tree_around(links, root), steps, weights)
    positions = centred(positions) if target is None else positions - positions[root]
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


def pushed_apart(positions: Floats, least: float) -> Floats:
    """Move nodes that are closer than `least` away from each other, in small steps."""
    for _ in range(30):
        offset = positions[:, None] - positions[None]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        np.fill_diagonal(distance, np.inf)
        missing = np.clip(least - distance, 0.0, None) / np.maximum(distance, 1e-9)
        if not missing.any():
            break
        positions = positions + 0.3 * (missing[..., None] * offset).sum(axis=1)
    return positions


def centred(positions: Floats) -> Floats:
    """Move positions so that the middle of their bounding box is the origin."""
    return positions - (positions.max(axis=0) + positions.min(axis=0)) / 2


def _distances(links: csr_matrix) -> Floats:
    """Return the distance between any two nodes; between components, the longest distance plus two."""
    steps: Floats = shortest_path(links, directed=False, unweighted=True)
    apart = steps[np.isfinite(steps)].max() + 2.0
    steps[~np.isfinite(steps)] = apart
    return steps


def _tree_around(links: csr_matrix, root: int) -> Floats:
    """Return start positions: one ring around the root per hop. The angle of a branch is proportional to its leaves."""
    size = links.shape[0]
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
