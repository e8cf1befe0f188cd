"""What cannot be measured is refused in a sentence that names the argument; what is in doubt is said or asked."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATConv

import attree
from attree.attention import Graph
from attree.attribution import Pairs, subgraph_pairs
from attree.errors import ArgumentError

NODES, WIDTH = 20, 8


def graph(**more: Any) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, WIDTH, generator=generator)
    return Data(x=x, edge_index=torch.randint(0, NODES, (2, 50), generator=generator), **more)


def net(columns: int) -> GAT:
    torch.manual_seed(0)
    return GAT(WIDTH, 8, 2, out_channels=columns).eval()


THREE = torch.arange(NODES) % 3

# Columns of the outputs, labels, and what is said: nothing, a warning, or a refusal that asks for `mode`.
OUTPUTS: dict[str, tuple[int, Tensor | None, str, str]] = {
    "as many columns as classes": (3, THREE, "", ""),
    "a toy without labels": (3, None, "", ""),
    "a class that does not occur here": (4, THREE, "", ""),
    "two columns and one class that occurs": (2, torch.zeros(NODES, dtype=torch.long), "", ""),
    "one-hot labels": (3, torch.eye(3)[THREE], "", ""),
    "as many classes as features": (WIDTH, torch.arange(NODES) % WIDTH, "", ""),
    "an encoder beside classes": (16, THREE, "asked", "16 columns.*3 classes.*call="),
    "an encoder beside classes, some unknown": (10, torch.where(THREE == 0, -1, THREE), "asked", "10 columns"),
    "an encoder beside few labels": (30, THREE, "said", "30 classes.*labels have 3"),
    "an encoder beside float classes": (16, THREE.float(), "asked", "16 columns.*3 classes"),
    "a reconstruction": (WIDTH, None, "asked", f"{WIDTH} columns.*features"),
    "a forecast with labels": (12, torch.randn(NODES, 12), "asked", "12 columns"),
    "a forecast without labels": (12, None, "said", "12 classes.*no labels.*mode"),
}


@pytest.mark.parametrize("call", [attree.evaluate, attree.explain])
@pytest.mark.parametrize("name", OUTPUTS)
def test_columns_that_may_be_no_classes(name: str, call: Callable[..., Any]) -> None:
    columns, labels, reaction, sentence = OUTPUTS[name]
    data, model = graph(y=labels), net(columns)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if reaction == "asked":
            with pytest.raises(ArgumentError, match=f"`mode`.*{sentence}"):
                call(model, data, 3)
        else:
            call(model, data, 3)
    said = [str(warning.message) for warning in caught if "classes" in str(warning.message)]
    assert len(said) == (reaction == "said")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # who says what is predicted is told nothing
        if labels is None or labels.dim() == 1:
            call(model, data, 3, mode="multiclass_classification")
        call(model, data, 3, mode="regression", label=1)


class Probabilities(nn.Module):
    """More classes than occur, but their probabilities add up to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index).softmax(-1)


def test_probabilities_are_classes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attree.explain(Probabilities(), graph(y=THREE), 3)


class Divides(nn.Module):
    """The output of node 5 is undefined."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(WIDTH, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        scale = torch.ones(len(x), 1)
        scale[5] = torch.nan
        return self.conv(x, edge_index) * scale


def with_nan(module: nn.Module, name: str) -> nn.Module:
    with torch.no_grad():
        dict([*module.named_parameters(), *module.named_buffers()])[name].view(-1)[0] = torch.nan
    return module


def without_x(value: float) -> Data:
    data = graph()
    data.x[2, 1] = value
    return data


def masked(module_data: Data) -> Tensor:
    return torch.zeros(module_data.num_nodes, dtype=torch.bool)


EDGE_NET = GAT(WIDTH, 8, 2, out_channels=3, edge_dim=1)
NORMED = GAT(WIDTH, 8, 2, out_channels=3, norm="batch_norm")

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN features": (lambda: attree.evaluate(net(3), without_x(torch.nan), 3), r"`data\.x`"),
    "infinite features": (lambda: attree.explain(net(3), without_x(torch.inf), 3), r"`data\.x`"),
    "NaN features of edges": (
        lambda: attree.explain(EDGE_NET, graph(edge_attr=torch.full((50, 1), torch.nan)), 3),
        r"`data\.edge_attr`",
    ),
    "a NaN weight": (
        lambda: attree.evaluate(with_nan(net(3), "convs.0.lin.weight"), graph(), 3),
        r"`model`.*convs\.0\.lin\.weight",
    ),
    "a NaN buffer": (
        lambda: attree.explain(with_nan(NORMED, "norms.0.module.running_mean"), graph(), 3),
        r"`model`.*running_mean",
    ),
    "the NaN output of a target": (lambda: attree.explain(Divides(), graph(), 5), r"`model`.*finite output.*\[5\]"),
    "the NaN output of one target": (
        lambda: attree.evaluate(Divides(), graph(), [3, 5]),
        r"`model`.*1 of 2.*\[5\].*`targets` can leave",
    ),
    "no targets": (lambda: attree.evaluate(net(3), graph(), []), "`targets`.*at least one"),
    "an empty mask": (lambda: attree.evaluate(net(3), graph(), masked(graph())), "`targets`.*at least one"),
    "no targets of a test": (lambda: attree.attention_tests(net(3), graph(), []), "`targets`.*at least one"),
    "truth by name": (lambda: attree.evaluate(net(3), graph(), 3, truth="random"), "`truth`"),  # type: ignore[arg-type]
    "truth by name, one target": (lambda: attree.explain(net(3), graph(), 3, truth="random"), "`truth`"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused_by_name(name: str) -> None:
    call, sentence = REFUSED[name]
    with pytest.raises(ArgumentError, match=sentence):
        call()


def test_targets_with_defined_outputs_are_explained() -> None:
    with pytest.warns(UserWarning, match="1 of 20 rows"):
        attree.evaluate(Divides(), graph(), [3, 4])


CHANGES: dict[str, tuple[Callable[[Pairs], Pairs], str]] = {
    "edges beyond the graph": (lambda pairs: replace(pairs, edges=pairs.edges + 1000), r"`pairs`.*edges in \[0, "),
    "negative edges": (lambda pairs: replace(pairs, edges=pairs.edges - 1000), r"`pairs`.*edges in \[0, "),
    "targets beyond the graph": (lambda pairs: replace(pairs, targets=pairs.targets + 1000), r"`targets`.*\[0, 20\)"),
    "pairs of no target": (lambda pairs: replace(pairs, ptr=pairs.ptr + 1), "`pairs`.*`ptr`"),
    "another graph": (
        lambda pairs: replace(pairs, graph=Graph(pairs.graph.original_edge_index, NODES + 1)),
        "`pairs`.*another graph",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_pairs_outside_the_graph_are_refused(name: str) -> None:
    change, sentence = CHANGES[name]
    data = graph()
    pairs = subgraph_pairs(Graph(data.edge_index, NODES), targets=[3], num_layers=2)
    attree.reduce_attention(net(3), data.x, data.edge_index, pairs, "removal")
    with pytest.raises(ArgumentError, match=sentence):
        attree.reduce_attention(net(3), data.x, data.edge_index, change(pairs), "removal")


def test_a_single_target_has_no_intervals_and_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = attree.evaluate(net(3), graph(), 3)
        assert "1 target is too few to say much" in str(result)
    assert not any(low < high for low, high in result.intervals.values())
