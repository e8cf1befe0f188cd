"""Branches, skips and links: GAtt equals a plain walk over the calls of the network as they feed each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer
from torch_geometric.nn import GATConv, HGTConv, JumpingKnowledge

import reference
from attree.attribution import GAtt, GAttAvg, GAttExplainer, GAttSim, subject_pairs
from attree.subject import Subject
from helpers.hetero import CHANNELS, METADATA, SIZES, hetero_graph

NODES = 9
GENERATOR = torch.Generator().manual_seed(0)
EDGES = torch.randint(NODES, (2, 24), generator=GENERATOR)
EDGES = EDGES[:, EDGES[0] != EDGES[1]]
X = torch.randn(NODES, 4, generator=GENERATOR, dtype=torch.float64)


class Net(nn.Module):
    """Four convolutions of equal width, combined as a test says."""

    def __init__(self, run: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.d = (GATConv(4, 4, heads=2, concat=False) for _ in range(4))
        self.weight = nn.Parameter(torch.tensor([0.25, 0.75]))
        self.run = run
        self.double().eval()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(self, x, edge_index)


def two_stacks(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.b(net.a(x, edges).relu(), edges) + net.d(net.c(x, edges).relu(), edges)


def of_different_depth(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return torch.cat([net.c(net.b(net.a(x, edges).relu(), edges), edges), 0.5 * net.d(x, edges)], dim=1)


def diamond(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    h = net.a(x, edges).relu()
    return net.d(torch.stack([net.b(h, edges), net.c(h, edges).tanh()]).mean(0), edges)


def weighted(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    return net.d(net.weight[0] * net.a(x, edges) - net.weight[1] * net.b(x, edges), edges)


def residual(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    h = net.a(x, edges) + x
    h = 0.5 * (net.b(h, edges).relu() + h)
    return net.c(h, edges) + h


def jumping(net: Net, x: Tensor, edges: Tensor) -> Tensor:
    first = net.a(x, edges).relu()
    return JumpingKnowledge("cat")([first, net.b(first, edges)])


BRANCHES: dict[str, tuple[Any, dict[str, list[tuple[str, float]]], list[tuple[str, float]]]] = {
    "two stacks": (two_stacks, {"b": [("a", 1)], "d": [("c", 1)]}, [("b", 1), ("d", 1)]),
    "of different depth": (of_different_depth, {"b": [("a", 1)], "c": [("b", 1)]}, [("c", 1), ("d", 0.5)]),
    "diamond": (diamond, {"b": [("a", 1)], "c": [("a", 1)], "d": [("b", 0.5), ("c", 0.5)]}, [("d", 1)]),
    "weighted": (weighted, {"d": [("a", 0.25), ("b", 0.75)]}, [("d", 1)]),
    "residual": (residual, {"b": [("a", 1)], "c": [("b", 1)]}, [("c", 1)]),
    "jumping": (jumping, {"b": [("a", 1)]}, [("b", 1)]),
}
FOLLOWED: dict[str, tuple[dict[str, list[tuple[str, float]]], list[tuple[str, float]]]] = {
    "residual": ({"b": [("a", 1)], "c": [("b", 0.5), ("a", 0.5)]}, [("c", 1), ("b", 0.5), ("a", 0.5)]),
    "jumping": ({"b": [("a", 1)]}, [("a", 1), ("b", 1)]),
}


def calls_of(net: Net, edge_index: Tensor) -> dict[str, reference.Call]:
    """What each convolution attends to, as it says itself."""
    calls: dict[str, reference.Call] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(conv: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if name not in calls:
                calls[name] = []  # the convolution is called again below
                edges, weights = conv(*args, return_attention_weights=True)[1]
                own = zip(*edges.tolist(), weights.mean(dim=1).tolist(), strict=True)
                calls[name] = [
                    (("", i), ("", j), ("edge" if k < edge_index.shape[1] else "loop", k), weight)
                    for k, (i, j, weight) in enumerate(own)
                ]

        return hook

    handles = [getattr(net, name).register_forward_hook(keep(name)) for name in "abcd"]
    net(X, edge_index)
    for handle in handles:
        handle.remove()
    return calls


def assert_equal(scores: Any, target: int, expected: dict[reference.TypedEdge, float]) -> None:
    one = scores[target]
    found = dict(zip(one.edges.tolist(), one.scores.tolist(), strict=True))
    assert found == pytest.approx({number: score for (_, number), score in expected.items()}, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_are_walked_as_they_are(name: str) -> None:
    run, fed_by, output = BRANCHES[name]
    net = Net(run)
    subject, calls = Subject.of(net, X, EDGES), calls_of(net, EDGES)
    scores = GAtt().attribute(subject)
    for target in range(NODES):
        assert_equal(scores, target, reference.gatt_by_calls(calls, fed_by, output, [(("", target), 1.0)]))
    pairs = subject_pairs(subject)
    torch.testing.assert_close(GAtt().score_pairs(subject, pairs), pairs.scores(scores))


@pytest.mark.parametrize("name", FOLLOWED)
def test_skips_are_followed_with_the_factors_of_their_sums(name: str) -> None:
    net = Net(BRANCHES[name][0])
    fed_by, output = FOLLOWED[name]
    scores = GAtt(skips="follow").attribute(Subject.of(net, X, EDGES))
    for target in range(NODES):
        expected = reference.gatt_by_calls(calls_of(net, EDGES), fed_by, output, [(("", target), 1.0)])
        assert_equal(scores, target, expected)


def test_skips_that_are_not_linear_are_ignored() -> None:
    net = Net(lambda net, x, edges: torch.maximum(h := net.a(x, edges), net.b(h, edges)))
    subject = Subject.of(net, X, EDGES)
    assert torch.equal(GAtt(skips="follow").attribute(subject).scores, GAtt().attribute(subject).scores)
    with pytest.raises(ValueError, match="`skips` to be 'ignore' or 'follow', but got 'drop'"):
        GAtt(skips="drop")  # type: ignore[arg-type]


def test_flows_are_counted_without_factors() -> None:
    net = Net(diamond)
    subject, calls = Subject.of(net, X, EDGES), calls_of(net, EDGES)
    ones = {name: [(*edge[:3], 1.0) for edge in call] for name, call in calls.items()}
    feeds = {"b": [("a", 1.0)], "c": [("a", 1.0)], "d": [("b", 1.0), ("c", 1.0)]}
    gatt, average, simple = (method.attribute(subject, 4)[4] for method in (GAtt(), GAttAvg(), GAttSim()))
    counts = reference.gatt_by_calls(ones, feeds, [("d", 1.0)], [(("", 4), 1.0)])
    count = torch.tensor([counts[("edge" if e < EDGES.shape[1] else "loop"), e] for e in gatt.edges.tolist()])
    torch.testing.assert_close(average.scores, gatt.scores / count)
    assert bool((simple.scores >= gatt.scores - 1e-12).all())


class Links(nn.Module):
    """Two convolutions and a decoder of one's own."""

    def __init__(self, decoder: Callable[[Tensor, Tensor], Tensor], width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = GATConv(4, 4), GATConv(4, width)
        self.decoder = decoder
        self.double().eval()

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        h = self.b(self.a(x, edge_index).relu(), edge_index)
        return self.decoder(h[edge_label_index[0]], h[edge_label_index[1]])


DECODERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dot product": lambda u, v: (u * v).sum(-1),
    "both ends": nn.Bilinear(4, 4, 2).double(),
    "perceptron": lambda u, v: torch.cat([u, v], 1) @ torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("count", [1, 4, NODES, 30])
def test_links_start_at_both_ends(decoder: str, count: int) -> None:
    pairs = torch.randint(NODES, (2, count), generator=torch.Generator().manual_seed(count))
    pairs[:, 0] = 3  # a node with itself
    subject = Subject.of(Links(DECODERS[decoder]), X, EDGES, edge_label_index=pairs)
    assert subject.level == "edge"
    assert subject.num_targets == count
    nodes = GAtt().attribute(subject.attention)
    scores = GAtt().attribute(subject)
    for column, (u, v) in enumerate(pairs.t().tolist()):
        torch.testing.assert_close(scores.dense(column), nodes.dense(u) + nodes.dense(v))


def test_pygs_explainer_explains_pairs_by_column() -> None:
    pairs = torch.tensor([[0, 3, 5], [1, 3, 2]])
    model = Links(DECODERS["perceptron"])
    config = {"mode": "multiclass_classification", "task_level": "edge", "return_type": "raw"}
    explainer = Explainer(
        model, GAttExplainer(), explanation_type="model", edge_mask_type="object", model_config=config
    )
    expected = GAtt().attribute(Subject.of(model, X, EDGES, edge_label_index=pairs)).edge_mask(2)
    assert torch.equal(explainer(X, EDGES, index=2, edge_label_index=pairs).edge_mask, expected)


class TypedLinks(nn.Module):
    """Links from authors to papers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = HGTConv(CHANNELS, CHANNELS, METADATA, 2)
        self.double().eval()

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_label_index: Tensor) -> Tensor:
        h = self.conv(x_dict, edge_index_dict)
        return (h["author"][edge_label_index[0]] * h["paper"][edge_label_index[1]]).sum(-1)


def test_links_between_types_are_told_by_what_the_rows_read() -> None:
    data: HeteroData = hetero_graph()
    pairs = torch.tensor([[0, 4, 2], [1, 3, 2]])  # all are numbers of papers, authors and mostly terms
    data["author", "writes", "paper"].edge_label_index = pairs
    subject = Subject.of_data(TypedLinks(), data)
    assert subject.level == "edge"
    papers, authors = (
        GAtt().attribute(subject.attention, Subject.of_data(TypedNodes(kind), data).roots())
        for kind in ("paper", "author")
    )
    scores = GAtt().attribute(subject)
    for column, (author, paper) in enumerate(pairs.t().tolist()):
        torch.testing.assert_close(scores.dense(column), papers.dense(paper) + authors.dense(author))
    assert SIZES["term"] == 3


class TypedNodes(nn.Module):
    """The same convolution, with the outputs of one type."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = TypedLinks(), kind

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        h: Tensor = self.inner.conv(x_dict, edge_index_dict)[self.kind]
        return h
