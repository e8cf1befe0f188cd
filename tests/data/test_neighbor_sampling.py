from __future__ import annotations

from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput
from torch_geometric.utils import k_hop_subgraph

from attree.data import TorchNeighborSampler
from attree.errors import ArgumentError


def random_graph(num_nodes: int, num_edges: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_nodes, (2, num_edges), generator=generator)


def sample(sampler: TorchNeighborSampler, seeds: Tensor) -> SamplerOutput:
    return sampler.sample_from_nodes(NodeSamplerInput(None, seeds))


@settings(max_examples=60, deadline=None)
@given(
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 150),
    counts=st.lists(st.sampled_from([-1, 1, 2, 3, 7]), min_size=1, max_size=3),
    replace=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_sample_obeys_the_definition(
    num_nodes: int, num_edges: int, counts: list[int], replace: bool, seed: int
) -> None:
    edge_index = random_graph(num_nodes, num_edges, seed)
    sampler = TorchNeighborSampler(edge_index, num_nodes, counts, replace, seed)
    seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))[: 1 + num_nodes // 4]
    out = sample(sampler, seeds)
    assert torch.equal(out.node[: seeds.numel()], seeds)
    assert out.node.unique().numel() == out.node.numel()
    # Every sampled edge is the edge of the graph that it claims to be.
    edges = sampler.edge_permutation[out.edge]
    assert torch.equal(out.node[out.row], edge_index[0, edges])
    assert torch.equal(out.node[out.col], edge_index[1, edges])
    degree = edge_index[1].bincount(minlength=num_nodes)
    begin_node, begin_edge, seen = 0, 0, set(seeds.tolist())
    sizes = zip(counts, out.num_sampled_nodes[:-1], out.num_sampled_nodes[1:], out.num_sampled_edges, strict=True)
    for count, num_frontier, num_new, num_drawn in sizes:
        frontier = range(begin_node, begin_node + num_frontier)
        hop = slice(begin_edge, begin_edge + num_drawn)
        drawn = out.col[hop].bincount(minlength=out.node.numel())
        for place in frontier:
            available = int(degree[out.node[place]])
            wanted = available if count == -1 else (count * (available > 0) if replace else min(count, available))
            assert int(drawn[place]) == wanted
        assert int(drawn.sum()) == int(drawn[frontier.start : frontier.stop].sum())
        if not replace or count == -1:
            assert edges[hop].unique().numel() == num_drawn
        new = [node for node in dict.fromkeys(out.node[out.row[hop]].tolist()) if node not in seen]
        assert out.node[frontier.stop : frontier.stop + num_new].tolist() == new
        seen.update(new)
        begin_node, begin_edge = frontier.stop, hop.stop
    assert bool((sampler._place == -1).all())


def test_all_neighbours_are_the_whole_neighbourhood() -> None:
    edge_index = random_graph(200, 400, seed=3)
    out = sample(TorchNeighborSampler(edge_index, 200, [-1, -1, -1]), torch.tensor([5, 90]))
    expected = k_hop_subgraph([5, 90], 3, edge_index, num_nodes=200)[0]
    assert out.node.sort().values.tolist() == expected.tolist()


@pytest.mark.parametrize(("degree", "count"), [(5, 4), (6, 3), (40, 2), (3, 1)])
def test_subsets_are_uniform(degree: int, count: int) -> None:
    """All subsets are equally likely, not only all edges: the definition of sampling without replacement."""
    stars = 20_000
    hub = torch.arange(stars).repeat_interleave(degree)
    leaf = stars + torch.arange(degree).repeat(stars)
    sampler = TorchNeighborSampler(torch.stack([leaf, hub]), stars + degree, [count], seed=11)
    out = sample(sampler, torch.arange(stars))
    chosen = (out.node[out.row] - stars).view(stars, count)
    assert torch.equal(out.col.view(stars, count)[:, 0], torch.arange(stars))
    key = (2 ** chosen.double()).sum(dim=1)
    _, observed = np.unique(key.numpy(), return_counts=True)
    observed = np.pad(observed, (0, comb(degree, count) - observed.size))
    assert chisquare(observed).pvalue > 1e-3


def test_draws_with_replacement_are_uniform() -> None:
    stars, degree = 20_000, 7
    hub = torch.arange(stars).repeat_interleave(degree)
    leaf = stars + torch.arange(degree).repeat(stars)
    sampler = TorchNeighborSampler(torch.stack([leaf, hub]), stars + degree, [2], replace=True, seed=11)
    chosen = (lambda out: (out.node[out.row] - stars).view(stars, 2))(sample(sampler, torch.arange(stars)))
    assert chisquare((chosen[:, 0] * degree + chosen[:, 1]).bincount(minlength=degree**2).numpy()).pvalue > 1e-3


def test_draws_depend_on_seed_rank_epoch_and_batch_alone() -> None:
    edge_index, seeds = random_graph(100, 3000, seed=0), torch.arange(10)

    def draw(seed: int = 0, rank: int = 0, epoch: int = 0, first: int = 0) -> list[int]:
        sampler = TorchNeighborSampler(edge_index, 100, [3, 3], seed=seed, rank=rank)
        sampler.set_epoch(epoch)
        sample(sampler, torch.arange(50, 60))
        return sampler.sample_from_nodes(NodeSamplerInput(torch.arange(first, first + 10), seeds)).edge.tolist()

    state = torch.get_rng_state()
    assert draw() == draw()
    different = [draw(), draw(seed=1), draw(rank=1), draw(epoch=1), draw(first=10)]
    assert len({tuple(edges) for edges in different}) == 5
    assert torch.equal(torch.get_rng_state(), state)


def test_under_the_loader_of_pyg_only_sampled_rows_are_copied() -> None:
    edge_index = random_graph(500, 4000, seed=1)
    data = Data(x=torch.arange(500.0).view(-1, 1), edge_index=edge_index, y=torch.arange(500))
    data.edge_attr = torch.arange(4000)
    sampler = TorchNeighborSampler(edge_index, 500, [4, 2])
    for workers in (0, 1):
        loader = NodeLoader(data, sampler, torch.arange(100, 150), batch_size=20, num_workers=workers)
        batches = list(loader)
        assert [batch.batch_size for batch in batches] == [20, 20, 10]
        for number, batch in enumerate(batches):
            assert batch.y[: batch.batch_size].tolist() == list(range(100 + 20 * number, min(120 + 20 * number, 150)))
            assert torch.equal(batch.x[:, 0], batch.n_id.float())
            assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.edge_attr])
            assert torch.equal(batch.e_id, batch.edge_attr)
            assert batch.num_nodes < 250
        drawn = [batch.e_id.tolist() for batch in batches]
        if workers == 0:
            alone = drawn
    assert drawn == alone


def test_bad_input_is_refused_and_leaves_no_trace() -> None:
    edge_index = random_graph(20, 60, seed=0)
    for counts in ([], [0], [3, -2]):
        with pytest.raises(ArgumentError, match="`num_neighbors`"):
            TorchNeighborSampler(edge_index, 20, counts)
    sampler = TorchNeighborSampler(edge_index, 20, [2])
    with pytest.raises(ArgumentError, match="distinct seed nodes"):
        sample(sampler, torch.tensor([3, 4, 3]))
    assert bool((sampler._place == -1).all())
    with pytest.raises(NotImplementedError, match="nodes only"):
        sampler.sample_from_edges(None)
