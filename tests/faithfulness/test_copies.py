from __future__ import annotations

import pytest
import torch
from test_exact import KINDS, assert_as_brute_force, setting
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GraphNorm, RGATConv, global_add_pool
from torch_geometric.nn.models import GAT as PyGGAT

from attree.attention import Graph
from attree.attribution import subgraph_pairs
from attree.errors import ArgumentError, AttreeError, UnsupportedModelError
from attree.faithfulness import PROTOCOLS, ReductionProtocol, reduce_attention, resolve_protocol
from helpers import user_models
from helpers.graphs import NODES, messy_graph, randomize
from helpers.one_pass_each import reduced_outputs
from helpers.reducers import copies_pass, exact_pass


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_same_as_exact_and_as_one_forward_pass_each(kind: str, layers: int, protocol: ReductionProtocol) -> None:
    net, x, edge_index = setting(kind, layers, 2, seed=layers)
    net, x = net.double(), x.double()
    graph = Graph(edge_index, NODES)
    pairs = subgraph_pairs(graph, torch.tensor([10, 9, 0, 4]), layers)
    exact = exact_pass(net, x, graph.original_edge_index, graph=graph).reduce(pairs, protocol)
    for memory in (1, 5_000, 2**29):
        generic = copies_pass(net, x, edge_index, memory=memory).reduce(pairs, protocol, with_probability=True)
        torch.testing.assert_close(generic.delta_pc, exact.delta_pc, rtol=0, atol=1e-10)
        torch.testing.assert_close(generic.delta_ne, exact.delta_ne, rtol=0, atol=1e-10)
        assert torch.equal(generic.changed, exact.changed)
    assert_as_brute_force(generic, net, x, graph, protocol, 1e-10)


EDGES = messy_graph(1)
X = torch.randn(NODES, user_models.IN, generator=torch.Generator().manual_seed(0)).double()
FURTHER = {
    "edge_attr": torch.randn(EDGES.shape[1], 3, generator=torch.Generator().manual_seed(1)).double(),
    "scale": torch.rand(NODES, 1, generator=torch.Generator().manual_seed(2)).double(),
    "shift": 0.5,
}
USERS = {
    "mixed": (user_models.Mixed(), 3, ("edge_attr", "scale", "shift")),
    "PyG GAT": (PyGGAT(4, 6, 2, 3, heads=2, norm="batch", jk="cat"), 2, ()),
    "PyG GATv2": (PyGGAT(4, 6, 3, 3, v2=True, edge_dim=3, act="relu"), 3, ("edge_attr",)),
    "own loops": (user_models.OwnLoops(), 1, ()),
}


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("name", list(USERS))
def test_user_models_as_one_forward_pass_each(name: str, protocol: ReductionProtocol) -> None:
    """Also where several self-loops of one node have different edge features."""
    model, depth, further = USERS[name]
    model, kwargs = randomize(model, 4).double().eval(), {key: FURTHER[key] for key in further}
    graph = Graph(EDGES, NODES)
    pairs = subgraph_pairs(graph, torch.tensor([0, 5, 10]), depth)
    reducer = copies_pass(model, X, EDGES, memory=20_000, **kwargs)
    reduction = reducer.reduce(pairs, protocol, with_probability=True)
    after = torch.stack(reduced_outputs(model, graph.edge_index, protocol.name, X, EDGES, **kwargs)).softmax(-1)
    expected = after[pairs.edges, pairs.targets[pairs.owner]]
    torch.testing.assert_close(reduction.probability, expected, rtol=0, atol=1e-9)
    assert float(reduction.delta_pc.abs().max()) > 1e-3


class Changed(nn.Module):
    """A GAT whose output is bent by something that no subgraph shows."""

    def __init__(self, bend: nn.Module) -> None:
        super().__init__()
        self.conv, self.bend = GATConv(4, 3), bend

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.bend(self.conv(x, edge_index))


class AddPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + global_add_pool(x, None)


@pytest.mark.parametrize("bend", [GraphNorm(3), AddPool()], ids=["statistics", "pooling"])
@pytest.mark.parametrize("memory", [1, 2**29])
def test_models_that_see_more_than_the_neighbourhood_are_refused(bend: nn.Module, memory: int) -> None:
    x, edge_index = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(0)), messy_graph(1)
    pairs = subgraph_pairs(Graph(edge_index, NODES), torch.tensor([0]), 1)
    with pytest.raises(UnsupportedModelError, match=r"within reach of .*norms or pooling over nodes"):
        copies_pass(Changed(bend), x, edge_index, memory=memory).reduce(pairs, PROTOCOLS["weight"])


def test_a_model_that_mixes_copies_is_refused_even_if_one_subgraph_is_all() -> None:
    x, edge_index = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([[1, 2], [0, 0]])
    pairs = subgraph_pairs(Graph(edge_index, 3), torch.tensor([0]), 1)
    with pytest.raises(UnsupportedModelError, match="norms or pooling"):
        copies_pass(Changed(GraphNorm(3)), x, edge_index).reduce(pairs, PROTOCOLS["weight"])


class Returns(nn.Module):
    def __init__(self, what: object) -> None:
        super().__init__()
        self.conv, self.what = GATConv(4, 3), what

    def forward(self, x: Tensor, edge_index: Tensor) -> object:
        out = self.conv(x, edge_index)
        return {"tuple": (out, out), "rows": out[1:]}[str(self.what)]


@pytest.mark.parametrize(
    ("what", "sentence"), [("tuple", "one row of logits per node"), ("rows", "it returns outputs of chosen nodes only")]
)
def test_outputs_that_are_no_predictions_are_refused(what: str, sentence: str) -> None:
    with pytest.raises(AttreeError, match=sentence):
        copies_pass(Returns(what), torch.randn(NODES, 4), messy_graph(1))


class Relational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = RGATConv(4, 3, num_relations=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.conv(x, edge_index if x.shape[0] == NODES else edge_index.flip(1), edge_type)


def test_layers_that_score_other_edges_than_those_of_the_copies_are_refused() -> None:
    edge_index = messy_graph(1)
    kinds = torch.arange(edge_index.shape[1]) % 2
    pairs = subgraph_pairs(Graph(edge_index, NODES), torch.tensor([0]), 1)
    x = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnsupportedModelError, match="on a part of the graph its outputs differ"):
        copies_pass(Relational(), x, edge_index, kinds).reduce(pairs, PROTOCOLS["weight"])


class Failing(nn.Module):
    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.conv(x, edge_index)
        if self.fails:
            raise RuntimeError("while reducing")
        return out


def test_the_model_is_left_as_it_was_found_even_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Failing().train()
    model.conv.eval()
    before = dict(model.conv.__dict__)
    x, edge_index = torch.randn(NODES, 4), messy_graph(1)
    pairs = subgraph_pairs(Graph(edge_index, NODES), torch.tensor([0]), 1)
    reducer = copies_pass(model, x, edge_index)
    with monkeypatch.context() as broken:
        broken.setattr(Failing, "fails", True)
        with pytest.raises(RuntimeError, match="while reducing"):
            reducer.reduce(pairs, PROTOCOLS["removal"])
    assert model.training
    assert not model.conv.training
    assert model.conv.__dict__.keys() == before.keys()
    hooks = [name for name in before if name.endswith("hooks") and model.conv.__dict__[name]]
    assert hooks == []
    assert all(parameter.grad is None for parameter in model.parameters())
    reduction = reducer.reduce(pairs, PROTOCOLS["removal"])
    assert not reduction.delta_pc.requires_grad


def test_protocols_by_name() -> None:
    net, x, edge_index = setting("GAT", 2, 1, seed=1)
    v2, *_ = setting("GATv2", 2, 1, seed=1)
    assert resolve_protocol("authors", net) is PROTOCOLS["weight"]
    assert resolve_protocol("authors", v2) is PROTOCOLS["coefficient"]
    pairs = subgraph_pairs(Graph(edge_index, NODES), torch.tensor([0]), 2)
    named = reduce_attention(net, x, edge_index, pairs, "authors")
    assert torch.equal(named.delta_pc, reduce_attention(net, x, edge_index, pairs, "weight").delta_pc)
    with pytest.raises(ArgumentError, match="coefficient, weight, removal, authors"):
        reduce_attention(net, x, edge_index, pairs, "zero")
