"""An Exphormer-like module with a softmax of its own over listed pairs, registered: its walk and its effects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool
from torch_geometric.utils import softmax, to_dense_batch

from attree.attention import ListedWeights, Mixing, register_global_attention
from attree.attention.global_attention_readers import _READERS
from attree.attribution import attribute_nodes
from attree.faithfulness import pair_effects
from attree.subject import Subject
from helpers.graph_transformers import CLASSES, IN, WIDTH, molecules, seeded

CUT: list[tuple[int, int] | None] = [None]
"""The pair of places (query, key), counted through all graphs, that the reference leaves out."""


class Expander(nn.Module):
    """Attention of each place to itself and to the places one and three further on in its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def listed(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and weights of the pairs."""
        graphs, places = x.shape[:2]
        size, place = mask.sum(1, keepdim=True), torch.arange(places).expand(graphs, -1)
        first = torch.arange(graphs).unsqueeze(1) * places
        query = torch.cat([(first + place)[mask]] * 3)
        key = torch.cat([(first + (place + step) % size)[mask] for step in (0, 1, 3)])
        pairs = torch.stack([query, key]).unique(dim=1)
        if CUT[0] is not None:
            pairs = pairs[:, ~((pairs[0] == CUT[0][0]) & (pairs[1] == CUT[0][1]))]
        q, k = self.q(x).flatten(0, 1), self.k(x).flatten(0, 1)
        scores = (q[pairs[0]] * k[pairs[1]]).sum(-1) / WIDTH**0.5
        return pairs[0], pairs[1], softmax(scores, pairs[0], num_nodes=graphs * places)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, weights = self.listed(x, mask)
        values = self.v(x).flatten(0, 1)
        return torch.zeros_like(values).index_add(0, query, weights.unsqueeze(1) * values[key]).view_as(x)


def read(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Mixing:
    assert isinstance(module, Expander)
    x, mask = args
    query, key, weights = module.listed(x, mask)
    listed = ListedWeights(query, key, weights.unsqueeze(1), x.shape[1])
    return Mixing(listed, module.v(x).unsqueeze(2), lambda mixed: mixed.squeeze(2), mask)


class Net(nn.Module):
    """A GIN beside the module, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(IN, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList(GINConv(nn.Linear(WIDTH, WIDTH)) for _ in range(2))
        self.expanders = nn.ModuleList(Expander() for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.first(x)
        for conv, expander in zip(self.convs, self.expanders, strict=True):
            dense, mask = to_dense_batch(x, batch)
            x = (conv(x, edge_index) + expander(dense, mask)[mask]).tanh()
        return global_add_pool(self.last(x), batch)


@pytest.fixture
def model() -> Iterator[nn.Module]:
    CUT[0] = None
    register_global_attention(Expander, read)
    yield seeded(Net())
    del _READERS[Expander]
    CUT[0] = None


def data_of(*sizes: int) -> Data:
    batch: Batch = molecules(*sizes)
    return Data(x=batch.x, edge_index=batch.edge_index, batch=batch.batch)


def test_pairs_leave_the_softmax_of_the_listed_pairs(model: nn.Module) -> None:
    data = data_of(5, 6)
    found = pair_effects(Subject.of_data(model, data), [1])

    def probability() -> Tensor:
        with torch.no_grad():
            return model(data.x, data.edge_index, data.batch)[1].softmax(-1)

    before = probability()
    assert len(found) == 36
    for query, key, effect in zip(found.query.tolist(), found.node.tolist(), found.delta_pc.tolist(), strict=True):
        CUT[0] = query - 5 + 6, key - 5 + 6  # the first graph has a place of padding
        expected = float((before - probability())[before.argmax()])
        assert effect == pytest.approx(expected, abs=2e-9)
        assert (expected != 0) == ((key - query) % 6 in (0, 1, 3))
    assert float(found.delta_pc.abs().max()) > 1e-6


def test_the_walk_follows_the_listed_pairs(model: nn.Module) -> None:
    data, size = data_of(6), 6
    inputs: list[Tensor] = []
    handles = [m.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for m in model.expanders]
    with torch.no_grad():
        model(data.x, data.edge_index, data.batch)
    for handle in handles:
        handle.remove()
    adjacency = torch.zeros(size, size, dtype=torch.float64)
    adjacency[data.edge_index[1], data.edge_index[0]] += 1
    r = torch.ones(size, dtype=torch.float64)
    for expander, x in reversed(list(zip(model.expanders, inputs, strict=True))):
        query, key, weights = expander.listed(x, torch.ones(1, size, dtype=torch.bool))
        matrix = torch.zeros(size, size, dtype=torch.float64).index_put((query, key), weights.detach())
        r = r @ (adjacency + matrix)
    scores = attribute_nodes(Subject.of_data(model, data), 0).dense(0)
    torch.testing.assert_close(scores.double(), r, atol=1e-6, rtol=1e-6)
