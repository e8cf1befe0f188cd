"""What was found out about a model is not used after a flag or a buffer has switched a path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv

from attree.attribution import subject_pairs
from attree.faithfulness import PROTOCOLS, ExactReducer, Reducer, WholeReducer
from attree.subject import Subject
from helpers.graphs import NODES, messy_graph, randomize

X = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(0))
EDGES = messy_graph(1)


class Switched(nn.Module):
    """Three layers; a flag or a warm-up buffer adds the first layer's output to the last layer's."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GATConv(4, 3), GATConv(3, 3), GATConv(3, 3)])
        self.skip = False
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = self.convs[0](x, edge_index).tanh()
        out = self.convs[2](self.convs[1](first, edge_index).tanh(), edge_index)
        return out + 2 * first if self.skip or int(self.steps) >= 3 else out


def set_flag(model: Switched) -> None:
    model.skip = True


def count_steps(model: Switched) -> None:
    model.steps += 3


@pytest.mark.parametrize("switch", [set_flag, count_steps])
def test_a_switched_path_is_found(switch: Callable[[Switched], None]) -> None:
    model = randomize(Switched(), 2).eval()

    def effects(engine: type) -> Tensor:
        subject = Subject.of(model, X, EDGES)
        pairs = subject_pairs(subject)
        reducer = Reducer(subject, engines=(engine,))
        return reducer.record().reduce(pairs, PROTOCOLS["removal"]).delta_pc

    before = effects(ExactReducer)
    assert torch.equal(before, effects(WholeReducer))
    switch(model)
    after = effects(ExactReducer)
    assert not torch.equal(before, after)
    assert torch.equal(after, effects(WholeReducer))
