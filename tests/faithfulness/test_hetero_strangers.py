"""What strangers' heterogeneous data and link models look like: reducing an edge equals deleting it from the graph.

Under `removal` an edge leaves the softmax, and nothing else sees it: the same as a pass of the model on the graph
without the edge. No code of attree computes these passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.transforms as T
from torch import Tensor, nn
from torch_geometric.data import Batch, HeteroData
from torch_geometric.nn import (
    VGAE,
    GATConv,
    GATv2Conv,
    HeteroConv,
    HGTConv,
    SAGEConv,
    TransformerConv,
    global_add_pool,
    global_mean_pool,
    to_hetero,
)

import attree
from attree.attribution import GAtt, subject_pairs
from attree.errors import AttreeError
from attree.faithfulness import PROTOCOLS, Reducer
from attree.subject import Head, Subject
from helpers.graphs import randomize
from helpers.hetero import CHANNELS, METADATA, RELATIONS, SIZES, EdgeType, HeteroNet, Stacked, hetero_graph

pytestmark = pytest.mark.filterwarnings("ignore:Attention of .* is reduced by:UserWarning")

Edges = dict[EdgeType, Tensor]
CITES = ("paper", "cites", "paper")
LOGIT = Head(mode="binary_classification", return_type="raw")


def conv(**options: Any) -> GATv2Conv:
    return GATv2Conv((-1, -1), CHANNELS, add_self_loops=False, **options)


def ready(model: nn.Module, *args: Any) -> nn.Module:
    """A model in double precision with its lazy layers made and random weights."""
    model = model.double().eval()
    with torch.no_grad():
        model(*args)
    return randomize(model, 3, scale=0.7)


def assert_removal_deletes(
    subject: Subject, without: Callable[[EdgeType, Tensor], Tensor], targets: list[int], binary: bool = False
) -> None:
    """Compare every edge around the targets.

    Args:
        subject: What is explained.
        without: The model's output when only some edges of one type, given as a mask, are left.
        targets: The targets.
        binary: Whether outputs are one logit each.
    """
    types = subject.graph.types
    assert types is not None
    pairs = subject_pairs(subject, targets)
    reduction = Reducer(subject).record().reduce(pairs, PROTOCOLS["removal"], with_probability=True)
    largest, after = 0.0, {}
    for place, (owner, edge) in enumerate(zip(pairs.owner.tolist(), pairs.edges.tolist(), strict=True)):
        if edge >= types.edge_ptr[-1]:
            continue
        if edge not in after:
            kind = types.edge_types[int(types.type_of_edges(torch.tensor([edge])))]
            left = torch.arange(len(types.edges(kind))) != edge - types.edges(kind).start
            with torch.no_grad():
                after[edge] = without(kind, left)
        output = after[edge][int(pairs.targets[owner])]
        logits = torch.stack([torch.zeros_like(output), output], dim=-1) if binary else output
        torch.testing.assert_close(reduction.probability[place], logits.softmax(-1), rtol=0, atol=1e-9)
        largest = max(largest, float(reduction.delta_pc[place].abs()))
    assert largest > 1e-4


def cut(edges: Edges, kind: EdgeType, left: Tensor) -> Edges:
    return {own: ends[:, left] if own == kind else ends for own, ends in edges.items()}


def assert_data(model: nn.Module, data: HeteroData, targets: list[int]) -> Subject:
    """The same for a model of `x_dict` and `edge_index_dict` that returns the outputs of papers."""
    subject = Subject.of_data(model, data, node_type="paper")

    def without(kind: EdgeType, left: Tensor) -> Tensor:
        output = model(data.x_dict, cut(data.edge_index_dict, kind, left))
        return output["paper"] if isinstance(output, dict) else output

    assert_removal_deletes(subject, without, targets)
    return subject


def hgt(data: HeteroData) -> nn.Module:
    layers = (HGTConv(CHANNELS, CHANNELS, data.metadata(), heads=2) for _ in range(2))
    return ready(Stacked(*layers), data.x_dict, data.edge_index_dict)


def gat(data: HeteroData, aggr: str = "sum") -> nn.Module:
    layers = (HeteroConv({kind: conv() for kind in data.edge_types}, aggr=aggr) for _ in range(2))
    return ready(Stacked(*layers), data.x_dict, data.edge_index_dict)


@pytest.mark.parametrize("make", [hgt, gat])
def test_an_edge_type_without_edges(make: Any) -> None:
    data = hetero_graph()
    data["term", "in", "paper"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    subject = assert_data(make(data), data, [2, 5])
    assert GAtt().attribute(subject, 2).edge_mask(2)["term", "in", "paper"].shape == (0,)


@pytest.mark.parametrize("make", [hgt, gat])
def test_reverse_edges_of_to_undirected(make: Any) -> None:
    data = T.ToUndirected(merge=False)(hetero_graph())
    assert CITES in data.edge_types
    assert len(data.edge_types) > len(RELATIONS)
    assert_data(make(data), data, [2, 5])


def test_a_node_type_that_no_edge_touches() -> None:
    data = hetero_graph()
    data["venue"].x = torch.randn(4, CHANNELS, dtype=torch.float64)
    assert_data(gat(data), data, [2, 5])


class WithEmbedding(nn.Module):
    """Authors and terms are numbers of rows of a table; papers have features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({kind: nn.Embedding(SIZES[kind], CHANNELS) for kind in ("author", "term")})
        self.layers = nn.ModuleList(HeteroConv({kind: conv() for kind in RELATIONS}) for _ in range(2))

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Edges) -> Tensor:
        x_dict = {kind: self.tables[kind](x) if kind in self.tables else x for kind, x in x_dict.items()}
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return x_dict["paper"]


def test_node_types_without_features_are_numbers_for_an_embedding() -> None:
    data = hetero_graph()
    for kind in ("author", "term"):
        data[kind].x = torch.arange(SIZES[kind])
    assert_data(ready(WithEmbedding(), data.x_dict, data.edge_index_dict), data, [2, 5])


class WholeTable(WithEmbedding):
    """Authors and terms are not among the features at all: their whole table is taken."""

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Edges) -> Tensor:
        full = {**x_dict, **{kind: table.weight for kind, table in self.tables.items()}}
        for layer in self.layers:
            full = layer(full, edge_index_dict)
        return full["paper"]


def test_node_types_that_only_the_model_knows() -> None:
    data = hetero_graph()
    for kind in ("author", "term"):
        del data[kind].x
        data[kind].num_nodes = SIZES[kind]
    model = ready(WholeTable(), data.x_dict, data.edge_index_dict)
    assert_data(model, data, [2, 5])
    with pytest.raises(AttreeError, match="edge_index"):
        Subject.of(model, data.x_dict, data.edge_index_dict)


class WithAttributes(nn.Module):
    """Edges have attributes, of another width in each relation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HeteroConv({kind: conv(edge_dim=1 + place) for place, kind in enumerate(RELATIONS)}, aggr="mean")
            for _ in range(2)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Edges, edge_attr_dict: Edges) -> Tensor:
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict, edge_attr_dict)
        return x_dict["paper"]


def test_attributes_of_edges_go_with_their_relation() -> None:
    data = hetero_graph()
    generator = torch.Generator().manual_seed(1)
    for place, (kind, count) in enumerate(RELATIONS.items()):
        data[kind].edge_attr = torch.randn(count, 1 + place, generator=generator, dtype=torch.float64)
    model = ready(WithAttributes(), data.x_dict, data.edge_index_dict, data.edge_attr_dict)

    def without(kind: EdgeType, left: Tensor) -> Tensor:
        attributes = {own: rows[left] if own == kind else rows for own, rows in data.edge_attr_dict.items()}
        output: Tensor = model(data.x_dict, cut(data.edge_index_dict, kind, left), attributes)
        return output

    assert_removal_deletes(Subject.of_data(model, data), without, [2, 5])


class Residual(nn.Module):
    """What `to_hetero` makes a heterogeneous network of: layers with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.skip = conv(), conv(), nn.LazyLinear(CHANNELS)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = (self.first(x, edge_index) + self.skip(x)).relu()
        return self.last(x, edge_index) + x


def test_to_hetero_of_a_network_with_residuals() -> None:
    data = hetero_graph()
    model = ready(to_hetero(Residual(), METADATA, aggr="mean"), data.x_dict, data.edge_index_dict)
    subject = assert_data(model, data, [2, 5])
    ignored, followed = (GAtt(skips=how).attribute(subject, 2).scores for how in ("ignore", "follow"))
    assert not torch.allclose(ignored, followed)


class Mixed(nn.Module):
    """Attention on two relations, a mean of neighbours on the others."""

    def __init__(self) -> None:
        super().__init__()
        attended = {("author", "writes", "paper"), ("paper", "written_by", "author")}
        self.layers = nn.ModuleList(
            HeteroConv({kind: conv() if kind in attended else SAGEConv((-1, -1), CHANNELS) for kind in RELATIONS})
            for _ in range(2)
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Edges) -> Tensor:
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return x_dict["paper"]


def test_relations_without_attention_carry_flows_by_their_factors() -> None:
    data = hetero_graph()
    model = ready(Mixed(), data.x_dict, data.edge_index_dict)
    assert Subject.of_data(model, data).attention.has_attention


@pytest.mark.parametrize("aggr", ["max", "min"])
def test_what_is_not_linear_in_relations_is_refused(aggr: str) -> None:
    data = hetero_graph()
    with pytest.raises(AttreeError, match=aggr):
        _ = Subject.of_data(gat(data, aggr), data).attention


class Pooled(nn.Module):
    """One output a graph: pooled papers and authors."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(HeteroConv({kind: conv() for kind in RELATIONS}) for _ in range(2))
        self.pool, self.head = global_mean_pool if mean else global_add_pool, nn.Linear(2 * CHANNELS, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Edges, batch_dict: dict[str, Tensor]) -> Tensor:
        for layer in self.layers:
            x_dict = {kind: x.tanh() for kind, x in layer(x_dict, edge_index_dict).items()}
        pooled = [self.pool(x_dict[kind], batch_dict[kind]) for kind in ("paper", "author")]
        return self.head(torch.cat(pooled, dim=1))


@pytest.mark.parametrize("mean", [False, True])
def test_graphs_of_several_types(mean: bool) -> None:
    batch = Batch.from_data_list([hetero_graph(seed) for seed in (0, 1, 2)])
    model = ready(Pooled(mean), batch.x_dict, batch.edge_index_dict, batch.batch_dict)
    subject = Subject.of_data(model, batch)
    assert subject.level == "graph"
    assert subject.num_targets == 3

    def without(kind: EdgeType, left: Tensor) -> Tensor:
        output: Tensor = model(batch.x_dict, cut(batch.edge_index_dict, kind, left), batch.batch_dict)
        return output

    assert_removal_deletes(subject, without, [0, 2])


class Links(nn.Module):
    """Links of a graph of one type: the dot product of what two branches give, or PyG's variational autoencoder."""

    def __init__(self, variational: bool) -> None:
        super().__init__()
        self.encoder = VGAE(Heads()) if variational else Heads()

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        # In eval mode the autoencoder returns the mean: the branch of the deviation does not reach the output.
        z = self.encoder.encode(x, edge_index) if isinstance(self.encoder, VGAE) else sum(self.encoder(x, edge_index))
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


class Heads(nn.Module):
    """Two heads on one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.mean, self.deviation = (TransformerConv(4, 4, root_weight=False) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.hidden(x, edge_index).tanh()
        return self.mean(x, edge_index), self.deviation(x, edge_index)


@pytest.mark.parametrize("variational", [True, False])
def test_links_of_a_node_with_itself_and_pairs_that_are_asked_for_twice(variational: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    edges = torch.stack([torch.arange(9).repeat(2), torch.randint(9, (18,), generator=generator)])
    edges = edges[:, edges[0] != edges[1]]
    pairs = torch.tensor([[0, 3, 0, 5], [1, 3, 1, 2]])
    model = ready(Links(variational), x, edges, pairs)
    subject = Subject.of(model, x, edges, edge_label_index=pairs, head=LOGIT)
    assert subject.attention.layout.depth == 2
    assert len(subject.attention.weights) == (2 if variational else 3)
    found = GAtt().attribute(subject)
    assert torch.equal(found.edge_mask(0), found.edge_mask(2))
    alone = GAtt().attribute(Subject.of(Ends(model), x, edges), [3]) if variational else None
    if alone is not None:  # both ends are the same node: twice its scores
        torch.testing.assert_close(found.edge_mask(1), 2 * alone.edge_mask(3))
    judged = subject_pairs(subject, [0, 1, 2])
    reduction = Reducer(subject).record().reduce(judged, PROTOCOLS["removal"], with_probability=True)
    for place, (owner, edge) in enumerate(zip(judged.owner.tolist(), judged.edges.tolist(), strict=True)):
        if edge < edges.shape[1]:
            with torch.no_grad():
                logit = model(x, edges[:, torch.arange(edges.shape[1]) != edge], pairs)[int(judged.targets[owner])]
            expected = torch.stack([torch.zeros_like(logit), logit]).softmax(-1)
            torch.testing.assert_close(reduction.probability[place], expected, rtol=0, atol=1e-9)


class Ends(nn.Module):
    """The embeddings that the links of an autoencoder are made of."""

    def __init__(self, links: nn.Module) -> None:
        super().__init__()
        self.links = links

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        output: Tensor = self.links.encoder.encode(x, edge_index)  # type: ignore[union-attr, operator]
        return output


def test_single_precision_and_evaluation_of_it_all() -> None:
    data = hetero_graph()
    for kind in SIZES:
        data[kind].x = data[kind].x.float()
    model = HeteroNet(GATConv, "sum").eval()
    model(data.x_dict, data.edge_index_dict)
    result = attree.evaluate(model, data, node_type="paper", methods=["gatt", "saliency"], targets=[2, 5])
    assert set(result.pair_scores) == {"gatt", "saliency"}
