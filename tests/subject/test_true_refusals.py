"""A refusal says what is true of the model and names a way out; where the way out is code, it works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATConv
from torch_geometric.utils import sort_edge_index, to_edge_index, to_undirected

import attree
from attree.attention import capture_attention
from attree.errors import AttreeError

NODES, WIDTH = 12, 4


def edges() -> Tensor:
    """A directed graph without self-loops, double edges and edges in both directions."""
    order = torch.randperm(NODES * (NODES - 1) // 2, generator=torch.Generator().manual_seed(0))[:24]
    return torch.triu_indices(NODES, NODES, 1)[:, order].flip(0).contiguous()


def graph(**more: Any) -> Data:
    x = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1))
    return Data(x=x, edge_index=edges(), **more)


def adjacency(layout: torch.layout) -> Tensor:
    matrix = torch.zeros(NODES, NODES)
    matrix[edges()[1], edges()[0]] = 1
    return matrix.to_sparse(layout=layout)


class Two(nn.Module):
    """Two layers; subclasses run them on other edges than those of the data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = GATConv(WIDTH, 8), GATConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


class ByRelation(Two):
    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        h = self.first(x, edge_index[:, edge_type == 0]) + self.first(x, edge_index[:, edge_type == 1])
        return self.last(h.relu(), edge_index)


class Undirected(Two):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, to_undirected(edge_index))


class Sorted(Two):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, sort_edge_index(edge_index))


class Reversed(Two):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index.flip(0))


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = GATConv(WIDTH, 8), GATConv(WIDTH, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        branches = torch.stack([self.one(x, edge_index), self.two(x, edge_index)], dim=1)
        return self.last(torch.einsum("nkd,k->nd", branches, torch.tensor([0.3, 0.7])))


class Sparse(Two):
    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        return super().forward(x, adj_t)


class Counts(Two):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return super().forward(x, edge_index) * (1 + self.calls)


class Starts(Two):
    """Returns something else in its first call."""

    has_run = False

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        factor, self.has_run = 0.5 if self.has_run else 1.0, True
        return super().forward(x, edge_index) * factor


class Noisy(Two):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index) + torch.randn(len(x), 3)


class LinkEnds(Two):
    def forward(self, x: Tensor, edge_index: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        z = super().forward(x, edge_index)
        return (z[src] * z[dst]).sum(-1)


class InList(nn.Module):
    """Layers that PyTorch does not know: all, or one of them."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.layers = [GATConv(WIDTH, 8)]
        self.last = GATConv(8, 3) if last else nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.layers[0](x, edge_index).relu()
        return self.last(h, edge_index) if isinstance(self.last, GATConv) else self.last(h)


class Raises(Two):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raise KeyError("temperature")


def traced() -> Any:
    return torch.jit.trace(GAT(WIDTH, 8, 2, out_channels=3).eval(), (graph().x, edges()), check_trace=False)


REFUSALS: dict[str, tuple[Callable[[], tuple[Any, Data]], str]] = {
    "a product of branches": (lambda: (Mixed(), graph()), "`one`.*`two`.*combined by `matrix product`.*`call=`"),
    "a state": (lambda: (Counts(), graph()), "keeps a state.*self.training"),
    "a state after the first call": (lambda: (Starts(), graph()), "keeps a state.*self.training"),
    "random numbers": (lambda: (Noisy(), graph()), "draws random numbers"),
    "hidden layers": (lambda: (InList(last=False), graph()), "`layers` is a Python list with GATConv.*ModuleList"),
    "some hidden layers": (lambda: (InList(last=True), graph()), "`layers` is a Python list with GATConv.*ModuleList"),
    "traced": (lambda: (traced(), graph()), "traced, scripted or exported.*the model that it was made from"),
    "an error of its own": (
        lambda: (Raises(), graph()),
        r"Raises.forward to run.*KeyError \(test_true_refusals.py, line \d+\): 'temperature'",
    ),
}


OTHER_EDGES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a part of the edges": (ByRelation, r"`first`.*a part of them \(12 of 24\).*HeteroData"),
    "more edges": (Undirected, "24 edges that the data does not have.*`data.edge_index`"),
    "another order": (Sorted, "them in another order.*`data.edge_index`"),
    "reversed": (Reversed, "them reversed.*`data.edge_index`"),
}


@pytest.mark.parametrize("name", OTHER_EDGES)
def test_a_single_pass_says_on_which_edges_layers_run(name: str) -> None:
    """`capture_attention` sees one pass only; everything that has the data traces the edges."""
    make, sentence = OTHER_EDGES[name]
    types = (torch.arange(24) % 2,) if name == "a part of the edges" else ()
    with pytest.raises(AttreeError, match=sentence):
        capture_attention(make(), graph().x, edges(), *types)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSALS)
def test_the_reason_is_true_and_there_is_a_way_out(name: str) -> None:
    make, sentence = REFUSALS[name]
    model, data = make()
    with pytest.raises(AttreeError, match=sentence):
        attree.evaluate(model, data, [1, 2], ["gatt"], "removal")


def test_layers_in_a_list_that_are_registered_too_are_no_matter() -> None:
    model = Two()
    model.both = [model.first, model.last]  # type: ignore[assignment]
    attree.explain(model, graph(), 3)


WAYS_OUT: dict[str, tuple[nn.Module, Data, Callable[..., Tensor] | None]] = {
    "more edges": (Two(), Data(x=graph().x, edge_index=to_undirected(edges())), None),
    "reversed": (Two(), Data(x=graph().x, edge_index=edges().flip(0)), None),
    "a sparse argument": (
        Sparse(),
        Data(x=graph().x, edge_index=to_edge_index(adjacency(torch.sparse_csr))[0].flip(0)),
        lambda model, data: model(data.x, data.edge_index),
    ),
    "links by two arguments": (
        LinkEnds(),
        graph(edge_label_index=torch.stack([torch.tensor([0, 3, 5]), torch.tensor([1, 2, 7])])),
        lambda model, data: model(data.x, data.edge_index, *data.edge_label_index),
    ),
}
REFUSED_MODELS: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "more edges": (Undirected(), (edges(),)),
    "reversed": (Reversed(), (edges(),)),
    "a sparse argument": (Sparse(), (adjacency(torch.sparse_csr),)),
    "links by two arguments": (LinkEnds(), (edges(), torch.tensor([0, 3, 5]), torch.tensor([1, 2, 7]))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WAYS_OUT)
def test_ways_out_give_the_same_predictions_and_the_effects_of_deletion(name: str) -> None:
    model, data, call = WAYS_OUT[name]
    refused, arguments = REFUSED_MODELS[name]

    def run(edge_index: Tensor) -> Tensor:
        changed = data.clone()
        changed.edge_index = edge_index
        with torch.no_grad():
            return (model(changed.x, edge_index) if call is None else call(model, changed)).double()

    with torch.no_grad():
        assert torch.allclose(run(data.edge_index), refused(data.x, *arguments).double(), atol=1e-5)
    explanation = attree.explain(model, data, 1, call=call)
    logits = run(data.edge_index)[1]
    is_link = logits.dim() == 0
    for edge in explanation.edges:
        if edge.source == edge.destination:
            continue
        gone = (data.edge_index[0] == edge.source) & (data.edge_index[1] == edge.destination)
        after = run(data.edge_index[:, ~gone])[1]
        if is_link:
            sign = 1 if logits > 0 else -1
            expected = float((sign * logits).sigmoid() - (sign * after).sigmoid())
        else:
            expected = float(logits.softmax(-1).max() - after.softmax(-1)[logits.argmax()])
        assert edge.effect == pytest.approx(expected, abs=1e-6)


def test_a_sparse_adjacency_is_named_where_edges_are_asked_for() -> None:
    expected = re.escape("to_edge_index(adj_t)[0].flip(0)")
    for layout in (torch.sparse_coo, torch.sparse_csr):
        with pytest.raises(AttreeError, match=f"{layout}.*{expected}"):
            attree.capture_attention(Two(), graph().x, adjacency(layout))
