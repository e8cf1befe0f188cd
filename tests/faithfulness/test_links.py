"""Link predictors on every engine: each reduction equals one masked pass of the whole model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GATConv, GATv2Conv, TransformerConv

from attree.attribution import Pairs, subject_pairs
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reducer, WholeReducer
from attree.faithfulness.exact import reduction_plan
from attree.subject import Head, Subject
from attree.subject.model_call import NotRowwiseError
from helpers.graphs import NODES, messy_graph, randomize
from helpers.no_warnings import no_warnings
from helpers.one_pass_each import reduced_outputs

EDGES = messy_graph(1)
X = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(0)).double()
# Twice the same link, a link of a node with itself, one with an isolated node, one in both directions.
LINKS = torch.tensor([[0, 3, 5, 2, 10, 7, 3, 4, 8, 1], [5, 9, 0, 2, 1, 3, 9, 6, 7, 4]])
LOGIT = Head(mode="binary_classification", return_type="raw")


class Dot(nn.Module):
    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return (u * v).sum(dim=-1)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 1))

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.layers(torch.cat([u, v], dim=-1)).squeeze(-1)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(5, 5, 3)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.layer(u, v)


class CrossNet(nn.Module):
    """Products of both ends through a one-dimensional convolution, as in PyG's EdgeCNN-like decoders."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(2, 3, 3, padding=1), nn.Linear(15, 1)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.head(self.conv(torch.stack([u, v], dim=1)).relu().flatten(1)).view(-1)


class AcrossLinks(nn.Module):
    """Compares links with one another."""

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return (u * v).sum(dim=-1).log_softmax(dim=0)


class LinkNet(nn.Module):
    def __init__(self, decoder: nn.Module, *convs: nn.Module, skip: bool = False) -> None:
        super().__init__()
        self.convs, self.decoder, self.skip = nn.ModuleList(convs), decoder, skip

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        seen = 0
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
            seen = seen + x if self.skip else 0
        z = self.convs[-1](x, edge_index) + seen
        return self.decoder(z[edge_label_index[0]], z[edge_label_index[1]])


class LastRows(nn.Module):
    """Its decoder reads the last node beside the ends of a link."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GAT(4, 6, 2, 5)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.net(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1) + z[-1].sum()


class Labelled(nn.Module):
    """Marks the nodes that links are asked for between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(4, 5), GATConv(5, 5)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.first(x, edge_index)
        z = self.last(z.index_add(0, edge_label_index[0], torch.ones_like(z[edge_label_index[0]])), edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


SERVED: dict[str, tuple[nn.Module, Head | None]] = {
    "dot": (LinkNet(Dot(), GATConv(4, 6), GATConv(6, 5)), LOGIT),
    "mlp": (LinkNet(MLP(), GATv2Conv(4, 6, heads=2), GATv2Conv(12, 5)), LOGIT),
    "bilinear, three classes": (LinkNet(Bilinear(), TransformerConv(4, 6), GATConv(6, 5)), None),
    "convolution over both ends": (LinkNet(CrossNet(), GATConv(4, 5)), LOGIT),
    "skips": (LinkNet(Dot(), GATConv(4, 5), GATConv(5, 5), GATConv(5, 5), skip=True), LOGIT),
}


def subject(model: nn.Module, head: Head | None) -> Subject:
    return Subject.of(model, X, EDGES, edge_label_index=LINKS, head=head)


def expected(model: nn.Module, pairs: Pairs, protocol: str, head: Head | None) -> Tensor:
    """Class probabilities of each pair's link in a pass of its own."""
    outputs = torch.stack(reduced_outputs(model, pairs.graph.edge_index, protocol, X, EDGES, edge_label_index=LINKS))
    logits = outputs if head is None else torch.stack([torch.zeros_like(outputs), outputs], dim=-1)
    return logits.softmax(-1)[pairs.edges, pairs.targets[pairs.owner]]


@pytest.mark.parametrize("name", list(SERVED))
def test_links_on_rows_are_as_one_pass_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, head = SERVED[name]
    model = randomize(model, 4, scale=0.5).double().eval()
    own = subject(model, head)
    assert own.level == "edge"
    pairs = subject_pairs(own, [9, 0, 3, 4, 1, 6])
    with no_warnings():
        recorded = Reducer(own).record()
        assert isinstance(recorded.engine, ExactReducer)
        for protocol in PROTOCOLS.values():
            reduction = recorded.reduce(pairs, protocol, with_probability=True)
            after = expected(model, pairs, protocol.name, head)
            torch.testing.assert_close(reduction.probability, after, rtol=0, atol=1e-9)
            assert float(reduction.delta_pc.abs().max()) > 1e-4
        monkeypatch.setattr(reduction_plan, "CHUNK_BYTES", 2_000)
        again = Reducer(own).record().reduce(pairs, protocol, with_probability=True)
        torch.testing.assert_close(again.probability, after, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", [CopiesReducer, WholeReducer])
def test_the_other_engines_agree(engine: Any) -> None:
    model, head = SERVED["mlp"]
    own = subject(randomize(model, 4, scale=0.5).double().eval(), head)
    pairs = subject_pairs(own, [0, 3, 5])
    rows, other = (made(own).record().reduce(pairs, PROTOCOLS["removal"]) for made in (ExactReducer, engine))
    torch.testing.assert_close(rows.delta_pc, other.delta_pc, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (LinkNet(AcrossLinks(), GATConv(4, 5)), "each link separately"),
        (LastRows(), "each link separately"),
        (Labelled(), "sees the links to predict"),
    ],
    ids=["across links", "last row", "labelled"],
)
def test_what_is_not_computed_link_by_link_goes_to_the_whole_graph(model: nn.Module, reason: str) -> None:
    model = randomize(model, 4, scale=0.5).double().eval()
    own = Subject.of(model, X, EDGES, edge_label_index=LINKS, level="edge", head=LOGIT)
    with pytest.raises(NotRowwiseError, match=reason):
        ExactReducer(own).record()
    pairs = subject_pairs(own, [0, 5, 7])
    with pytest.warns(UserWarning, match="one pass over the whole graph"):
        reduction = Reducer(own).record().reduce(pairs, PROTOCOLS["weight"], with_probability=True)
    torch.testing.assert_close(reduction.probability, expected(model, pairs, "weight", LOGIT), rtol=0, atol=1e-9)
