"""GAtt, its baselines and node scores of graph transformers, against walks over dense matrices from the definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, SGFormer
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention
from torch_geometric.nn.models import Polynormer

import attree
import reference
from attree.attention import DenseWeights, Mixing, register_global_attention
from attree.attribution import METHODS, attribute_nodes, subject_pairs
from attree.errors import UnsupportedModelError
from attree.subject import Subject
from helpers.graph_transformers import (
    CLASSES,
    EDGE,
    GPS,
    IN,
    WIDTH,
    Encoder,
    inputs_of,
    molecule,
    molecules,
    multihead_weights,
    seeded,
)

Matrix = list[list[float]]


def linear_weights(module: nn.Module, x: Tensor) -> Tensor:
    """The implied matrix of a linear attention over n nodes without padding, the mean over heads, by its formula."""
    n, heads = x.shape[0], module.heads
    if isinstance(module, SGFormerAttention):
        queries, keys = (lin(x).view(n, heads, -1) for lin in (module.q, module.k))
        queries, keys = (part / part.norm(dim=-1, keepdim=True) for part in (queries, keys))
        products = torch.einsum("ihm,jhm->hij", queries, keys) + n * torch.eye(n)
    elif isinstance(module, PerformerAttention):
        queries, keys = (lin(x).view(n, heads, -1) for lin in (module.q, module.k))
        queries, keys = (
            (part @ module.fast_attn.projection_matrix.t().to(x)).relu() + 0.001 for part in (queries, keys)
        )
        products = torch.einsum("ihm,jhm->hij", queries, keys)
    else:
        assert isinstance(module, PolynormerAttention)
        keys = module.k(x).sigmoid().view(n, -1, heads)
        queries = module.q(x).sigmoid().view(n, -1, heads)
        products = torch.einsum("imh,jmh->hij", queries, keys)
    return (products / products.sum(-1, keepdim=True)).mean(0)


def as_call(weights: Tensor, nodes: range) -> reference.Call:
    """All pairs of some nodes as the edges of a call; the reference scores them by their names."""
    return [
        (j, i, ("pair", j, i), float(weights[i - nodes.start, j - nodes.start].detach())) for i in nodes for j in nodes
    ]


def local_call(subject: Subject, layer: int) -> reference.Call:
    graph, weights = subject.graph, subject.attention.per_edge()[layer].tolist()
    ends = graph.edge_index.t().tolist()
    return [(i, j, ("edge", "", number), weights[number]) for number, (i, j) in enumerate(ends)]


def check(
    subject: Subject,
    target: int,
    calls: dict[str, reference.Call],
    fed_by: dict[str, list[tuple[str, float]]],
    output: list[tuple[str, float]],
    roots: list[tuple[int, float]],
    method: str = "gatt",
) -> None:
    scored = reference.gatt_by_calls(calls, fed_by, output, roots)
    expected = torch.zeros(subject.graph.num_edges, dtype=torch.float64)
    for (kind, _, number), score in scored.items():
        if kind == "edge":
            expected[number] = score
    made = METHODS[method].make()
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(made.attribute(subject, target).dense(target).double(), expected, **close)
    pairs = subject_pairs(subject, [target])
    torch.testing.assert_close(made.score_pairs(subject, pairs).double(), expected[pairs.edges], **close)
    nodes = reference.nodes_by_calls(calls, fed_by, output, roots)
    dense = torch.tensor([nodes.get(node, 0.0) for node in range(subject.graph.num_nodes)], dtype=torch.float64)
    torch.testing.assert_close(attribute_nodes(subject, target, made).dense(target).double(), dense, **close)


def nodes_of(batch: Batch, graph: int) -> range:
    first, last = batch.ptr[graph : graph + 2].tolist()
    return range(first, last)


def global_calls(model: nn.Module, batch: Batch, nodes: range, uniform: bool = False) -> dict[str, reference.Call]:
    """The calls over all nodes of one graph, by number; the weights are those of the graph within its batch."""
    kinds = (nn.MultiheadAttention, PerformerAttention)
    modules = [module for module in model.modules() if isinstance(module, kinds)]
    states = [
        dense[int(batch.batch[nodes.start]), : len(nodes)]
        for dense in inputs_of(model, lambda: model(batch.x, batch.edge_index, batch.edge_attr, batch.batch), kinds)
    ]
    weigh = {nn.MultiheadAttention: multihead_weights, PerformerAttention: linear_weights}
    calls = {}
    for number, (module, x) in enumerate(zip(modules, states, strict=True)):
        weights = torch.full((len(nodes),) * 2, 1 / len(nodes)) if uniform else weigh[type(module)](module, x)
        calls[f"global {number}"] = as_call(weights, nodes)
    return calls


@pytest.mark.parametrize("attention", ["multihead", "performer"])
@pytest.mark.parametrize("local", ["gine", "gat", "gcn"])
@pytest.mark.parametrize("target", [0, 2])
def test_gatt_of_gps_walks_through_local_and_global_layers(local: str, attention: str, target: int) -> None:
    # Graphs of one size: with padding, the linear attentions of PyG depend on the other graphs of the batch.
    batch = molecules(5, 5, 5) if attention == "performer" else molecules(5, 4, 6)
    model = seeded(GPS(local, attention))
    subject, nodes = Subject.of_data(model, batch), nodes_of(batch, target)
    calls = global_calls(model, batch, nodes) | {f"local {layer}": local_call(subject, layer) for layer in (0, 1)}
    first, last = [("local 0", 1.0), ("global 0", 1.0)], [("local 1", 1.0), ("global 1", 1.0)]
    fed_by = {"local 1": first, "global 1": first}
    check(subject, target, calls, fed_by, last, [(node, 1.0) for node in nodes])


def test_uniform_gives_every_node_of_the_graph_the_same_weight() -> None:
    batch = molecules(5, 4, 6)
    model = seeded(GPS("gine"))
    subject, nodes = Subject.of_data(model, batch), nodes_of(batch, 2)
    calls = global_calls(model, batch, nodes, uniform=True)
    calls |= {f"local {layer}": local_call(subject, layer) for layer in (0, 1)}
    first, last = [("local 0", 1.0), ("global 0", 1.0)], [("local 1", 1.0), ("global 1", 1.0)]
    fed_by = {"local 1": first, "global 1": first}
    for method in ("uniform", "structure"):
        check(subject, 2, calls, fed_by, last, [(node, 1.0) for node in nodes], method)


def test_flows_through_all_nodes_are_counted() -> None:
    batch = molecules(4, 3)
    model = seeded(GPS("gine"))
    subject, nodes = Subject.of_data(model, batch), nodes_of(batch, 0)
    ones = {f"global {layer}": as_call(torch.ones(4, 4), nodes) for layer in (0, 1)}
    ones |= {f"local {layer}": [c for c in local_call(subject, layer) if c[0] != c[1]] for layer in (0, 1)}
    first, last = [("local 0", 1.0), ("global 0", 1.0)], [("local 1", 1.0), ("global 1", 1.0)]
    fed_by, roots = {"local 1": first, "global 1": first}, [(node, 1.0) for node in nodes]
    counted = reference.gatt_by_calls(ones, fed_by, last, roots)  # all weights of GINE are 1: flows and gatt_sim agree
    gatt = METHODS["gatt"].make().attribute(subject, 0).dense(0)
    sim = METHODS["gatt_sim"].make().attribute(subject, 0).dense(0)
    average = METHODS["gatt_avg"].make().attribute(subject, 0).dense(0)
    for (kind, _, edge), count in counted.items():
        if kind == "edge":
            assert float(sim[edge]) == pytest.approx(count)
            assert float(average[edge]) == pytest.approx(float(gatt[edge]) / count, rel=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_after_a_gat_reads_all_edges(batch_first: bool) -> None:
    batch = molecules(5, 4)
    model = seeded(Encoder(batch_first=batch_first))
    states = []
    handles = [
        layer.self_attn.register_forward_pre_hook(lambda _, args: states.append(args[0].detach().clone()))
        for layer in model.encoder.layers
    ]
    model.encoder.use_nested_tensor = False
    with torch.no_grad():
        model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    for handle in handles:
        handle.remove()
    states = [state if batch_first else state.transpose(0, 1) for state in states]
    subject, nodes = Subject.of_data(model, batch), nodes_of(batch, 1)
    calls = {"local": local_call(subject, 0)}
    for number, (layer, state) in enumerate(zip(model.encoder.layers, states, strict=True)):
        calls[f"global {number}"] = as_call(multihead_weights(layer.self_attn, state[1, :4]), nodes)
    fed_by = {"global 0": [("local", 1.0)], "global 1": [("global 0", 1.0)]}
    check(subject, 1, calls, fed_by, [("global 1", 1.0)], [(node, 1.0) for node in nodes])


class NodeModel(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.model(x, edge_index, batch)


def test_sgformer_walks_its_two_branches() -> None:
    data = molecule(7)
    data = Data(x=data.x.float(), edge_index=data.edge_index)
    model = SGFormer(IN, WIDTH, CLASSES, trans_num_heads=2, graph_weight=0.8).eval()
    subject, nodes = Subject.of_data(model, data), range(7)
    modules = [module for module in model.modules() if isinstance(module, SGFormerAttention)]
    states = inputs_of(
        model, lambda: model(data.x, data.edge_index, torch.zeros(7, dtype=torch.long)), SGFormerAttention
    )
    calls = {f"local {layer}": local_call(subject, layer) for layer in range(3)}
    for number, (module, x) in enumerate(zip(modules, states, strict=True)):
        calls[f"global {number}"] = as_call(linear_weights(module, x[0]), nodes)
    fed_by = {"global 1": [("global 0", 1.0)], "local 1": [("local 0", 1.0)], "local 2": [("local 1", 1.0)]}
    # The last global layer is averaged with its input, a skip, and weighs 0.2 of the output.
    check(subject, 3, calls, fed_by, [("local 2", 0.8), ("global 1", 0.1)], [(3, 1.0)])


def test_polynormer_is_read_though_it_sorts_its_nodes() -> None:
    data = molecule(20)  # torch sorts 20 equal numbers into another order
    data = Data(x=data.x.float(), edge_index=data.edge_index)
    model = Polynormer(IN, WIDTH, CLASSES, local_layers=2, global_layers=1, local_attn=True, qk_shared=False).eval()
    model._global = True
    subject = Subject.of_data(model, data)
    zeros = torch.zeros(20, dtype=torch.long)
    assert zeros.sort()[1].tolist() != list(range(20))
    (state,) = inputs_of(model, lambda: model(data.x, data.edge_index, zeros), PolynormerAttention)
    sorted_weights = linear_weights(model.global_attn[0], state[0])
    order = zeros.sort()[1].argsort()
    calls = {f"local {layer}": local_call(subject, layer) for layer in range(2)}
    calls["global"] = as_call(sorted_weights[order][:, order], range(20))
    fed_by = {"global": [("local 1", 1.0)], "local 1": [("local 0", 1.0)]}
    check(subject, 3, calls, fed_by, [("global", 1.0)], [(3, 1.0)])


@pytest.mark.parametrize("model", [GPS("none"), Encoder(local=False)], ids=["GPS", "Encoder"])
def test_a_network_without_local_layers_has_node_scores(model: nn.Module) -> None:
    batch = molecules(5, 4)
    subject = Subject.of_data(seeded(model), batch)
    scores = attribute_nodes(subject, "all")
    # Softmaxes only, one after the other: the weights of a walk from every node add up to the number of nodes.
    for graph, size in enumerate((5, 4)):
        nodes, values = scores.of(graph)
        assert nodes.tolist() == list(nodes_of(batch, graph))
        assert float(values.sum()) == pytest.approx(size, rel=1e-5)
    with pytest.raises(UnsupportedModelError, match="nodes"):
        attree.evaluate(model, batch)


def test_node_scores_of_a_plain_gat_are_products_of_matrices() -> None:
    data = molecule(6)
    model = seeded(nn.ModuleList([GATConv(IN, WIDTH), GATConv(WIDTH, CLASSES)]))

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = model

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)

    subject = Subject.of_data(Two(), Data(x=data.x, edge_index=data.edge_index))
    matrices = []
    for weights in subject.attention.per_edge():
        matrix = torch.zeros(6, 6, dtype=torch.float64)
        matrix[subject.graph.destination, subject.graph.source] = weights.double()
        matrices.append(matrix)
    scores = attribute_nodes(subject, "all")
    torch.testing.assert_close(torch.stack([scores.dense(v) for v in range(6)]).double(), matrices[1] @ matrices[0])


class Sorted(nn.Module):
    """Attention over nodes that are sorted by their features, then put back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.attention = GATConv(IN, WIDTH, edge_dim=EDGE), nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        order = torch.arange(x.shape[0]).flip(0)
        x = self.conv(x, edge_index, edge_attr)[order].unsqueeze(0)
        x = self.attention(x, x, x, need_weights=False)[0].squeeze(0)
        return x[order.argsort()]


def test_a_model_that_sorts_its_nodes_is_read_in_its_order() -> None:
    data = molecule(6)
    model = seeded(Sorted())
    subject = Subject.of_data(model, Data(x=data.x, edge_index=data.edge_index, edge_attr=data.edge_attr))
    state = model.conv(data.x, data.edge_index, data.edge_attr).detach()  # attention itself does not know the order
    calls = {"local": local_call(subject, 0), "global": as_call(multihead_weights(model.attention, state), range(6))}
    check(subject, 2, calls, {"global": [("local", 1.0)]}, [("global", 1.0)], [(2, 1.0)])


class Biased(nn.Module):
    """Attention with a bias for each pair of places, as in a Graphormer; attree does not know its class."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(9, 9))

    def weights(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return (self.q(x) @ self.k(x).transpose(1, 2) + self.bias[:n, :n]).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(x) @ self.v(x)


class Twice(Biased):
    """Computes something else than what the reader of its base class says."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class WithBias(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.conv, self.attention, self.last = GATConv(IN, WIDTH), attention, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.attention(self.conv(x, edge_index).unsqueeze(0)).squeeze(0))


def read_biased(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> Mixing:
    (x,) = args
    weights = DenseWeights(module.weights(x).unsqueeze(1))
    return Mixing(weights, module.v(x).unsqueeze(2), lambda mixed: mixed.squeeze(2))


def test_a_registered_module_is_walked_and_checked() -> None:
    data = molecule(6)
    data = Data(x=data.x, edge_index=data.edge_index)
    register_global_attention(Biased, read_biased)
    model = seeded(WithBias(Biased()))
    subject = Subject.of_data(model, data)
    weights = model.attention.weights(model.conv(data.x, data.edge_index).unsqueeze(0))[0]
    calls = {"local": local_call(subject, 0), "global": as_call(weights, range(6))}
    check(subject, 2, calls, {"global": [("local", 1.0)]}, [("global", 1.0)], [(2, 1.0)])
    with pytest.raises(UnsupportedModelError, match="returned something else"):
        METHODS["gatt"].make().attribute(Subject.of_data(seeded(WithBias(Twice())), data), 2)


def test_what_needs_attention_along_edges_says_so() -> None:
    batch = molecules(5, 4)
    model = seeded(GPS("gine"))
    with pytest.raises(UnsupportedModelError, match="AvgAtt, but GPS has attention over all nodes only"):
        attree.evaluate(model, batch, methods=["avgatt"])
    with pytest.raises(UnsupportedModelError, match="attention along edges for the protocol `coefficient`"):
        attree.evaluate(model, batch, protocols=["coefficient"])
    with pytest.raises(UnsupportedModelError, match="which the tests replace, but GPS has none"):
        attree.attention_tests(model, batch)


def test_a_batch_whose_padding_is_read_is_explained_as_it_came() -> None:
    model = seeded(GPS("gine", "performer"))
    for conv in model.convs:
        conv.attn.fast_attn.double()
    with pytest.warns(UserWarning, match="may count the padding of a batch"):
        attree.explain(model, molecules(5, 7), 0)
