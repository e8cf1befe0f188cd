"""Effects, statistics and verdict are the same by each engine, and with one thread and two, to every printed digit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.nn import TransformerConv

import attree
from attree.evaluation import Evaluation
from attree.faithfulness import CopiesReducer, ExactReducer, Reducer, WholeReducer
from attree.models import GAT, GATv2, SuperGAT
from attree.tensors.memory import REDUCTION_MEMORY
from helpers.graphs import randomize


class Transformers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = TransformerConv(6, 8, heads=2), TransformerConv(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


NETS: dict[str, Callable[[], nn.Module]] = {
    "GAT": lambda: GAT(6, 3, 8, 2, 2),
    "GATv2": lambda: GATv2(6, 3, 8, 3),
    "SuperGAT": lambda: SuperGAT(6, 3, 8, 2),
    "PyG GAT": lambda: PyGGAT(6, 8, 2, 3, heads=2, norm="batch", jk="cat"),
    "Transformer": Transformers,
}


def graph() -> Data:
    """Some nodes have equal features, so that many effects are exactly 0 or equal."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(8, 6, generator=generator)[torch.randint(8, (60,), generator=generator)]
    return Data(x=x, edge_index=torch.randint(60, (2, 150), generator=generator))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def evaluated(model: nn.Module, engine: type, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    with monkeypatch.context() as patched:
        patched.setattr(Reducer.__init__, "__defaults__", (REDUCTION_MEMORY, (engine,)))
        return attree.evaluate(
            model, graph(), num_targets=12, methods=["gatt", "avgatt", "uniform", "random", "occlusion"]
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(NETS))
def test_every_digit_is_the_same(name: str, threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = randomize(NETS[name](), 1, scale=0.5).eval()
    threads(1)
    first = evaluated(model, ExactReducer, monkeypatch)
    for engine, count in ((ExactReducer, 2), (CopiesReducer, 1), (CopiesReducer, 2), (WholeReducer, 1)):
        threads(count)
        other = evaluated(model, engine, monkeypatch)
        for protocol, reduction in first.reductions.items():
            assert torch.equal(reduction.delta_pc, other.reductions[protocol].delta_pc)
            assert torch.equal(reduction.delta_ne, other.reductions[protocol].delta_ne)
            assert torch.equal(reduction.changed, other.reductions[protocol].changed)
        assert str(first) == str(other)
        assert str(first.verdict) == str(other.verdict)
