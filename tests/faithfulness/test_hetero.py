"""Heterogeneous models: reducing an edge of the union of types equals one masked forward pass of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    HANConv,
    HeteroConv,
    HGTConv,
    MessagePassing,
    TransformerConv,
    to_hetero,
)
from torch_geometric.utils import softmax as pyg_softmax

from attree.attribution import subject_pairs
from attree.faithfulness import PROTOCOLS, ExactReducer, Reducer, WholeReducer, reduce_attention
from attree.subject import Head, Subject
from helpers.graphs import randomize
from helpers.hetero import CHANNELS, METADATA, RELATIONS, SIZES, EdgeType, HeteroNet, Plain, Stacked, hetero_graph

DATA = hetero_graph()
LINKS = torch.tensor([[0, 3, 4, 1, 0], [6, 2, 5, 0, 6]])
LOGIT = Head(mode="binary_classification", return_type="raw")
MODULES = ("gat_conv", "gatv2_conv", "transformer_conv", "hgt_conv", "han_conv")


class AuthorOfPaper(nn.Module):
    """Links of authors and papers, by a dot product or by a linear decoder."""

    def __init__(self, encoder: nn.Module, dot: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, None if dot else nn.Linear(2 * CHANNELS, 1)

    def forward(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor], edge_label_index: Tensor
    ) -> Tensor:
        z = self.encoder(x_dict, edge_index_dict)
        u, v = z["author"][edge_label_index[0]], z["paper"][edge_label_index[1]]
        return (u * v).sum(-1) if self.decoder is None else self.decoder(torch.cat([u, v], -1)).view(-1)


class Layers(nn.Module):
    """Layers that take and return dicts."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> dict[str, Tensor]:
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return x_dict


class FewerRelations(nn.Module):
    """Two layers of which the first has two relations only, so that most edges are first met in the second."""

    def __init__(self) -> None:
        super().__init__()
        few = [("author", "writes", "paper"), ("paper", "written_by", "author")]
        self.first, self.last = (
            HeteroConv({kind: GATv2Conv((-1, -1), CHANNELS, add_self_loops=False) for kind in kinds})
            for kinds in (few, list(RELATIONS))
        )

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> dict[str, Tensor]:
        hidden = {**x_dict, **self.first(x_dict, edge_index_dict)}
        return self.last({kind: x.tanh() for kind, x in hidden.items()}, edge_index_dict)


def hgt() -> HGTConv:
    return HGTConv(CHANNELS, CHANNELS, METADATA, heads=2)


NODES: dict[str, tuple[nn.Module, type[Any]]] = {
    "HGT": (Stacked(hgt(), hgt()), ExactReducer),
    "HeteroConv sum of GAT": (HeteroNet(GATConv, "sum"), ExactReducer),
    "HeteroConv sum of GAT with loops": (HeteroNet(GATConv, "sum", loops=True), ExactReducer),
    "HeteroConv mean of GATv2": (HeteroNet(GATv2Conv, "mean", add_self_loops=False), ExactReducer),
    "HeteroConv mean of TransformerConv": (HeteroNet(TransformerConv, "mean", heads=2, concat=False), ExactReducer),
    "HeteroConv cat of GAT": (HeteroNet(GATConv, "cat"), ExactReducer),
    "other relations in each layer": (FewerRelations(), ExactReducer),
    "to_hetero": (to_hetero(Plain(), METADATA), ExactReducer),
    # Semantic attention is a mean over all nodes of a type.
    "HAN": (Stacked(HANConv(CHANNELS, CHANNELS, METADATA, heads=2)), WholeReducer),
}
PAIRS: dict[str, nn.Module] = {
    "HGT, dot product": AuthorOfPaper(Layers(hgt(), hgt()), dot=True),
    "HeteroConv, linear": AuthorOfPaper(HeteroNet(GATConv, "sum"), dot=False),
    "HeteroConv, dot product": AuthorOfPaper(HeteroNet(GATConv, "sum"), dot=True),
}


@cache
def ready(name: str) -> Any:
    """A model in float64 with sizes of lazy layers known and parameters far from 0."""
    model = (NODES[name][0] if name in NODES else PAIRS[name]).double().eval()
    with torch.no_grad():
        model(DATA.x_dict, DATA.edge_index_dict, *([LINKS] if name in PAIRS else []))
    return randomize(model, 3, scale=0.7)


@contextmanager
def masked(model: nn.Module, kind: EdgeType | None, place: int, protocol: str) -> Iterator[None]:
    """While open, one edge is reduced in every softmax: edge `place` of a type, or the loop of a paper.

    Nothing of attree computes here. A convolution of one relation runs on that relation's own edges; HGT runs on those
    of all relations in their order.
    """
    seen: list[Tensor] = []

    def see(conv: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    def softmax(src: Tensor, index: Tensor, *rest: object, **options: object) -> Tensor:
        edges, counts = seen[-1], [DATA[own].edge_index.shape[1] for own in RELATIONS]
        given = None if kind is None else DATA[kind].edge_index
        at: list[int] = []
        if edges.shape[1] == sum(counts):
            at = [] if kind is None else [sum(counts[: list(RELATIONS).index(kind)]) + place]
        elif given is not None and torch.equal(edges, given):
            at = [place]
        elif edges.shape[1] > len(edges[0].unique()) and edges[:, -SIZES["paper"] :].unique(dim=0).shape[0] == 1:
            # Papers cite papers, with loops: the given ones were dropped, and one for each node was added behind.
            cites = DATA["paper", "cites", "paper"].edge_index
            proper = (cites[0] != cites[1]).nonzero().view(-1)
            if kind is None:
                at = [proper.numel() + place]
            elif kind == ("paper", "cites", "paper"):
                loop = int(cites[0, place]) == int(cites[1, place])
                at = [proper.numel() + int(cites[0, place])] if loop else [int((proper < place).sum())]
        where = torch.tensor(at, dtype=torch.int64)
        if protocol == "coefficient":
            return pyg_softmax(src.index_fill(0, where, 0.0), index, *rest, **options)
        src = src.index_fill(0, where, -1e30) if protocol == "removal" else src
        return pyg_softmax(src, index, *rest, **options).index_fill(0, where, 0.0)

    with ExitStack() as stack:
        for name in MODULES:
            stack.enter_context(mock.patch(f"torch_geometric.nn.conv.{name}.softmax", softmax))
        for module in model.modules():
            if isinstance(module, MessagePassing):
                stack.callback(module.register_propagate_forward_pre_hook(see).remove)
                stack.callback(module.register_edge_update_forward_pre_hook(see).remove)
        yield


@torch.no_grad()
def one_pass_each(subject: Subject, edges: list[int], protocol: str) -> dict[int, Tensor]:
    """The model's outputs with each of the union's edges reduced in turn."""
    types, found = subject.graph.types, {}
    assert types is not None
    for edge in edges:
        kind, place = None, edge - types.edge_ptr[-1] - types.nodes("paper").start
        if edge < types.edge_ptr[-1]:
            kind = next(own for own in types.edge_types if edge in types.edges(own))
            place = edge - types.edges(kind).start
        with masked(subject.model, kind, place, protocol):
            found[edge] = subject.call.run()
    return found


def assert_as_one_pass_each(subject: Subject, recorded: Any, targets: list[int], head: Head | None = None) -> None:
    """Every edge is compared under one of the protocols, so that there is one reference pass for each edge."""
    pairs = subject_pairs(subject, targets)
    rows = pairs.targets[pairs.owner]
    for number, protocol in enumerate(PROTOCOLS.values()):
        reduction = recorded.reduce(pairs, protocol, with_probability=True)
        chosen = (pairs.edges % len(PROTOCOLS) == number).nonzero().view(-1)
        after = one_pass_each(subject, pairs.edges[chosen].unique().tolist(), protocol.name)
        held = zip(pairs.edges[chosen].tolist(), rows[chosen].tolist(), strict=True)
        outputs = torch.stack([after[edge][row] for edge, row in held])
        logits = outputs if head is None else torch.stack([torch.zeros_like(outputs), outputs], dim=-1)
        torch.testing.assert_close(reduction.probability[chosen], logits.softmax(-1), rtol=0, atol=1e-9)
        assert float(reduction.delta_pc.abs().max()) > 1e-3


@pytest.mark.filterwarnings("ignore:Attention of .* is reduced by:UserWarning")
@pytest.mark.parametrize("name", list(NODES))
def test_nodes_are_as_one_pass_each(name: str) -> None:
    subject = Subject.of_data(ready(name), DATA, node_type="paper")
    reducer = Reducer(subject)
    assert_as_one_pass_each(subject, reducer.record(), [5, 2])
    assert isinstance(reducer.engine, NODES[name][1])
    if name == "HGT":
        assert_as_one_pass_each(subject, WholeReducer(subject).record(), [2])


@pytest.mark.filterwarnings("ignore:Attention of .* is reduced by:UserWarning")
@pytest.mark.parametrize("name", list(PAIRS))
def test_links_between_types_are_as_one_pass_each(name: str) -> None:
    model = ready(name)
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict, edge_label_index=LINKS, head=LOGIT)
    assert subject.level == "edge"
    reducer = Reducer(subject)
    assert_as_one_pass_each(subject, reducer.record(), [3, 0], LOGIT)
    assert isinstance(reducer.engine, ExactReducer)


def test_dicts_are_taken_as_tensors_are() -> None:
    model = ready("HeteroConv sum of GAT")
    subject = Subject.of_data(model, DATA, node_type="author")
    pairs = subject_pairs(subject, [1, 4])
    reduction = reduce_attention(model, DATA.x_dict, DATA.edge_index_dict, pairs, "removal", node_type="author")
    expected = WholeReducer(subject).record().reduce(pairs, PROTOCOLS["removal"])
    torch.testing.assert_close(reduction.delta_pc, expected.delta_pc, rtol=0, atol=1e-9)
    assert float(expected.delta_pc.abs().max()) > 1e-3
