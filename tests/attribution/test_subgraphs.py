"""Batches of neighbourhoods give the scores of the full graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import GAT, GATConv, GATv2Conv, GPSConv, TransformerConv
from torch_geometric.utils import k_hop_subgraph

from attree.attention import Graph, capture_attention
from attree.attribution import Attribution, attribute_subgraphs, make_methods, stream_subgraphs
from attree.subject import Part


class Net(nn.Module):
    """Layers of one kind; `edge_attr` and a per-node argument go along if given."""

    def __init__(self, conv: Any, num_layers: int, **options: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList(conv(3, 3, heads=2, concat=False, **options) for _ in range(num_layers))

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        x = x if bias is None else x + bias
        for conv in self.convs:
            x = F.elu(conv(x, edge_index, edge_attr=edge_attr))
        return x


def assert_same(result: Attribution, expected: Attribution) -> None:
    assert torch.equal(result.graph.edge_index, expected.graph.edge_index)
    assert torch.equal(result.targets, expected.targets)
    assert torch.equal(result.ptr, expected.ptr)
    assert torch.equal(result.edges, expected.edges)
    torch.testing.assert_close(result.scores, expected.scores, rtol=1e-9, atol=1e-12)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equal_the_full_graph(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=16))
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    if data.draw(st.booleans()):
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    conv, options = data.draw(
        st.sampled_from([(GATConv, {}), (GATv2Conv, {"add_self_loops": False}), (TransformerConv, {})])
    )
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    model = Net(conv, data.draw(st.integers(1, 4)), **options).double()
    x = torch.randn(num_nodes, 3, dtype=torch.float64)
    targets = torch.tensor(data.draw(st.lists(node, min_size=1, unique=True)))
    memory = data.draw(st.sampled_from([1, 2000, 2**28]))
    attention = capture_attention(model, x, edge_index)
    for method in make_methods(["gatt", "gatt_sim", "gatt_avg", "avgatt"]).values():
        expected = method.attribute(attention, targets)
        assert_same(attribute_subgraphs(method, model, x, edge_index, targets, memory=memory), expected)


def larger() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(300, 3, generator=generator, dtype=torch.float64),
        torch.randint(300, (2, 500), generator=generator),
    )


def test_node_and_edge_arguments_are_cut_along() -> None:
    x, edge_index = larger()
    torch.manual_seed(0)
    model = Net(GATv2Conv, 3, edge_dim=2).double()
    arguments = {"edge_attr": torch.randn(500, 2).double(), "bias": torch.randn(300, 1).double()}
    (method,) = make_methods(["gatt"]).values()
    expected = method.attribute(capture_attention(model, x, edge_index, **arguments))
    assert_same(attribute_subgraphs(method, model, x, edge_index, memory=10_000, **arguments), expected)


def test_arguments_that_may_be_of_nodes_or_of_edges_must_say_so() -> None:
    class Weighted(Net):
        def forward(self, x: Tensor, edge_index: Tensor, w: Tensor | None = None, **kwargs: Any) -> Tensor:
            return super().forward(x, edge_index, edge_attr=w, **kwargs)

    x, edge_index = larger()
    model = Weighted(GATConv, 2, edge_dim=1).double()
    (method,) = make_methods(["gatt"]).values()
    ring = torch.stack([torch.arange(300), torch.arange(300).roll(1)])
    with pytest.raises(ValueError, match="`w` to say by its name whether it is of nodes or of edges"):
        attribute_subgraphs(method, model, x, ring, w=torch.randn(300, 1).double())
    w = torch.randn(500, 1).double()
    expected = method.attribute(capture_attention(model, x, edge_index, w=w))
    assert_same(attribute_subgraphs(method, model, x, edge_index, memory=10_000, w=w), expected)


def test_batches_see_only_their_neighbourhoods() -> None:
    x, edge_index = larger()
    model = Net(GATConv, 2).double()
    sizes: list[int] = []
    model.convs[0].register_forward_pre_hook(lambda conv, inputs: sizes.append(len(inputs[0])))
    (method,) = make_methods(["gatt"]).values()
    parts = list(stream_subgraphs(method, model, x, edge_index, memory=10_000))
    assert len(parts) > 10
    # One pass more to find the layers, and two to check that parts of the graph will do.
    assert len(sizes) == len(parts) + 3
    assert max(sizes) < 300
    assert [target for part in parts for target in part.targets.tolist()] == list(range(300))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20), st.integers(1, 4), st.data())
def test_neighbourhood_is_pygs_subgraph_without_edges_into_its_rim(
    edges: list[tuple[int, int]], hops: int, data: st.DataObject
) -> None:
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    targets = torch.tensor(data.draw(st.lists(st.integers(0, 7), min_size=1, unique=True)))
    ball = Part.around(Graph(edge_index, 8), targets, hops)
    nodes = k_hop_subgraph(targets, hops, edge_index, num_nodes=8)[0]
    inner = k_hop_subgraph(targets, hops - 1, edge_index, num_nodes=8)[0] if hops > 1 else targets
    assert torch.equal(ball.node, nodes.sort().values)
    assert torch.equal(ball.edge, torch.isin(edge_index[1], inner).nonzero().view(-1))
    assert torch.equal(ball.node[ball.edge_index], edge_index[:, ball.edge])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(3, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.conv(x, edge_index), edge_index)


class WithAuxiliary(Tied):
    """A second head that the output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = GATConv(3, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.auxiliary(x, edge_index)
        return super().forward(x, edge_index)


@pytest.mark.parametrize("model_class", [Tied, WithAuxiliary])
def test_layers_are_counted_by_what_the_output_depends_on(model_class: type[Tied]) -> None:
    x, edge_index = larger()
    model = model_class().double()
    methods = make_methods(["gatt", "random"])
    expected = methods["gatt"].attribute(capture_attention(model, x, edge_index))
    assert_same(attribute_subgraphs(methods["gatt"], model, x, edge_index, memory=5000), expected)
    assert_same(attribute_subgraphs(methods["gatt"], model, x, edge_index, num_layers=2, memory=50_000), expected)
    with pytest.raises(ValueError, match="`num_layers` to be the number of attention layers, 2, but got 1"):
        attribute_subgraphs(methods["gatt"], model, x, edge_index, num_layers=1)
    with pytest.raises(ValueError, match="`num_layers` to be an integer >= 1, but got 0"):
        attribute_subgraphs(methods["gatt"], model, x, edge_index, num_layers=0)
    with pytest.raises(ValueError, match="one that reads attention"):
        attribute_subgraphs(methods["random"], model, x, edge_index)


@pytest.mark.parametrize("memory", [1, 5000, 10**6], ids=["one by one", "few", "many"])
@pytest.mark.parametrize("norm", ["layer_norm", "graph_norm", "pair_norm"])
def test_norms_over_the_whole_graph_are_refused(norm: str, memory: int) -> None:
    x, edge_index = larger()
    torch.manual_seed(0)
    model = GAT(3, 4, 2, 2, norm=norm).double()
    (method,) = make_methods(["gatt"]).values()
    with pytest.raises(TypeError, match=r"Expected GAT to attend .* paths that bypass attention, such as norms"):
        attribute_subgraphs(method, model, x, edge_index, range(20), memory=memory)


def test_global_attention_is_refused() -> None:
    class Global(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = GPSConv(4, GATConv(4, 4), heads=2, norm=None)
            self.second = GPSConv(4, GATConv(4, 4), heads=2, norm=None)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(self.first(F.pad(x, (0, 1)), edge_index), edge_index)

    x, edge_index = larger()
    (method,) = make_methods(["gatt"]).values()
    with pytest.raises(TypeError, match="Expected Global to attend"):
        attribute_subgraphs(method, Global().double(), x, edge_index, [1, 2, 3])


def test_norms_of_each_node_and_of_training_are_served() -> None:
    x, edge_index = larger()
    model = GAT(3, 4, 3, 2, norm="batch", jk="max").double()
    (method,) = make_methods(["gatt"]).values()
    expected = method.attribute(capture_attention(model, x, edge_index))
    assert_same(attribute_subgraphs(method, model, x, edge_index, memory=10_000), expected)


def test_any_network_will_do_where_one_part_is_the_full_graph() -> None:
    x, nodes = larger()[0], torch.arange(300)
    ring = torch.stack([nodes, nodes.roll(1)])
    model = GAT(3, 4, 2, 2, norm="graph_norm").double()
    (method,) = make_methods(["gatt"]).values()
    assert_same(attribute_subgraphs(method, model, x, ring), method.attribute(capture_attention(model, x, ring)))
    with pytest.raises(TypeError, match="Expected GAT to attend"):
        attribute_subgraphs(method, model, x, ring, memory=10_000)


def test_ids_of_nodes_and_pygs_edge_index() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.net = nn.Embedding(300, 3), Net(GATConv, 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.net(self.table(x), edge_index)

    _, edge_index = larger()
    model = Table().double()
    (method,) = make_methods(["gatt"]).values()
    expected = method.attribute(capture_attention(model, torch.arange(300), edge_index))
    pygs = EdgeIndex(edge_index, sparse_size=(300, 300))
    result = attribute_subgraphs(method, model, torch.arange(300), pygs, memory=10_000)
    assert_same(result, expected)
    nothing = attribute_subgraphs(method, model, torch.arange(300), pygs, [])
    assert nothing.edges.dtype == torch.int64
    assert nothing.scores.is_floating_point()


def test_graphs_of_several_kinds_are_refused() -> None:
    (method,) = make_methods(["gatt"]).values()
    with pytest.raises(TypeError, match="but got a heterogeneous one"):
        attribute_subgraphs(method, Tied(), {"a": torch.ones(2, 3)}, {("a", "to", "a"): torch.zeros(2, 0).long()})


def test_progress_and_empty_target_lists(capsys: pytest.CaptureFixture[str]) -> None:
    x, edge_index = larger()
    (method,) = make_methods(["gatt"]).values()
    result = attribute_subgraphs(method, Tied().double(), x, edge_index, [1, 2], num_layers=2, progress=True)
    assert result.targets.tolist() == [1, 2]
    assert "2/2" in capsys.readouterr().out
    nothing = attribute_subgraphs(method, Tied().double(), x, edge_index, [], num_layers=2)
    assert (len(nothing), nothing.ptr.tolist()) == (0, [0])
