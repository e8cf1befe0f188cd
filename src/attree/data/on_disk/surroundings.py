"""Cut the neighbourhood of some targets out of a graph on disk.

The output of an L-layer network for a node depends on the edges that enter the nodes within L - 1 hops of it, and on
the nodes within L hops. How large that is, is counted before it is read: the number of edges that enter a node is the
difference of two pointers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from attree.data.on_disk.graph import OnDiskGraph
from attree.errors import ArgumentError, expect

CANDIDATES = 256
"""Number of nodes from which those with few edges around them are taken."""

PROBE_EDGES = 2**14
"""A neighbourhood with more edges than this is no probe."""


class TooLargeError(ArgumentError):
    """Raised if the neighbourhood of a target does not fit into the memory budget."""


@dataclass(frozen=True)
class Surroundings:
    """Nodes and edges around some targets, in the order of the whole graph.

    Attributes:
        nodes: Ids of the nodes, ascending.
        edge_index: Edges as positions in `nodes`, [2, edges]; grouped by destination.
        edges: Position of each edge among the edges of the folder, ascending.
    """

    nodes: np.ndarray
    edge_index: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True)
class Room:
    """How much of a graph fits into memory while a model runs on it.

    Attributes:
        memory: The bytes.
        per_node: Bytes that a node takes.
        per_edge: Bytes that an edge takes.
    """

    memory: float
    per_node: float = 0.0
    per_edge: float = 0.0

    def bytes(self, nodes: int, edges: int) -> float:
        """Return the bytes that so many nodes and edges take."""
        return nodes * self.per_node + edges * self.per_edge

    def check(self, targets: np.ndarray, hops: int, nodes: int, edges: int) -> None:
        """Raise if the neighbourhood of some targets does not fit."""
        if self.bytes(nodes, edges) > self.memory:
            who = f"node {int(targets[0])}" if targets.size == 1 else f"{targets.size:,} nodes"
            raise TooLargeError(
                f"Expected the neighbourhood of {who} to fit into {_size(self.memory)}, but it has at least "
                f"{nodes:,} nodes and {edges:,} edges within {hops} hop{'' if hops == 1 else 's'}, which take "
                f"{_size(self.bytes(nodes, edges))}: raise `memory` of the graph, or leave the target out."
            )


def room_of(graph: OnDiskGraph, model: nn.Module) -> Room:
    """Return how much fits into the budget of a graph, by rough sizes of a pass of a model in the exact engine.

    A node takes its attributes, its features in float64 twice, and eight rows of the widest layer in float64. An edge
    takes its ids, its attributes, and four messages of the widest layer in float64.
    """
    widest = max((weight.shape[0] for weight in model.parameters() if weight.dim() >= 2), default=0)
    sizes = {"node": 0.0, "edge": 0.0}
    for name, of in graph.attributes.items():
        kind, width = read_type(graph, name, model), math.prod(graph.array(name).shape[1:])
        sizes[of] += width * (graph.array(name).dtype.itemsize if kind is None else kind.itemsize + 16)
    return Room(graph.memory, 64 + sizes["node"] + 64 * widest, 160 + sizes["edge"] + 32 * widest)


def read_type(graph: OnDiskGraph, name: str, model: nn.Module) -> torch.dtype | None:
    """Return the type in which a model reads an attribute: features in the model's type; None for that of the file."""
    if name == "y" or graph.array(name).dtype.kind != "f":
        return None
    return next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)


def sparse_nodes(graph: OnDiskGraph) -> np.ndarray:
    """Return some nodes that have edges around them, those with the fewest first."""
    count = graph.num_nodes
    expect(count > 0, "graph", "one with nodes", "one without")
    nodes = np.unique(np.linspace(0, count - 1, min(CANDIDATES, count)).round().astype(np.int64))
    degrees = graph.degrees(nodes)
    # A node without edges shows nothing of a model; three edges are as good as one, and more likely distinct.
    return nodes[np.lexsort((nodes, degrees == 0, np.where(degrees == 0, 2**62, np.maximum(degrees, 3))))]


def probe_nodes(graph: OnDiskGraph, hops: int, most: int) -> np.ndarray:
    """Return a few nodes whose neighbourhoods are small, for experiments; if there are none, one with few edges."""
    nodes, room, probes = sparse_nodes(graph), Room(PROBE_EDGES, per_edge=1.0), []
    for node in nodes.tolist():
        try:
            cut_out(graph, np.array([node]), hops, closed=False, room=room)
        except TooLargeError:
            continue
        probes.append(node)
        if len(probes) == most:
            break
    return np.array(probes or nodes[:1].tolist(), dtype=np.int64)


def cut_out(graph: OnDiskGraph, targets: np.ndarray, hops: int, *, closed: bool, room: Room) -> Surroundings:
    """Return the nodes within some hops of targets, against the direction of edges, and the edges among them.

    Args:
        graph: The graph.
        targets: Ids of nodes, ascending and distinct.
        hops: Number of hops.
        closed: Also take the edges that enter nodes at exactly this distance, if they start at a node that is taken.
            Otherwise, only the edges that enter nodes nearer than this.
        room: Bounds the size; it is checked before edges are read.
    """
    nodes = outer = targets
    sources, places, owners = [], [], []
    total = 0
    for hop in range(hops + closed):
        degrees = graph.degrees(outer)
        is_rim = hop == hops
        room.check(targets, min(hop + 1, hops), nodes.size, total + (0 if is_rim else int(degrees.sum())))
        for part in _parts(outer, degrees):
            source, sizes, place = graph.edges_into(part)
            owner = np.repeat(part, sizes)
            if is_rim:
                inside = _is_in(nodes, source)
                source, owner, place = source[inside], owner[inside], place[inside]
            sources.append(source)
            places.append(place)
            owners.append(owner)
            total += source.size
        if not is_rim:
            reached = distinct(np.concatenate(sources[-len(_parts(outer, degrees)) :] or [targets[:0]]))
            outer = reached[~_is_in(nodes, reached)]
            nodes = np.sort(np.concatenate([nodes, outer]))
            room.check(targets, hop + 1, nodes.size, total)
    source, place, owner = (np.concatenate([*those, targets[:0]]) for those in (sources, places, owners))
    order = np.argsort(place, kind="stable")
    ends = np.stack([source[order], owner[order]])
    return Surroundings(nodes, np.searchsorted(nodes, ends), place[order])


def joined_cuts(cuts: Sequence[Surroundings]) -> Surroundings:
    """Return the nodes and edges of several neighbourhoods, each once, in the order of the whole graph."""
    if len(cuts) == 1:
        return cuts[0]
    nodes = distinct(np.concatenate([cut.nodes for cut in cuts]))
    edges, first = np.unique(np.concatenate([cut.edges for cut in cuts]), return_index=True)
    ends = np.concatenate([cut.nodes[cut.edge_index] for cut in cuts], axis=1)[:, first]
    return Surroundings(nodes, np.searchsorted(nodes, ends), edges)


PART_EDGES = 2**24
"""Edges that are read at once."""


def _parts(nodes: np.ndarray, degrees: np.ndarray) -> list[np.ndarray]:
    """Split nodes into groups that have at most `PART_EDGES` entering edges each, or are a single node."""
    if not nodes.size:
        return []
    number = degrees.cumsum() // PART_EDGES
    return np.split(nodes, np.flatnonzero(np.diff(number)) + 1)


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values, ascending; for integers this is much faster than `np.unique`."""
    ascending = np.sort(values)
    return ascending[np.r_[True, ascending[1:] != ascending[:-1]]] if ascending.size else ascending


def _is_in(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Whether each value is among some ascending ones."""
    if not ascending.size:
        return np.zeros(values.shape, dtype=bool)
    place = np.minimum(np.searchsorted(ascending, values), ascending.size - 1)
    return np.asarray(ascending[place] == values)


def _size(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.3g} MiB"
