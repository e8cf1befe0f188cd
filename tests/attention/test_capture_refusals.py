"""What attention cannot be captured from is refused by name, and the model left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import AttentiveFP, GATConv, HANConv, HEATConv, HGTConv, RGATConv, to_hetero
from torch_geometric.utils import softmax, to_torch_coo_tensor

from attree.attention import capture_attention
from helpers.attention_models import CLEAN, OwnConv, Stack, X, snapshot
from helpers.no_warnings import no_warnings


class Bipartite(nn.Module):
    def __init__(self, sizes: tuple[int, int]) -> None:
        super().__init__()
        self.conv = GATConv((4, 4), 3, add_self_loops=False)
        self.sizes = sizes

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv((x[: self.sizes[0]], x[: self.sizes[1]]), edge_index)


class TwoSides(Bipartite):
    """As many sources as destinations, but not the same nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv((x, x.flip(0)), edge_index)


class FirstNodes(nn.Module):
    """Its layers see only the first nodes, which all edges are among."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x[:5], edge_index)


class Readout(OwnConv):
    """Returns one row for the whole graph."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x).sum(0, keepdim=True)


class Rewires(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index.flip(1))


class MakesSparse(Rewires):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, to_torch_coo_tensor(edge_index, size=6).t())


class CallsNone(Rewires):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


class Relational(nn.Module):
    """Edges of two relations, or all of the second."""

    def __init__(self, both: bool, mechanism: str = "within-relation") -> None:
        super().__init__()
        self.conv = RGATConv(4, 3, num_relations=2, attention_mechanism=mechanism)
        self.both = both

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        relation = torch.ones(edge_index.shape[1], dtype=torch.int64)
        if self.both:
            relation[:2] = 0
        return self.conv(x, edge_index, relation)


class PerGroup(OwnConv):
    """One softmax, but with a score for every second edge only."""

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        softmax((x_i * x_j)[::2], index[::2], num_nodes=size_i)
        return x_j


@pytest.mark.parametrize("both", [True, False])
def test_attention_within_relations_is_one_softmax_each(both: bool) -> None:
    attention = capture_attention(Relational(both), X, CLEAN)
    relation = torch.tensor([0 if both else 1] * 2 + [1] * 4)
    for one in range(2):
        own = relation == one
        sums = torch.zeros(6).index_add_(0, CLEAN[1, own], attention.weights[0][:6, 0][own])
        torch.testing.assert_close(sums, torch.zeros(6).index_fill_(0, CLEAN[1, own], 1.0))
    assert attention.uniform_weights is not None
    even = [1 / int(((relation == relation[e]) & (CLEAN[1] == CLEAN[1, e])).sum()) for e in range(6)]
    torch.testing.assert_close(attention.uniform_weights[0], torch.tensor(even + [0.0] * 6))


class Typed(nn.Module):
    """Nodes and edges of one list, with the type of each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = HEATConv(
            4, 3, num_node_types=2, num_edge_types=2, edge_type_emb_dim=2, edge_dim=2, edge_attr_emb_dim=2
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index, torch.arange(6) % 2, torch.arange(6) % 2, torch.ones(6, 2))


def test_attention_with_types_of_nodes_and_edges_is_one_softmax() -> None:
    with no_warnings():
        attention = capture_attention(Typed(), X, CLEAN)
    sums = torch.zeros(6).index_add_(0, CLEAN[1], attention.weights[0][:6, 0])
    torch.testing.assert_close(sums, torch.tensor([1.0] * 5 + [0.0]))


def test_attention_across_relations_is_one_softmax() -> None:
    attention = capture_attention(Relational(both=True, mechanism="across-relation"), X, CLEAN)
    sums = torch.zeros(6).index_add_(0, CLEAN[1], attention.weights[0][:6, 0])
    torch.testing.assert_close(sums, torch.tensor([1.0] * 5 + [0.0]))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Linear(4, 4), "Linear, which has none"),
        (Bipartite((6, 5)), "two node sets"),
        (TwoSides((6, 6)), r"`conv` \(GATConv\) to map nodes to the same nodes, but it has two node sets"),
        (FirstNodes(), r"`conv` \(GATConv\) to take features of all 6 nodes of the graph, but got 5 rows"),
        (Readout(), r"Readout to return features of all 6 nodes of the graph, but got 1 rows"),
        (Rewires(), "ran on them in another order"),
        (MakesSparse(), r"edge_index as a \[2, E\] tensor"),
        (CallsNone(), "it called none"),
        (Stack(GATConv(4, 4, flow="target_to_source")), "target_to_source"),
        (Stack(PerGroup()), r"`convs.0` \(PerGroup\) .* its 6 edges, but the last of 1 calls had 3 scores"),
    ],
    ids=[
        *(
            "no convolution",
            "bipartite",
            "two sides",
            "first nodes",
            "readout",
            "rewired",
            "sparse inside",
            "not called",
            "reversed",
        ),
        "some edges",
    ],
)
def test_refuses_what_it_cannot_follow(model: nn.Module, reason: str) -> None:
    before = snapshot(model)
    with pytest.raises(TypeError, match=reason):
        capture_attention(model, X, CLEAN)
    assert snapshot(model) == before


def test_both_sides_of_one_node_set_are_no_bipartite_graph() -> None:
    assert capture_attention(Bipartite((6, 6)), X, CLEAN).weights[0].shape == (12, 1)


def test_refuses_unusable_edges() -> None:
    model = Stack(GATConv(4, 4))
    for edge_index, reason in (
        (to_torch_coo_tensor(CLEAN, size=6), "not a sparse matrix"),
        (CLEAN.T, r"of shape \[2, num_edges\]"),
        (CLEAN.int(), "torch.int64"),
        (CLEAN + 2, r"node ids in \[0, 6\)"),
    ):
        with pytest.raises(ValueError, match=reason):
            capture_attention(model, X, edge_index)


class SparseTensor:
    """As torch_sparse's: no tensor at all."""


def test_refuses_what_is_no_graph_of_one_kind() -> None:
    model = Stack(GATConv(4, 4))
    with pytest.raises(RuntimeError, match=r"Stack\.forward to run on these arguments, but it raised ValueError"):
        capture_attention(model, {"paper": X}, {("paper", "cites", "paper"): CLEAN})
    with pytest.raises(ValueError, match="`x` to be a dict by node type, as `edge_index` is one"):
        capture_attention(model, X, {("paper", "cites", "paper"): CLEAN})
    with pytest.raises(ValueError, match="`edge_index` to be a dict by edge type, as `x` is one"):
        capture_attention(model, {"paper": X}, CLEAN)
    with pytest.raises(ValueError, match=r"relation, destination\) among \['paper'\], but got \('a', 'to', 'paper'\)"):
        capture_attention(model, {"paper": X}, {("a", "to", "paper"): CLEAN})
    with pytest.raises(ValueError, match="`x` to be a tensor with one row per node, but got 'tuple'"):
        capture_attention(model, (X, X), CLEAN)
    with pytest.raises(ValueError, match=r"`x` to be a tensor with one row per node, but got 'a tensor of shape \(\)'"):
        capture_attention(model, X[0, 0], CLEAN)
    with pytest.raises(ValueError, match="not a sparse matrix, but got 'SparseTensor'"):
        capture_attention(model, X, SparseTensor())


class Heterogeneous(nn.Module):
    """Takes a plain graph, works on a heterogeneous one."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv({"node": x}, {("node", "to", "node"): edge_index})["node"]


METADATA = (["node"], [("node", "to", "node")])


@pytest.mark.parametrize("conv", [HGTConv(4, 4, METADATA, heads=2), HANConv(4, 4, METADATA, heads=2)])
def test_refuses_heterogeneous_layers(conv: nn.Module) -> None:
    with pytest.raises(TypeError, match=rf"`conv` \({type(conv).__name__}\) to map nodes to the same nodes"):
        capture_attention(Heterogeneous(conv), X, CLEAN)


def test_one_type_of_nodes_is_a_graph_of_one_type() -> None:
    torch.manual_seed(0)
    model = to_hetero(Plain(), METADATA)
    attention = capture_attention(model, {"node": X}, {("node", "to", "node"): CLEAN})
    plain = capture_attention(next(conv for conv in model.modules() if isinstance(conv, GATConv)), X, CLEAN)
    assert torch.equal(attention.weights[0], plain.weights[0])


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 4, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


@pytest.mark.parametrize("num_graphs", [1, 6])
def test_attention_from_atoms_to_molecules_is_no_layer_if_it_shows(num_graphs: int) -> None:
    model = AttentiveFP(4, 4, 2, edge_dim=3, num_layers=2, num_timesteps=2)
    batch = torch.arange(6) % num_graphs
    arguments = X, CLEAN, torch.randn(6, 3), batch.sort().values
    if num_graphs == 1:
        assert capture_attention(model, *arguments).num_layers == 2
        return
    # As many molecules as atoms: nothing shows that the rows are no nodes.
    with pytest.raises(TypeError, match=r"`mol_conv` \(GATConv\) to map nodes to the same nodes"):
        capture_attention(model, *arguments)
