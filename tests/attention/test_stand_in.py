"""A stand-in runs in place of the model: the same numbers, and nothing of it reaches the model or another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATConv, GATv2Conv, TransformerConv

import attree
from attree.attention import stand_in
from attree.attention.stand_ins import copied, frozen
from helpers.attention_models import CLEAN, X, snapshot


class Helper:
    """A plain object that holds a layer of the model."""

    def __init__(self, conv: nn.Module) -> None:
        self.conv = conv


class Holder(nn.Module):
    """Calls its layers in many ways: by name, in a list, by a bound method, a closure, a partial and a helper."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GATConv(4, 4) for _ in range(6)])
        convs = list(self.convs)
        self.listed = convs[1:2]
        self.bound = convs[2].forward
        self.closure: Callable[..., Tensor] = lambda x, edges: convs[3](x, edges)
        self.partial = partial(convs[4], edge_index=CLEAN)
        self.helper = Helper(convs[5])
        self.calls = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls += 1
        x = self.listed[0](self.convs[0](x, edge_index), edge_index)
        x = self.closure(self.bound(x, edge_index), edge_index)
        return self.helper.conv(self.partial(x), edge_index)


def test_every_way_to_reach_a_layer_leads_to_the_copy() -> None:
    torch.manual_seed(0)
    model = Holder().eval()
    copy = stand_in(model, partial(copied, dtype=torch.float64))
    expected = stand_in(model, lambda tensor: tensor.double())(X.double(), CLEAN)
    for conv in model.convs:
        conv.register_forward_hook(lambda *_: pytest.fail("the model itself ran"))
    output = copy(X.double(), CLEAN)  # in float64 through every layer, or torch would refuse the types
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    assert (model.calls, copy.calls) == (0, 1)


def test_weights_are_shared_frozen_or_copied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.LSTM(3, 3))
    model.tied = model[0].weight
    shared, still, copy = stand_in(model), stand_in(model, frozen), stand_in(model, copied)
    with torch.no_grad():
        model[0].weight.fill_(7)
    assert shared[0].weight is model[0].weight
    assert still[0].weight.data_ptr() == model[0].weight.data_ptr()
    assert not any(parameter.requires_grad for parameter in still.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not bool((copy[0].weight == 7).any())
    assert copy.tied is copy[0].weight
    assert copy[2]._flat_weights[0] is copy[2].weight_ih_l0


def test_hooks_flags_and_attributes_stay_private() -> None:
    model = GAT(4, 6, 2, 2, norm="batch_norm").train()
    before = snapshot(model)
    copy = stand_in(model)
    copy.convs[0].register_forward_hook(lambda *_: None)
    copy.convs[0].register_edge_update_forward_pre_hook(lambda *_: None)
    copy.extra = 1
    copy.norms[0].module.running_mean = torch.zeros(6)
    assert snapshot(model) == before
    assert not any(module.training for module in copy.modules())


class Flushed(nn.Module):
    """Empties its memory when it is put into eval mode, as PyG's TGNMemory does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(4, 2)
        self.register_buffer("memory", torch.ones(3))

    def train(self, mode: bool = True) -> Flushed:
        if not mode and self.training:
            self.memory.zero_()
        return super().train(mode)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


def test_the_models_own_eval_is_not_called() -> None:
    model = Flushed().train()
    attree.evaluate(model, Data(x=X, edge_index=CLEAN), targets=[0, 1])
    attree.capture_attention(model, X, CLEAN)
    assert model.memory.tolist() == [1, 1, 1]
    assert model.training


def test_lazy_weights_get_their_shapes_in_the_model_itself() -> None:
    model = GATConv(-1, 3)
    attree.evaluate(model, Data(x=X, edge_index=CLEAN), targets=[0])
    assert model.lin.weight.shape == (3, 4)
    assert model(X, CLEAN).shape == (X.shape[0], 3)


class Mixed(nn.Module):
    """Three kinds of attention with dropout, a norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(8, 8, dropout=0.5), GATv2Conv(8, 8)
        self.norm, self.last = nn.BatchNorm1d(8), TransformerConv(8, 3, root_weight=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.norm(x + self.second(self.first(x, edge_index).relu(), edge_index)), edge_index)


def graph_and_model() -> tuple[Data, nn.Module]:
    torch.manual_seed(1)
    return Data(x=torch.randn(60, 8), edge_index=torch.randint(0, 60, (2, 240))), Mixed().eval()


def numbers(result: Any) -> list[float]:
    return [*result.metrics.values(), *(float(v) for scores in result.pair_scores.values() for v in scores)]


def test_eight_threads_explain_one_model_and_others_predict_meanwhile() -> None:
    data, model = graph_and_model()
    settings = {"targets": [3, 9, 27], "methods": ["gatt", "occlusion", "saliency", "attention_gradient"]}
    expected, usual = numbers(attree.evaluate(model, data, **settings)), model(data.x, data.edge_index)
    before = snapshot(model)
    done = False

    def predict() -> int:
        wrong = 0
        while not done:
            wrong += not torch.equal(model(data.x, data.edge_index), usual)
        return wrong

    with ThreadPoolExecutor(9) as pool:
        predicting = pool.submit(predict)
        results = [pool.submit(attree.evaluate, model, data, **settings) for _ in range(8)]
        try:
            for result in results:
                assert numbers(result.result()) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
        finally:
            done = True
        assert predicting.result() == 0
    assert snapshot(model) == before


def test_explanations_in_asyncio() -> None:
    data, model = graph_and_model()
    expected = str(attree.explain(model, data, 5))

    async def several() -> list[str]:
        tasks = [asyncio.to_thread(lambda: str(attree.explain(model, data, 5))) for _ in range(4)]
        return await asyncio.gather(*tasks)

    assert asyncio.run(several()) == [expected] * 4


def test_a_function_that_calls_another_model_than_the_given_one_is_told_so() -> None:
    data, model = graph_and_model()
    with pytest.raises(attree.errors.AttreeError, match="must call the model that it is given"):
        attree.evaluate(model, data, targets=[0], call=lambda _, graph: model(graph.x, graph.edge_index))
