from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GraphNorm, MessagePassing, global_max_pool, global_mean_pool
from torch_geometric.utils import softmax

from attree.attention import Graph
from attree.attribution import graph_pairs
from attree.errors import ArgumentError
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, ReductionProtocol, reduce_attention
from attree.subject.model_call import NotRowwiseError
from helpers.graphs import randomize
from helpers.one_pass_each import reduced_outputs
from helpers.reducers import any_pass, copies_pass, exact_pass

BATCH = torch.tensor([0, 0, 0, 0, 2, 2, 2, 3, 3, 3, 3, 3])
"""Graph 1 has no nodes."""
EDGES = torch.tensor([[0, 1, 1, 3, 0, 3, 4, 5, 7, 8, 9, 7, 7], [1, 2, 0, 3, 1, 1, 5, 6, 8, 9, 7, 9, 10]])


class GraphNet(nn.Module):
    def __init__(self, conv: type[MessagePassing], norm: bool) -> None:
        super().__init__()
        self.first, self.second = conv(4, 6, heads=2), conv(12, 5)
        self.norm = GraphNorm(12) if norm else None
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        x = x if self.norm is None else self.norm(x, batch)
        x = self.second(x, edge_index)
        size = 4 if batch.max() == 3 and batch.numel() == 12 else None
        return self.head(torch.cat([global_mean_pool(x, batch, size), global_max_pool(x, batch, size)], dim=-1))


def masked(
    net: GraphNet, x: Tensor, edge: int, graph: Graph, protocol: ReductionProtocol, patch: pytest.MonkeyPatch
) -> Any:
    """All class scores after one edge is reduced; both layers list edges as the looped graph does."""

    def reduced(src: Tensor, index: Tensor, *rest: object, **options: object) -> Tensor:
        if protocol is PROTOCOLS["coefficient"]:
            src = src.index_fill(0, torch.tensor([edge]), 0.0)
        if protocol is PROTOCOLS["removal"]:
            src = src.index_fill(0, torch.tensor([edge]), -1e30)
        out = softmax(src, index, *rest, **options)
        return out if protocol is PROTOCOLS["coefficient"] else out.index_fill(0, torch.tensor([edge]), 0.0)

    with patch.context() as context, torch.no_grad():
        for name in ("gat_conv", "gatv2_conv"):
            context.setattr(f"torch_geometric.nn.conv.{name}.softmax", reduced)
        return net(x, EDGES, BATCH).softmax(-1)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("conv", [GATConv, GATv2Conv])
@pytest.mark.parametrize("norm", [False, True])
def test_graphs_as_one_forward_pass_each(
    conv: type[MessagePassing], norm: bool, protocol: ReductionProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = randomize(GraphNet(conv, norm), 0, scale=0.4).double().eval()
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double()
    graph = Graph(EDGES, 12)
    pairs = graph_pairs(graph, BATCH)
    assert pairs.targets.tolist() == [0, 2, 3]
    assert sorted(pairs.edges.tolist()) == list(range(graph.num_edges))
    target = pairs.targets[pairs.owner]
    assert torch.equal(BATCH[graph.destination[pairs.edges]], target)
    expected = torch.stack(
        [masked(net, x, e, graph, protocol, monkeypatch)[v] for e, v in zip(pairs.edges.tolist(), target, strict=True)]
    )
    for memory in (1, 3_000, 2**29):
        reducer = copies_pass(net, x, EDGES, graph=graph, memory=memory, batch=BATCH)
        reduction = reducer.reduce(pairs, protocol, with_probability=True)
        assert reduction.probability is not None
        torch.testing.assert_close(reduction.probability, expected, rtol=0, atol=1e-9)
    chosen = reduce_attention(net, x, EDGES, pairs, protocol, memory=3_000, batch=BATCH)
    torch.testing.assert_close(chosen.delta_pc, reduction.delta_pc, rtol=0, atol=1e-9)
    positional = reduce_attention(net, x, EDGES, pairs, protocol, BATCH)
    torch.testing.assert_close(positional.delta_pc, reduction.delta_pc, rtol=0, atol=1e-9)
    assert float(reduction.delta_pc.abs().max()) > 1e-3


class OneGraph(nn.Module):
    """Sums all nodes it is given: no argument says which graph they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = GATConv(4, 6), GATv2Conv(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.second(self.first(x, edge_index).relu(), edge_index).sum(dim=0, keepdim=True))


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
def test_one_graph_without_a_batch_as_one_forward_pass_each(protocol: ReductionProtocol) -> None:
    net = randomize(OneGraph(), 0, scale=0.4).double().eval()
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double()
    graph = Graph(EDGES, 12)
    pairs = graph_pairs(graph, torch.zeros(12, dtype=torch.int64))
    reduction = exact_pass(net, x, EDGES).reduce(pairs, protocol, with_probability=True)
    after = torch.cat(reduced_outputs(net, graph.edge_index, protocol.name, x, EDGES)).softmax(-1)
    torch.testing.assert_close(reduction.probability, after[pairs.edges], rtol=0, atol=1e-9)
    assert float(reduction.delta_pc.abs().max()) > 1e-3


def test_one_graph_with_something_between_its_layers_that_sees_all_of_it() -> None:
    net = randomize(OneGraph(), 0, scale=0.4).double()
    net.first = nn.Sequential(net.first)
    net.first.forward = lambda x, edge_index: (lambda out: out - out.mean(dim=0))(net.first[0](x, edge_index))
    with pytest.raises(NotRowwiseError, match="between its attention layers"):
        exact_pass(net, torch.randn(12, 4).double(), EDGES)


@pytest.mark.parametrize("norm", [False, True])
def test_the_exact_engine_takes_graphs_and_leaves_norms_of_graphs_to_copies(norm: bool) -> None:
    net = randomize(GraphNet(GATConv, norm), 0, scale=0.4).double()
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double()
    if not norm:
        assert isinstance(any_pass(net, x, EDGES, BATCH).engine, ExactReducer)
        return
    recorded, pairs = any_pass(net, x, EDGES, BATCH), graph_pairs(Graph(EDGES, 12), BATCH)
    with pytest.warns(UserWarning, match="an operation between its attention layers sees whole graphs"):
        recorded.reduce(pairs, PROTOCOLS["weight"])
    assert isinstance(recorded.engine, CopiesReducer)


def test_edges_between_graphs_are_refused() -> None:
    with pytest.raises(ArgumentError, match="edges between graphs"):
        graph_pairs(Graph(torch.tensor([[0], [1]]), 2), torch.tensor([0, 1]))
    with pytest.raises(ArgumentError, match="graph ids"):
        graph_pairs(Graph(EDGES, 12), BATCH[1:])
