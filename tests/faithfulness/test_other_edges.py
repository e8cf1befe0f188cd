"""Layers that do not run on the edges of the data in their order: parts, other orders, reversals, edges of their own.

`removal` is compared with deleting the edge from the data, `weight` with silencing, by PyG's own hooks, the messages
that come from it, and GAtt with a plain walk along every flow by the weights that PyG's layers return.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import DirGNNConv, GATConv, MessagePassing, SAGEConv
from torch_geometric.utils import sort_edge_index, to_undirected

import attree
from attree.attention import Bypass
from attree.attribution import GAtt, GAttAvg, Structure
from attree.defaults import RESOLUTION
from attree.errors import UnsupportedModelError
from attree.subject import Subject
from attree.subject.missed_by_attention import what_attention_misses
from reference import Call, gatt_by_calls

NODES, CHANNELS, NONE = 12, 4, -1
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(NODES, CHANNELS, generator=GENERATOR).double()
EDGES = torch.randint(0, NODES, (2, 30), generator=GENERATOR)
EDGES = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
EDGES = EDGES[:, torch.randperm(EDGES.shape[1], generator=GENERATOR)]
BOTH = to_undirected(EDGES)
BOTH = BOTH[:, torch.randperm(BOTH.shape[1], generator=GENERATOR)]
TARGETS = [2, 5, 11]

Lists = Callable[[Tensor, Tensor, Tensor], list[Tensor]]
"""The edge lists of the convolutions side by side in a layer, from features, edges and edge types."""


class Net(nn.Module):
    """Two layers; the convolutions of a layer run side by side on edge lists of their own, and are added."""

    def __init__(self, make: Callable[[int, int], MessagePassing], lists: Lists, side_by_side: int) -> None:
        super().__init__()
        self.lists = lists
        self.first, self.second = (
            nn.ModuleList(make(CHANNELS, CHANNELS) for _ in range(side_by_side)) for _ in range(2)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        count = x.shape[0]
        lists = self.lists(x, edge_index, edge_type)
        if any(bool((edges >= count).any()) for edges in lists):  # a node of the model's own
            x = torch.cat([x, x.new_ones(1, CHANNELS)])
        for convs in (self.first, self.second):
            x = sum(conv(x, edges) for conv, edges in zip(convs, lists, strict=True)).tanh()
        return x[:count]


def nearest(x: Tensor) -> Tensor:
    far = torch.cdist(x, x).fill_diagonal_(float("inf"))
    return torch.stack([far.topk(2, largest=False).indices.flatten(), torch.arange(x.shape[0]).repeat_interleave(2)])


def with_hub(count: int, edges: Tensor) -> Tensor:
    nodes = torch.arange(count)
    hub = torch.full_like(nodes, count)
    return torch.cat([edges, torch.stack([nodes, hub]), torch.stack([hub, nodes])], dim=1)


def by_ends(edges: Tensor, data: Tensor) -> list[int]:
    """The position of each edge in the data, or else that of its reverse."""
    place = {tuple(ends): number for number, ends in enumerate(data.t().tolist())}
    return [place.get((a, b), place.get((b, a), NONE)) for a, b in edges.t().tolist()]


@dataclass
class Case:
    """Edge lists, and the positions of the data's edges that their entries come from."""

    lists: Lists
    owners: Callable[[Tensor, Tensor], list[list[int]]]
    side_by_side: int = 1


def numbers(edges: Tensor) -> list[int]:
    return list(range(edges.shape[1]))


CASES = {
    "by type": Case(
        lambda x, e, t: [e[:, t == 0], e[:, t == 1]],
        lambda e, t: [(t == 0).nonzero().view(-1).tolist(), (t == 1).nonzero().view(-1).tolist()],
        2,
    ),
    "of one type": Case(lambda x, e, t: [e[:, t == 1]], lambda e, t: [(t == 1).nonzero().view(-1).tolist()]),
    "by number of the node": Case(
        lambda x, e, t: [e[:, e[0] < 5]], lambda e, t: [(e[0] < 5).nonzero().view(-1).tolist()]
    ),
    "sorted": Case(lambda x, e, t: [sort_edge_index(e)], lambda e, t: [by_ends(sort_edge_index(e), e)]),
    "reversed": Case(lambda x, e, t: [e.flip(0)], lambda e, t: [numbers(e)]),
    "both ways, joined": Case(lambda x, e, t: [torch.cat([e, e.flip(0)], 1)], lambda e, t: [numbers(e) * 2]),
    "both ways, merged": Case(lambda x, e, t: [to_undirected(e)], lambda e, t: [by_ends(to_undirected(e), e)]),
    "both ways, apart": Case(lambda x, e, t: [e, e.flip(0)], lambda e, t: [numbers(e), numbers(e)], 2),
    "nearest neighbours beside": Case(
        lambda x, e, t: [e, nearest(x)], lambda e, t: [numbers(e), [NONE] * nearest(X).shape[1]], 2
    ),
    "nearest neighbours joined": Case(
        lambda x, e, t: [torch.cat([e, nearest(x)], 1)],
        lambda e, t: [numbers(e) + [NONE] * nearest(X).shape[1]],
    ),
    "virtual node": Case(lambda x, e, t: [with_hub(x.shape[0], e)], lambda e, t: [numbers(e) + [NONE] * (2 * NODES)]),
}
NO_LOOPS = "GAT without loops"
MAKERS: dict[str, Callable[[int, int], MessagePassing]] = {
    "GAT": GATConv,
    NO_LOOPS: lambda width, out: GATConv(width, out, heads=2, concat=False, add_self_loops=False),
    "SAGE": SAGEConv,
}
SETS = [
    (case, maker, both) for case in CASES for maker in MAKERS for both in (False, True) if both or maker != NO_LOOPS
]


def made(case: str, maker: str, both: bool) -> tuple[Net, Data]:
    torch.manual_seed(3)
    edges = BOTH if both else EDGES
    model = Net(MAKERS[maker], CASES[case].lists, CASES[case].side_by_side).double().eval()
    return model, Data(X, edges, edge_type=torch.arange(edges.shape[1]) % 3 % 2)


def convs_of(model: Net) -> list[tuple[MessagePassing, int]]:
    """The convolutions, each with its position in its layer."""
    return [(conv, number) for convs in (model.first, model.second) for number, conv in enumerate(convs)]


def owners_of(edges: Tensor, data: Data, owners: list[int]) -> Tensor:
    """The owner of each edge of a convolution: those of its list, in order; nothing for self-loops."""
    proper = edges[0] != edges[1]
    out = torch.full_like(edges[0], NONE)
    out[proper] = torch.tensor(owners, dtype=torch.long)
    return out


def by_deletion(model: Net, data: Data, edge: int, owners: list[list[int]]) -> Tensor:
    keep = torch.arange(data.num_edges) != edge
    return model(data.x, data.edge_index[:, keep], data.edge_type[keep]).softmax(-1)


def by_silence(model: Net, data: Data, edge: int, owners: list[list[int]]) -> Tensor:
    lists: dict[nn.Module, Tensor] = {}
    handles = []
    for conv, number in convs_of(model):

        def see(conv: MessagePassing, inputs: Any) -> None:
            lists[conv] = inputs[0]

        def silence(conv: MessagePassing, _: Any, messages: Tensor, number: int = number) -> Tensor:
            is_of_edge = owners_of(lists[conv], data, owners[number]) == edge
            return messages.masked_fill(is_of_edge.view(-1, *[1] * (messages.dim() - 1)), 0.0)

        handles += [conv.register_propagate_forward_pre_hook(see), conv.register_message_forward_hook(silence)]
    try:
        return model(data.x, data.edge_index, data.edge_type).softmax(-1)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(("case", "maker", "both"), SETS)
@torch.no_grad()
def test_effects_are_those_of_the_changed_data(case: str, maker: str, both: bool) -> None:
    model, data = made(case, maker, both)
    owners = CASES[case].owners(data.edge_index, data.edge_type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attree.evaluate(
            model, data, targets=TARGETS, protocols=["removal", "weight"], methods=["occlusion", "random"]
        )
    before = model(data.x, data.edge_index, data.edge_type).softmax(-1)
    predicted, pairs, sizes = before.argmax(-1), result.pairs, []
    for protocol, changed in (("removal", by_deletion), ("weight", by_silence)):
        after = [changed(model, data, edge, owners) for edge in range(data.num_edges)]
        listed = set()
        for owner, edge, effect in zip(
            pairs.owner.tolist(), pairs.edges.tolist(), result.reductions[protocol].delta_pc.tolist(), strict=True
        ):
            target = int(pairs.targets[owner])
            if edge < data.num_edges:
                expected = float(before[target, predicted[target]] - after[edge][target, predicted[target]])
                assert effect == pytest.approx(expected, abs=RESOLUTION), (protocol, target, edge)
                sizes.append(abs(expected))
                listed.add((target, edge))
        if protocol == "weight":  # no other edge has an effect
            for target in TARGETS:
                for edge in range(data.num_edges):
                    if (target, edge) not in listed:
                        assert torch.allclose(after[edge][target], before[target], atol=RESOLUTION, rtol=0)
    assert max(sizes) > 1e-3


@torch.no_grad()
def walk_of(model: Net, data: Data, owners: list[list[int]]) -> dict[str, Call]:
    """The calls of all convolutions, with the weights that PyG's layers have in one pass."""
    alphas: dict[nn.Module, Tensor] = {}
    lists: dict[nn.Module, Tensor] = {}
    handles = []
    for conv, _ in convs_of(model):
        handles.append(
            conv.register_edge_update_forward_hook(lambda conv, _, alpha: alphas.update({conv: alpha.mean(1)}))
        )
        handles.append(conv.register_propagate_forward_pre_hook(lambda conv, inputs: lists.update({conv: inputs[0]})))
    model(data.x, data.edge_index, data.edge_type)
    for handle in handles:
        handle.remove()
    calls: dict[str, Call] = {}
    for place, (conv, number) in enumerate(convs_of(model)):
        edges = lists[conv]
        weights = alphas[conv] if conv in alphas else 1 / edges[1].bincount()[edges[1]].double()
        layer = place // (len(convs_of(model)) // 2)
        owner = owners_of(edges, data, owners[number]).tolist()
        calls[f"{layer}{number}"] = [
            (
                ("n", source),
                ("n", destination),
                ("e", data.num_edges + source if source == destination and source < NODES else edge),
                weight,
            )
            for (source, destination), edge, weight in zip(edges.t().tolist(), owner, weights.tolist(), strict=True)
        ]
    return calls


@pytest.mark.parametrize(("case", "maker", "both"), SETS)
def test_scores_add_up_the_messages_of_an_edge(case: str, maker: str, both: bool) -> None:
    model, data = made(case, maker, both)
    calls = walk_of(model, data, CASES[case].owners(data.edge_index, data.edge_type))
    side_by_side = len(calls) // 2
    fed_by = {f"1{number}": [(f"0{before}", 1.0) for before in range(side_by_side)] for number in range(side_by_side)}
    last = [(f"1{number}", 1.0) for number in range(side_by_side)]
    subject = Subject.of_data(model, data)
    scores = (Structure() if maker == "SAGE" else GAtt()).attribute(subject, TARGETS)
    counts = {name: [(*ends, 1.0) for *ends, _ in call] for name, call in calls.items()}
    for target in TARGETS:
        expected = gatt_by_calls(calls, fed_by, last, [(("n", target), 1.0)])
        flows = gatt_by_calls(counts, fed_by, last, [(("n", target), 1.0)])
        for found, numbers_of in ((scores, expected), *([] if maker == "SAGE" else [(averages(subject), None)])):
            numbers_of = {edge: expected[edge] / flows[edge] for edge in expected} if numbers_of is None else numbers_of
            dense = torch.zeros(data.num_edges + NODES).double()
            for (_, edge), value in numbers_of.items():
                if edge != NONE:
                    dense[edge] = value
            torch.testing.assert_close(found.dense(target).double(), dense)


def averages(subject: Subject) -> Any:
    return GAttAvg().attribute(subject, TARGETS)


def test_both_directions_of_dirgnn_belong_to_the_edge() -> None:
    class Directed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = DirGNNConv(GATConv(CHANNELS, 3, add_self_loops=False), alpha=0.3, root_weight=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    torch.manual_seed(0)
    model = Directed().double().eval()
    with torch.no_grad():
        _, (_, into) = model.conv.conv_in(X, BOTH, return_attention_weights=True)
        _, (_, out) = model.conv.conv_out(X, BOTH.flip(0), return_attention_weights=True)
    dense = GAtt().attribute(Subject.of_data(model, Data(X, BOTH)), [4]).dense(4)
    for edge, (source, destination) in enumerate(BOTH.t().tolist()):
        expected = 0.7 * float(into[edge]) * (destination == 4) + 0.3 * float(out[edge]) * (source == 4)
        assert float(dense[edge]) == pytest.approx(expected, abs=1e-6)


def test_merged_duplicates_are_refused_with_a_way_out() -> None:
    class Merged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GATConv(CHANNELS, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index.unique(dim=1))

    subject = Subject.of_data(Merged().double(), Data(X, torch.cat([EDGES, EDGES[:, :3]], dim=1)))
    with pytest.raises(UnsupportedModelError, match=r"same ends.*`data.edge_index`"):
        _ = subject.attention


class Renumbered(nn.Module):
    """Runs on nodes in another order, or twice side by side."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.conv, self.copies = GATConv(CHANNELS, 3), copies

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        count = x.shape[0]
        if self.copies == 1:
            return self.conv(x.flip(0), count - 1 - edge_index).flip(0)
        twice = torch.cat([edge_index, edge_index + count], dim=1)
        return self.conv(torch.cat([x, x * 0.5]), twice).view(2, count, -1).sum(0)


@pytest.mark.parametrize(("copies", "reason"), [(1, "not those of the nodes"), (2, "nodes that it adds")])
def test_nodes_that_are_numbered_anew_are_refused(copies: int, reason: str) -> None:
    torch.manual_seed(0)
    subject = Subject.of_data(Renumbered(copies).double(), Data(X, EDGES))
    with pytest.raises(UnsupportedModelError, match=reason):
        _ = subject.attention


@pytest.mark.parametrize("case", ["by type", "sorted", "both ways, joined", "virtual node"])
def test_every_method_runs(case: str) -> None:
    model, data = made(case, "GAT", True)
    methods = ["gatt", "avgatt", "uniform", "attention_gradient", "saliency", "gnn_explainer", "random"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attree.evaluate(model, data, targets=TARGETS, methods=methods)
    assert all(bool(attribution.scores.isfinite().all()) for attribution in result.scores.values())


@pytest.mark.parametrize("case", list(CASES))
def test_explanations_print_paths_along_messages_of_any_kind(case: str) -> None:
    model, data = made(case, "GAT", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = attree.explain(model, data, TARGETS[0])
        paths = explanation.paths(200)
    assert "strongest paths" in str(explanation)
    has_others = any(NONE in owners for owners in CASES[case].owners(data.edge_index, data.edge_type))
    assert any(NONE in path.edges for path in paths) == has_others
    for path in paths:
        assert [math.isnan(effect) for effect in path.effects["removal"]] == [edge == NONE for edge in path.edges]


LOCAL = ["by type", "sorted", "reversed", "both ways, joined", "both ways, merged", "both ways, apart"]


@pytest.mark.parametrize("maker", ["GAT", "SAGE"])
@pytest.mark.parametrize("case", LOCAL)
def test_what_layers_read_along_their_own_edges_is_within_reach(case: str, maker: str) -> None:
    torch.manual_seed(3)
    chain = torch.stack([torch.arange(NODES - 1), torch.arange(1, NODES)])
    data = Data(X, chain, edge_type=torch.arange(NODES - 1) % 2)
    model = Net(MAKERS[maker], CASES[case].lists, CASES[case].side_by_side).double().eval()
    subject = Subject.of_data(model, data)
    assert not [line for line in what_attention_misses(subject, Bypass(0.0)) if "of their size" in line]


@pytest.mark.parametrize(("maker", "layer"), [("GAT", "attention layer"), ("SAGE", "layer")])
def test_a_step_over_all_nodes_is_noticed_on_other_edges(maker: str, layer: str) -> None:
    class Centred(Net):
        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
            x = super().forward(x, edge_index, edge_type)
            return x - x.mean(0)

    torch.manual_seed(3)
    model = Centred(MAKERS[maker], CASES["reversed"].lists, 1).double().eval()
    chain = torch.stack([torch.arange(NODES - 1), torch.arange(1, NODES)])
    subject = Subject.of_data(model, Data(X, chain, edge_type=torch.zeros(NODES - 1, dtype=torch.long)))
    (sentence,) = what_attention_misses(subject, Bypass(0.0))
    assert f"features that no {layer} reaches: it has a step over all nodes" in sentence


@pytest.mark.parametrize("is_local", [True, False])
def test_a_step_over_all_nodes_is_noticed_in_outputs_of_some_nodes(is_local: bool) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GATConv(CHANNELS, CHANNELS), GATConv(CHANNELS, 3)

        def forward(self, x: Tensor, edge_index: Tensor, nodes: Tensor) -> Tensor:
            x = self.first(x, edge_index)
            return self.second(x if is_local else x - x.mean(0), edge_index)[nodes]

    torch.manual_seed(3)
    chain = torch.stack([torch.arange(NODES - 1), torch.arange(1, NODES)])
    nodes = torch.tensor([9, 1, 4])
    subject = Subject.of_data(Part().double().eval(), Data(X, chain, nodes=nodes), level="node")
    assert subject.targets("all").tolist() == nodes.tolist()
    sentences = what_attention_misses(subject, Bypass(0.0))
    assert len(sentences) == (not is_local)
    assert all("has a step over all nodes" in sentence for sentence in sentences)


@pytest.mark.parametrize("case", list(CASES))
def test_first_order_of_weight_is_the_derivative(case: str) -> None:
    """Against the same derivative by two passes with the messages of an edge a little smaller."""
    model, data = made(case, "SAGE", True)
    owners = CASES[case].owners(data.edge_index, data.edge_type)
    subject = Subject.of_data(model, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dense = attree.MessageGradient("weight").attribute(subject, [5]).dense(5)
    edges = dense[: data.num_edges].nonzero().view(-1).tolist()[:4]
    if not edges:  # the target has no edge of this type
        edges = [0, 1]
    for edge in edges:
        change = [share_of(model, data, edge, owners, share) for share in (1e-4, -1e-4)]
        assert float(dense[edge]) == pytest.approx((change[1] - change[0]) / 2e-4, rel=1e-3, abs=1e-7)


@torch.no_grad()
def share_of(model: Net, data: Data, edge: int, owners: list[list[int]], share: float) -> float:
    """The probability of the predicted class with the messages of an edge times 1 - share."""
    lists: dict[nn.Module, Tensor] = {}
    handles = []
    predicted = int(model(data.x, data.edge_index, data.edge_type)[5].argmax())
    for conv, number in convs_of(model):

        def scale(conv: MessagePassing, _: Any, messages: Tensor, number: int = number) -> Tensor:
            is_of_edge = owners_of(lists[conv], data, owners[number]) == edge
            return messages * torch.where(is_of_edge, 1 - share, 1.0).unsqueeze(1)

        handles.append(conv.register_propagate_forward_pre_hook(lambda conv, inputs: lists.update({conv: inputs[0]})))
        handles.append(conv.register_message_forward_hook(scale))
    out = model(data.x, data.edge_index, data.edge_type).softmax(-1)[5, predicted]
    for handle in handles:
        handle.remove()
    return float(out)
