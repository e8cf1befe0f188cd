"""Links that a model takes as two arguments, or as a pair of tensors, are explained like those in one tensor."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

import attree
from attree.faithfulness import PROTOCOLS, CopiesReducer, ExactReducer, Reducer, WholeReducer
from attree.subject import Subject

NODES, CHANNELS = 14, 6
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(NODES, CHANNELS, generator=GENERATOR).double()
EDGES = torch.randint(0, NODES, (2, 40), generator=GENERATOR)
EDGES = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
SRC, DST = torch.tensor([0, 1, 2, 5]), torch.tensor([3, 4, 5, 6])


class Joined(nn.Module):
    """Two layers and a decoder that takes one tensor."""

    def __init__(self, layer: type) -> None:
        super().__init__()
        self.first, self.second = layer(CHANNELS, CHANNELS), layer(CHANNELS, CHANNELS)

    def decode(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return (z[src] * z[dst].roll(1, dims=1)).sum(-1)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        return self.decode(self.encode(x, edge_index), *edge_label_index)


class Apart(Joined):
    def forward(self, x: Tensor, edge_index: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return self.decode(self.encode(x, edge_index), src, dst)


class ByName(Joined):
    def forward(self, x: Tensor, edge_index: Tensor, *, heads: Tensor, tails: Tensor) -> Tensor:
        return self.decode(self.encode(x, edge_index), heads, tails)


class First(Joined):
    def forward(self, src: Tensor, dst: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.decode(self.encode(x, edge_index), src, dst)


class Pair(Joined):
    def forward(self, x: Tensor, edge_index: Tensor, links: tuple[Tensor, Tensor]) -> Tensor:
        return self.decode(self.encode(x, edge_index), *links)


MODELS: dict[str, tuple[type[Joined], dict[str, Any]]] = {
    "two arguments": (Apart, {"src": SRC, "dst": DST}),
    "by name": (ByName, {"heads": SRC, "tails": DST}),
    "before the features": (First, {"src": SRC, "dst": DST}),
    "a pair": (Pair, {"links": (SRC, DST)}),
    "a list": (Pair, {"links": [SRC, DST]}),
}


@pytest.mark.parametrize("layer", [GATConv, GCNConv])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_one_tensor(name: str, layer: type) -> None:
    make, ends = MODELS[name]
    torch.manual_seed(0)
    joined, other = Joined(layer).double(), make(layer).double()
    other.load_state_dict(joined.state_dict())
    settings: dict[str, Any] = {
        "targets": "all",
        "protocols": ["removal", "weight"],
        "methods": ["occlusion", "random"],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = attree.evaluate(joined, Data(X, EDGES, edge_label_index=torch.stack([SRC, DST])), **settings)
        result = attree.evaluate(other, Data(X, EDGES, **ends), **settings)
    assert result.pairs.level == "edge"
    assert torch.equal(result.pairs.edges, expected.pairs.edges)
    for protocol, reduction in expected.reductions.items():
        assert float(reduction.delta_pc.abs().max()) > 1e-3
        assert torch.equal(result.reductions[protocol].delta_pc, reduction.delta_pc)


@pytest.mark.parametrize("engine", [ExactReducer, CopiesReducer, WholeReducer])
def test_every_engine_takes_them(engine: Any) -> None:
    torch.manual_seed(0)
    subject = Subject.of_data(Apart(GATConv).double(), Data(X, EDGES, src=SRC, dst=DST))
    pairs = attree.attribution.subject_pairs(subject)
    expected = Reducer(subject).record().reduce(pairs, PROTOCOLS["removal"])
    found = Reducer(subject, engines=(engine,)).record().reduce(pairs, PROTOCOLS["removal"])
    torch.testing.assert_close(found.delta_pc, expected.delta_pc)


def test_whole_data_by_a_function() -> None:
    torch.manual_seed(0)
    model = Apart(GATConv).double()
    data = Data(X, EDGES, src=SRC, dst=DST)
    called = Subject.of_data(model, data, call=lambda model, data: model(data.x, data.edge_index, data.src, data.dst))
    assert called.level == "edge"
    assert torch.equal(called.outputs.ends, torch.stack([SRC, DST]))


def test_integers_that_are_no_ends_stay_what_they_are() -> None:
    """Two arguments as long as the output, of which rows read only their own node."""

    class Tagged(Joined):
        def forward(self, x: Tensor, edge_index: Tensor, first: Tensor, second: Tensor) -> Tensor:
            return self.encode(x, edge_index) + first.unsqueeze(1) * second.unsqueeze(1) / 100

    torch.manual_seed(0)
    tags = torch.arange(NODES) % 3
    subject = Subject.of_data(Tagged(GATConv).double(), Data(X, EDGES, first=tags, second=tags.flip(0)))
    assert subject.level == "node"
