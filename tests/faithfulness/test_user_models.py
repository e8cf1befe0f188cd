"""Models as people write them: which the exact engine serves, which go to copies and why, and that all stay intact."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import GAT, GATConv, MessagePassing
from torch_geometric.utils import softmax

from attree.attention import Graph
from attree.attribution import subgraph_pairs
from attree.errors import ArgumentError, UnsupportedModelError
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reducer, WholeReducer
from attree.faithfulness.exact import LayerAlgebra, States, register_algebra
from attree.faithfulness.exact.convolution_algebra import ALGEBRAS
from attree.subject.model_call import NotRowwiseError
from helpers import user_models
from helpers.attention_models import snapshot
from helpers.graphs import NODES, messy_graph, randomize
from helpers.no_warnings import no_warnings
from helpers.one_pass_each import reduced_outputs
from helpers.reducers import any_pass, copies_pass, exact_pass, subject_of, whole_pass

EDGES = messy_graph(1)
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(NODES, user_models.IN, generator=GENERATOR).double()
FURTHER = {
    "edge_attr": torch.randn(EDGES.shape[1], 3, generator=GENERATOR).double(),
    "scale": torch.rand(NODES, 1, generator=GENERATOR).double(),
}
# Several self-loops of one node are one edge of the looped graph: they have the same features.
FURTHER["edge_attr"][EDGES[0] == EDGES[1]] = 0.5
DEPTHS = {"mixed": 3, "own loops": 1}
SERVED, REFUSED = user_models.served(NODES), user_models.refused()


def assert_as_one_pass_each(
    reducer: Any, model: nn.Module, x: Tensor, edge_index: Tensor, depth: int = 2, **kwargs: Tensor
) -> None:
    graph = Graph(EDGES, NODES)
    pairs = subgraph_pairs(graph, torch.tensor([0, 5, 9, 10]), depth)
    for name, protocol in PROTOCOLS.items():
        reduction = reducer.reduce(pairs, protocol, with_probability=True)
        after = (
            torch.stack(reduced_outputs(model, graph.edge_index, name, x, edge_index, **kwargs)).double().softmax(-1)
        )
        expected = after[pairs.edges, pairs.targets[pairs.owner]]
        tolerance = 1e-9 if x.dtype == torch.float64 or not x.is_floating_point() else 1e-4
        torch.testing.assert_close(reduction.probability, expected, rtol=0, atol=tolerance)
        assert float(reduction.delta_pc.abs().max()) > 1e-3


@pytest.mark.parametrize("name", list(SERVED))
def test_served(name: str) -> None:
    model, further = SERVED[name]
    model = randomize(model, 4, scale=0.5).double().eval()
    kwargs = {key: FURTHER[key] for key in further if key in FURTHER}
    x = torch.arange(NODES) if "ids" in further else X
    with no_warnings():
        reducer = any_pass(model, x, EDGES, **kwargs)
    assert isinstance(reducer.engine_for(PROTOCOLS["weight"]), ExactReducer)
    assert_as_one_pass_each(reducer, model, x, EDGES, DEPTHS.get(name, 2), **kwargs)
    assert isinstance(reducer.engine_for(PROTOCOLS["removal"]), ExactReducer)


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_with_the_reason(name: str) -> None:
    model, reason = REFUSED[name]
    model = randomize(copy.deepcopy(model), 4, scale=0.5).double().eval()
    with pytest.raises(NotRowwiseError, match=reason):
        exact_pass(model, X, EDGES)


def test_copies_take_over_and_say_why() -> None:
    model = randomize(user_models.refused()["subclass"][0], 4).double().eval()
    reducer = any_pass(model, X, EDGES)
    with pytest.warns(UserWarning, match=r"OneLayer is reduced by .* copies .* layer Doubled is not known"):
        assert_as_one_pass_each(reducer, model, X, EDGES, depth=1)
    assert isinstance(reducer.engine, CopiesReducer)


def test_a_convolution_that_is_asked_for_its_attention_is_served_by_rows() -> None:
    model = randomize(user_models.Asked(), 4).double().eval()
    reducer = any_pass(model, X, EDGES)
    assert isinstance(reducer.engine, ExactReducer)
    assert_as_one_pass_each(reducer, model, X, EDGES, depth=1)


def test_self_loops_of_different_features_go_to_copies() -> None:
    model, features = randomize(user_models.Mixed(), 4, scale=0.5).double().eval(), FURTHER["edge_attr"].clone()
    features[EDGES[0] == EDGES[1]] = torch.arange(int((EDGES[0] == EDGES[1]).sum())).unsqueeze(-1).double()
    reducer = any_pass(model, X, EDGES, edge_attr=features, scale=FURTHER["scale"])
    with pytest.warns(UserWarning, match="several self-loops at one node"):
        assert_as_one_pass_each(reducer, model, X, EDGES, 3, edge_attr=features, scale=FURTHER["scale"])


@pytest.mark.parametrize("name", ["graph norm", "pooling", "graph-wide layer norm", "pair norm"])
def test_what_neither_rows_nor_copies_serve_takes_a_pass_for_each_edge(name: str) -> None:
    model = randomize(copy.deepcopy(REFUSED[name][0]), 4).double().eval()
    reducer = Reducer(subject_of(model, X, EDGES))
    with pytest.warns(UserWarning, match=r"one pass over the whole graph for each edge.*copies .* norms or pooling"):
        assert_as_one_pass_each(reducer.record(), model, X, EDGES)
    assert isinstance(reducer.engine, WholeReducer)


def test_a_model_that_draws_random_numbers_is_refused() -> None:
    model = randomize(copy.deepcopy(REFUSED["noise"][0]), 4).double()
    pairs = subgraph_pairs(Graph(EDGES, NODES), torch.tensor([9]), 2)
    recorded = any_pass(model, X, EDGES)
    with pytest.raises(UnsupportedModelError, match="draws random numbers"), pytest.warns(match="copies"):
        recorded.reduce(pairs, PROTOCOLS["weight"])


def test_a_gate_that_opens_later_is_noticed() -> None:
    """The sum over all nodes is multiplied by 0 when the model is first looked at."""
    model = randomize(user_models.Bent(user_models.AddPool()), 4).double()
    nn.init.zeros_(model.bend.gate)
    pairs = subgraph_pairs(Graph(EDGES, NODES), torch.tensor([0]), 2)
    reducer = Reducer(subject_of(model, X, EDGES))
    reducer.record().reduce(pairs, PROTOCOLS["weight"])
    assert isinstance(reducer.engine, ExactReducer)
    nn.init.ones_(model.bend.gate)
    with pytest.warns(UserWarning, match="the operations between"):
        assert_as_one_pass_each(reducer.record(), model.eval(), X, EDGES)
    assert isinstance(reducer.engine, WholeReducer)


def test_a_gate_hides_no_call() -> None:
    """Which call feeds which is what the code says, even if a weight is 0 at first."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = GATConv(user_models.IN, 5), GATConv(5, user_models.OUT)
            self.lift, self.gate = nn.Linear(user_models.IN, 5), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.last(self.lift(x) + self.gate * self.first(x, edge_index), edge_index)

    model = randomize(Gated(), 4).double().eval()
    nn.init.zeros_(model.gate)
    reducer = ExactReducer(subject_of(model, X, EDGES))
    reducer.record()
    nn.init.ones_(model.gate)
    assert_as_one_pass_each(reducer.record(), model, X, EDGES)


def test_features_in_float32_with_an_encoder_and_a_skip() -> None:
    model = randomize(user_models.Twice(), 4, scale=0.5).eval()
    reducer = any_pass(model, X.float(), EDGES)
    assert isinstance(reducer.engine, ExactReducer)
    assert reducer.attention.output.dtype == torch.float64
    assert_as_one_pass_each(reducer, model, X.float(), EDGES)


def test_compiled_parallel_and_training_models() -> None:
    model = randomize(GAT(user_models.IN, 6, 2, user_models.OUT, dropout=0.5), 4).double().train()
    expected = exact_pass(model, X, EDGES)
    pairs = subgraph_pairs(Graph(EDGES, NODES), torch.arange(NODES), 2)
    reduction = expected.reduce(pairs, PROTOCOLS["removal"])
    for wrapped in (torch.compile(model), nn.DataParallel(model), OneCall(torch.compile(model))):
        reducer = any_pass(wrapped, X, EDGES)
        assert isinstance(reducer.engine, ExactReducer)
        torch.testing.assert_close(reducer.reduce(pairs, PROTOCOLS["removal"]).delta_pc, reduction.delta_pc)
    assert model.training


class OneCall(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.model(x, edge_index)


def test_edge_index_with_metadata() -> None:
    model = randomize(GAT(user_models.IN, 6, 2, user_models.OUT), 4).double().eval()
    reducer = any_pass(model, X, EdgeIndex(EDGES, sparse_size=(NODES, NODES)))
    assert isinstance(reducer.engine, ExactReducer)
    assert_as_one_pass_each(reducer, model, X, EDGES)


class Breaking(nn.Module):
    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = GATConv(user_models.IN, 5), GATConv(5, user_models.OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(x, edge_index)
        if self.fails:
            raise RuntimeError("while reducing")
        return self.last(x, edge_index)


def test_models_are_left_as_they_were_even_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomize(Breaking(), 3).train()
    model.last.eval()
    parameters, before = list(model.parameters()), snapshot(model)
    pairs = subgraph_pairs(Graph(EDGES, NODES), torch.tensor([0]), 2)
    reducer = exact_pass(model, X.float(), EDGES)
    assert snapshot(model) == before
    with monkeypatch.context() as broken:
        broken.setattr(Breaking, "fails", True)
        with pytest.raises(RuntimeError, match="while reducing"):
            reducer.reduce(pairs, PROTOCOLS["removal"])
    reduction = reducer.reduce(pairs, PROTOCOLS["removal"])
    assert not reduction.delta_pc.requires_grad
    assert snapshot(model) == before
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))


class DotConv(MessagePassing):
    """A user's own attention convolution, of values gated by edges."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.heads, self.out_channels, self.concat, self.bias = 1, out_channels, True, None
        self.lin, self.gate = nn.Linear(in_channels, out_channels), nn.Linear(3, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x), edge_attr=edge_attr)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor, index: Tensor, size_i: int) -> Tensor:
        weight = softmax((x_i * x_j).sum(dim=-1), index, num_nodes=size_i).unsqueeze(-1)
        return x_j * self.gate(edge_attr) * weight


class DotAlgebra(LayerAlgebra):
    edge_in_value = True

    def project(self, h: Tensor) -> States:
        value = self.by_head(self.conv.lin, h)
        return States(value, value, value)

    def project_edges(self, features: Tensor) -> Tensor:
        return self.by_head(self.conv.gate, features)

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return (source * target).sum(dim=-1)

    def value(self, value: Tensor, edge: Tensor) -> Tensor:
        return value * edge


class OwnNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = DotConv(user_models.IN, 5), DotConv(5, user_models.OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index, edge_attr).tanh(), edge_index, edge_attr)


def test_users_add_the_algebra_of_their_own_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(ALGEBRAS):
        monkeypatch.setitem(ALGEBRAS, name, ALGEBRAS[name])
    proper = EDGES[:, EDGES[0] != EDGES[1]]
    model, features = randomize(OwnNet(), 4, scale=0.5).double(), FURTHER["edge_attr"][: proper.shape[1]]
    copies, pairs = any_pass(model, X, proper, edge_attr=features), subgraph_pairs(Graph(proper, NODES), "all", 2)
    with pytest.warns(UserWarning, match="layer DotConv is not known"):
        copies.reduce(pairs, PROTOCOLS["weight"])
    monkeypatch.setitem(ALGEBRAS, DotConv, DotAlgebra)  # put back after the test
    register_algebra(DotConv, DotAlgebra)
    exact = any_pass(model, X, proper, edge_attr=features)
    assert isinstance(exact.engine, ExactReducer)
    for protocol in PROTOCOLS.values():
        expected = copies.reduce(pairs, protocol)
        torch.testing.assert_close(exact.reduce(pairs, protocol).delta_pc, expected.delta_pc, rtol=0, atol=1e-10)
        assert float(expected.delta_pc.abs().max()) > 1e-3


def test_an_algebra_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGEBRAS, GATConv, ALGEBRAS[GATConv])

    class Wrong(ALGEBRAS[GATConv]):
        def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
            return super().score(source, target, edge) * 1.001

    register_algebra(GATConv, Wrong)
    with pytest.raises(NotRowwiseError, match="computes something else"):
        exact_pass(randomize(GAT(user_models.IN, 6, 2, user_models.OUT), 4).double(), X, EDGES)


@pytest.mark.parametrize("make", [exact_pass, copies_pass, whole_pass, any_pass])
def test_pairs_of_another_depth_or_graph_are_refused(make: Any) -> None:
    reducer = make(randomize(GAT(user_models.IN, 6, 2, user_models.OUT), 4).double(), X, EDGES)
    graph = Graph(EDGES, NODES)
    with pytest.raises(ArgumentError, match="a network of 2 layers"):
        reducer.reduce(subgraph_pairs(graph, torch.tensor([0]), 1), PROTOCOLS["weight"])
    other = Graph(EDGES[:, 1:], NODES)
    with pytest.raises(ArgumentError, match="another graph"):
        reducer.reduce(subgraph_pairs(other, torch.tensor([0]), 2), PROTOCOLS["weight"])


def test_what_is_registered_is_checked() -> None:
    with pytest.raises(ArgumentError, match="`conv`"):
        register_algebra(nn.Linear, DotAlgebra)
    with pytest.raises(ArgumentError, match="`algebra`"):
        register_algebra(DotConv, nn.Linear)
