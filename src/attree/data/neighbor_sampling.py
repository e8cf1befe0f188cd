"""Mini-batches of sampled neighbourhoods, also without pyg-lib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from attree.data.on_disk.graph import DiskEdges, DiskFeatures, OnDiskGraph
from attree.data.splits import EvaluationShard, TrainingShard
from attree.errors import expect, expect_int
from attree.tensors.arrays import pointers, row_of


class TorchNeighborSampler(BaseSampler):
    """Neighbourhood sampler in plain torch, for machines without pyg-lib.

    It samples as GraphSAGE does ("Inductive Representation Learning on Large Graphs", NeurIPS 2017). In each hop, every
    node that the previous hop reached first draws some of its incoming edges, or all of them if it has no more. A node
    that is reached twice is listed once and draws once. Nodes are listed in the order in which they are reached, seeds
    first, as `torch_geometric.loader.NodeLoader` expects.

    A draw of k out of d edges without replacement is a uniform k-subset, by Floyd's algorithm ("A Sample of
    Brilliance", 1987). It runs for all nodes of a hop at once: k steps of O(k) work per node, whatever its degree.

    The draws depend only on `seed`, `rank`, `epoch` and the batch, so they are the same for any number of loader
    workers and after resuming.

    Args:
        edge_index: Edges of the whole graph, [2, E]; the sampler keeps a copy, sorted by destination.
        num_nodes: Number of nodes.
        num_neighbors: Edges to draw per node in each hop; -1 takes all.
        replace: Draw with replacement: every node with incoming edges draws the full number.
        seed: Seed of the draws.
        rank: Rank of the process; each rank draws differently.
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        num_neighbors: Sequence[int],
        replace: bool = False,
        seed: int = 0,
        rank: int = 0,
    ) -> None:
        self._prepare(num_nodes, num_neighbors, replace, seed, rank)
        destination, self._permutation = edge_index[1].sort(stable=True)
        self._source = edge_index[0][self._permutation]
        self._ptr = pointers(destination.bincount(minlength=num_nodes))

    def _prepare(self, num_nodes: int, num_neighbors: Sequence[int], replace: bool, seed: int, rank: int) -> None:
        check_num_neighbors(num_neighbors)
        expect_int(seed, "seed")
        expect_int(rank, "rank")
        self.num_neighbors = list(num_neighbors)
        self.replace = replace
        self.seed = seed
        self.rank = rank
        self.epoch = 0
        # Position of each node in the current sample; -1 if absent. Only touched entries are cleared.
        self._place = torch.full((num_nodes,), -1)

    @property
    def edge_permutation(self) -> Tensor | None:
        """Position in `edge_index` of each sorted edge; samples refer to sorted edges. None for the same position."""
        return self._permutation

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; each epoch draws differently."""
        self.epoch = epoch

    def sample_from_nodes(self, inputs: NodeSamplerInput) -> SamplerOutput:
        """Sample the neighbourhoods of the seed nodes, which must be distinct."""
        seeds = inputs.node
        generator = self._generator(inputs)
        nodes, edges, sources, columns = [seeds], [], [], []
        num_nodes = self._list_new(seeds, 0)
        try:
            expect(num_nodes.numel() == seeds.numel(), "inputs", "distinct seed nodes", "some more than once")
            frontier, total = seeds, seeds.numel()
            for count in self.num_neighbors:
                owner, places = self._draw(frontier, count, generator)
                reached = self._sources(places)
                edges.append(places)
                sources.append(reached)
                columns.append(owner + (total - frontier.numel()))
                frontier = self._list_new(reached[self._place.index_select(0, reached) < 0], total)
                nodes.append(frontier)
                total += frontier.numel()
            row = self._place.index_select(0, torch.cat(sources))
        finally:
            for new_nodes in nodes:
                self._place.index_fill_(0, new_nodes, -1)
        return SamplerOutput(
            node=torch.cat(nodes),
            row=row,
            col=torch.cat(columns),
            edge=torch.cat(edges),
            num_sampled_nodes=[new_nodes.numel() for new_nodes in nodes],
            num_sampled_edges=[places.numel() for places in edges],
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: PyG's interface has this method, but this sampler samples from nodes only."""
        raise NotImplementedError(f"{type(self).__name__} samples from nodes only.")

    def _bounds(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the position of the first sorted edge that enters each node, and the number of these edges."""
        begin = self._ptr.index_select(0, nodes)
        return begin, self._ptr.index_select(0, nodes + 1) - begin

    def _sources(self, places: Tensor) -> Tensor:
        """Return the sources of some sorted edges."""
        return self._source.index_select(0, places)

    def _generator(self, inputs: NodeSamplerInput) -> torch.Generator:
        first = int(inputs.node[0] if inputs.input_id is None else inputs.input_id[0]) if inputs.node.numel() else 0
        state = np.random.SeedSequence((self.seed, self.rank, self.epoch, first)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]))

    def _list_new(self, reached: Tensor, total: int) -> Tensor:
        """Number unlisted nodes from `total` on, in the order in which they first appear, and return them."""
        position = torch.arange(reached.numel())
        # This finds the first position of each node without sorting: the smallest one written to its entry.
        self._place.scatter_reduce_(0, reached, position, "amin", include_self=False)
        new = reached[self._place.index_select(0, reached) == position]
        self._place[new] = torch.arange(total, total + new.numel())
        return new

    def _draw(self, nodes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw incoming edges of `nodes`; return the position of each edge's node, ascending, and the sorted edge."""
        begin, degree = self._bounds(nodes)
        if count < 0:
            return _first(begin, degree)
        if self.replace:
            drawing = (degree > 0).nonzero().view(-1)
            sizes = degree[drawing]
            offset = (torch.rand(count, sizes.numel(), dtype=torch.double, generator=generator) * sizes).long()
            return drawing.repeat_interleave(count), (begin[drawing] + offset).t().reshape(-1)
        owner, places = _first(begin, degree.clamp(max=count))
        exceeding = degree > count
        drawn_places = begin[exceeding] + _subsets(degree[exceeding], count, generator)
        # Each of these nodes has exactly `count` consecutive places, which are overwritten.
        return owner, places.masked_scatter_(exceeding.index_select(0, owner), drawn_places.t().contiguous())


class DiskNeighborSampler(TorchNeighborSampler):
    """A `TorchNeighborSampler` that reads the edges of a graph on disk: the same draws as in memory.

    In memory, it needs 8 bytes per node.

    Args:
        graph: The graph.
        num_neighbors: Edges to draw per node in each hop; -1 takes all.
        replace: Draw with replacement.
        seed: Seed of the draws.
        rank: Rank of the process.
    """

    def __init__(
        self, graph: OnDiskGraph, num_neighbors: Sequence[int], replace: bool = False, seed: int = 0, rank: int = 0
    ) -> None:
        self._prepare(graph.num_nodes, num_neighbors, replace, seed, rank)
        self._graph = graph

    @property
    def edge_permutation(self) -> None:
        """None: edges in the folder are sorted."""
        return None

    def _bounds(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        ends = self._graph.file("indptr").take(torch.cat([nodes, nodes + 1]))
        begin, end = ends.split(nodes.numel())
        return begin, end - begin

    def _sources(self, places: Tensor) -> Tensor:
        return self._graph.file("indices").take(places).long()


def _first(begin: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """List `begin[k] .. begin[k] + length[k] - 1` for every k; return the k of each number, and the numbers."""
    owner = row_of(length)
    first = begin - pointers(length)[:-1]
    return owner, torch.arange(owner.numel()).add_(first.index_select(0, owner))


def _subsets(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw a uniform subset of 0 .. d - 1 for every d in `sizes` (all above `count`), [count, len(sizes)].

    Floyd's algorithm: for i = d - k .. d - 1, draw t from 0 .. i; take t, or i if t is taken already.
    """
    subsets = torch.empty(count, sizes.numel(), dtype=torch.long)
    uniform = torch.rand(count, sizes.numel(), dtype=torch.double, generator=generator)
    for step in range(count):
        last = sizes - (count - step)
        draw = (uniform[step] * (last + 1)).long()
        is_taken = (subsets[:step] == draw).any(dim=0)
        subsets[step] = torch.where(is_taken, last, draw)
    return subsets


def check_num_neighbors(num_neighbors: Sequence[int], argument: str = "num_neighbors") -> None:
    """Raise unless the numbers of edges to draw in each hop are valid."""
    are_valid = len(num_neighbors) > 0 and all(count == -1 or count >= 1 for count in num_neighbors)
    expect(are_valid, argument, "integers >= 1, or -1 for all, one per hop", list(num_neighbors))


def neighbor_loader(
    graph: Data | OnDiskGraph,
    seeds: Tensor,
    num_neighbors: Sequence[int],
    batch_size: int,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
) -> NodeLoader:
    """Return a loader over this process's share of the seed nodes, in a new order every epoch.

    A batch is a `Data` of sampled nodes, the `batch_size` seeds first, with `x`, `y`, `edge_index` and `n_id`. Only the
    rows of sampled nodes are copied. If pyg-lib is installed, PyG samples a graph in memory (from the
    global random state), else `TorchNeighborSampler` does.

    Args:
        graph: The whole graph, with x, edge_index and y; or a graph on disk, of which only the sampled rows are read.
        seeds: Ids of the nodes to train on, over all processes.
        num_neighbors: Edges to draw per node in each hop; -1 takes all.
        batch_size: Seeds per step and process.
        seed: Seed of the order and of the draws.
        rank: This process.
        world_size: Number of processes.
        num_workers: Number of processes that sample ahead of training; of a graph on disk, they also read the features.
        epoch: The first epoch.
        shuffle: Whether the order is new every epoch, and processes get equally many seeds. Otherwise, each has every
            `world_size`-th seed, and draws the same in each epoch.
    """
    common: dict[str, Any] = {"input_nodes": seeds, "batch_size": batch_size, "num_workers": num_workers}
    columns: Data | tuple[DiskFeatures, DiskEdges]
    neighbors: TorchNeighborSampler | None
    if isinstance(graph, OnDiskGraph):
        columns = DiskFeatures(graph, ("x", "y")), DiskEdges(graph)
        neighbors = DiskNeighborSampler(graph, num_neighbors, seed=seed, rank=rank)
    else:
        # Workers send samples without features. To fetch features from memory that a worker filled takes as long as
        # to gather them; from a disk, workers read them ahead.
        common["filter_per_worker"] = False
        # Rows are copied ten times as fast from a tensor that stores them row by row.
        columns = Data(x=graph.x.contiguous(), edge_index=graph.edge_index, y=graph.y)
        neighbors = (
            None
            if typing.WITH_PYG_LIB
            else TorchNeighborSampler(graph.edge_index, graph.num_nodes, num_neighbors, seed=seed, rank=rank)
        )
    if shuffle:
        shard = TrainingShard(seeds, rank, world_size, seed, neighbors, epoch)
        common |= {"sampler": shard, "generator": shard.generator}
    else:
        common |= {"sampler": EvaluationShard(seeds, rank, world_size), "generator": torch.Generator()}
    if neighbors is None:
        return NeighborLoader(columns, list(num_neighbors), **common)
    return NodeLoader(columns, neighbors, **common)
