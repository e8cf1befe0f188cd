"""Mini-batches of sampled neighbourhoods for one process of a run."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, NodeLoader

from attree.data.loading.neighbor_sampler import TorchNeighborSampler
from attree.data.loading.sharding import TrainingShard


def neighbor_loader(
    graph: Data,
    seeds: Tensor,
    num_neighbors: Sequence[int],
    batch_size: int,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    epoch: int = 0,
) -> NodeLoader:
    """Make a loader over this process's share of the seed nodes, in a new order every epoch.

    A batch is a `Data` of sampled nodes, the `batch_size` seeds first, with `x`, `y`, `edge_index` and `n_id`; only
    rows of sampled nodes are copied. With pyg-lib or torch-sparse the sampling is PyG's (which draws from the global
    random state), else `TorchNeighborSampler`'s.

    Args:
        graph: The whole graph, with x, edge_index and y.
        seeds: Ids of the nodes to train on, over all processes.
        num_neighbors: Edges to draw per node in each hop; -1 takes all.
        batch_size: Seeds per step and process.
        seed: Seed of the order and of the draws.
        rank: This process.
        world_size: Number of processes.
        num_workers: Number of processes that sample ahead of training.
        epoch: The first epoch.
    """
    slim = Data(x=graph.x, edge_index=graph.edge_index, y=graph.y)
    common = {"input_nodes": seeds, "batch_size": batch_size, "num_workers": num_workers}
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        shard = TrainingShard(seeds, rank, world_size, seed, epoch=epoch)
        return NeighborLoader(slim, list(num_neighbors), sampler=shard, generator=shard.generator, **common)
    neighbors = TorchNeighborSampler(graph.edge_index, graph.num_nodes, num_neighbors, seed=seed, rank=rank)
    shard = TrainingShard(seeds, rank, world_size, seed, neighbors, epoch)
    return NodeLoader(slim, neighbors, sampler=shard, generator=shard.generator, **common)
