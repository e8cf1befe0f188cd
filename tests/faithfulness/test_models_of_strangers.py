"""Models with habits of their own are served by exact updates: modules in place of linear layers, tables of nodes,
hidden states made inside forward, outputs for a part of the nodes, edge features made from end nodes.

`removal` is compared with deleting the edge from the data, both protocols with one pass of the whole graph per edge.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    MessagePassing,
    SAGEConv,
    SuperGATConv,
    TransformerConv,
    global_mean_pool,
)

from attree.attribution import subject_pairs
from attree.faithfulness import PROTOCOLS, ExactReducer, Reducer, WholeReducer
from attree.faithfulness.reduction import ReductionEngine
from attree.subject import Subject
from attree.subject.binding import bind_data

NODES, WIDTH, CLASSES = 24, 6, 3
Layer = Callable[[int, int], MessagePassing]
LAYERS: dict[str, Layer] = {"GAT": GATConv, "SAGE": SAGEConv, "GCN": GCNConv}


def graph(nodes: int = NODES, edges: int = 70, seed: int = 0) -> Data:
    """A random graph in float64, with everything that some model reads."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=generator)
    ends = ends[:, ends[0] != ends[1]].unique(dim=1)
    return Data(
        torch.randn(nodes, WIDTH, generator=generator).double(),
        ends,
        torch.randn(ends.shape[1], 4, generator=generator).double(),
        pos=torch.randn(nodes, 3, generator=generator).double(),
        mask=torch.rand(nodes, generator=generator) < 0.5,
        chosen=torch.randperm(nodes, generator=generator)[:7],
        n_id=torch.arange(nodes),
        edge_label_index=torch.randint(0, nodes, (2, 6), generator=generator),
    )


def graphs() -> Batch:
    """Three graphs of different sizes."""
    return Batch.from_data_list([graph(8 + number, 20, number) for number in range(3)])


def in_float32(data: Data) -> Data:
    return data.apply(lambda value: value.float() if value.is_floating_point() else value)


class Two(nn.Module):
    """Two layers with ReLU in between."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.first, self.second = layer(WIDTH, WIDTH), layer(WIDTH, CLASSES)

    def net(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)


def without_edge(data: Data, column: Tensor) -> Data:
    """The data without some edges, and without their rows of edge attributes."""
    stays = torch.ones(data.num_edges, dtype=torch.bool).index_fill(0, column, False)
    data = copy.copy(data)
    data.edge_index, data.edge_attr = data.edge_index[:, stays], data.edge_attr[stays]
    return data


def probabilities(output: Tensor) -> Tensor:
    """The class probabilities of one row of logits, or of one logit."""
    if output.dim() and output.numel() > 1:
        return output.softmax(-1)
    return torch.stack([1 - output.sigmoid().view(()), output.sigmoid().view(())])


def assert_served(model: nn.Module, data: Data, tolerance: float = 1e-9, engine: type = ExactReducer) -> Subject:
    """Both protocols are served by exact updates, and their effects are those of other graphs."""
    model = model.eval()
    subject = Subject.of_data(model, data)
    targets = subject.targets("all")
    pairs = subject_pairs(subject, targets[:: max(1, targets.numel() // 4)])
    rows = subject.rows(pairs.targets)[pairs.owner]

    def probability(engines: tuple[type[ReductionEngine], ...] | None, name: str) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if engines else "error")
            effects = (Reducer(subject, engines=engines) if engines else Reducer(subject)).record()
            reduction = effects.reduce(pairs, PROTOCOLS[name], with_probability=True)
        assert isinstance(effects.engine_for(PROTOCOLS[name]), engines or engine)
        assert reduction.probability is not None
        return reduction.probability

    for name in ("removal", "weight"):
        got = probability(None, name)
        torch.testing.assert_close(got, probability((WholeReducer,), name), rtol=0, atol=tolerance)
        if name == "removal":
            for place in range(0, len(pairs), 5):
                edge = int(pairs.edges[place])
                if edge < subject.graph.num_proper_edges:
                    changed = without_edge(data, (subject.graph.position == edge).nonzero().view(-1))
                    with torch.no_grad():
                        expected = probabilities(bind_data(model, changed).run()[rows[place]])
                    torch.testing.assert_close(got[place].to(expected), expected, rtol=0, atol=tolerance)
        assert float(got.std(dim=0).max()) > 1e-3
    return subject


class LoRA(nn.Module):
    """A linear layer plus a product of two narrow matrices."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        out, width = base.weight.shape
        self.base = base
        self.down, self.up = nn.Parameter(torch.randn(2, width) / 3), nn.Parameter(torch.randn(out, 2) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class LoRALinear(nn.Linear):
    """The same as a subclass: its weight is not all that it multiplies with."""

    def __init__(self, base: nn.Module) -> None:
        out, width = base.weight.shape
        super().__init__(width, out, bias=base.bias is not None)
        self.down, self.up = nn.Parameter(torch.randn(2, width) / 3), nn.Parameter(torch.randn(out, 2) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.t() @ self.up.t()


class Rounded(nn.Module):
    """Integer weights and a scale, which are multiplied when they are used, in float32."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.integers = nn.Buffer((base.weight.detach() * 32).round().to(torch.int8))
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.integers.to(x.dtype) / 32, self.bias)


def sequence(base: nn.Module) -> nn.Module:
    out, width = base.weight.shape
    return nn.Sequential(nn.Dropout(), nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, out))


IN_PLACE_OF_LINEAR: dict[str, Callable[[nn.Module], nn.Module]] = {
    "LoRA": LoRA,
    "a subclass": LoRALinear,
    "integers": Rounded,
    "a sequence": sequence,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm by hooks": torch.nn.utils.spectral_norm,
}
WITH_LINEAR: dict[str, Layer] = {
    "GAT": GATConv,
    "GATv2": GATv2Conv,
    "Transformer": TransformerConv,
    "SuperGAT": SuperGATConv,
    "SAGE": SAGEConv,
}
LINEAR = ("lin", "lin_l", "lin_r", "lin_key", "lin_query", "lin_value", "lin_skip")


def with_others(layer: Layer, other: Callable[[nn.Module], nn.Module]) -> Layer:
    """Layers with other modules in place of their linear ones."""

    def make(width: int, out: int) -> MessagePassing:
        conv = layer(width, out)
        for name in LINEAR:
            if getattr(conv, name, None) is not None:
                setattr(conv, name, other(getattr(conv, name)))
        return conv

    return make


@pytest.mark.parametrize(
    ("layer", "other"),
    [*(("GAT", other) for other in IN_PLACE_OF_LINEAR), *((layer, "LoRA") for layer in WITH_LINEAR if layer != "GAT")],
)
def test_modules_in_place_of_linear_layers(layer: str, other: str) -> None:
    torch.manual_seed(1)
    assert_served(Two(with_others(WITH_LINEAR[layer], IN_PLACE_OF_LINEAR[other])).double(), graph())


def test_modules_in_place_of_linear_layers_of_graphs() -> None:
    class OfGraphs(Two):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return global_mean_pool(self.net(x, edge_index), batch)

    torch.manual_seed(1)
    assert_served(OfGraphs(with_others(GATConv, LoRA)).double(), graphs())


def test_a_module_in_place_of_a_linear_layer_reads_sparse_features() -> None:
    data = graph()
    data.x = (data.x > 2).double()
    data.x[:, 0] = 0
    assert int(data.x.sum()) > 0
    torch.manual_seed(1)
    assert_served(Two(with_others(GATConv, LoRA)).double(), data)
