"""GAtt reads the weights that reach the messages, against formulas written out edge by edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter, softmax

import attree
import attree.errors
from attree.attention import capture_attention
from attree.attribution import GAtt
from helpers.attention_models import CLEAN, Stack, X, snapshot
from helpers.no_warnings import FOREIGN
from reference import attribution_by_flows, looped_edges

EDGES = looped_edges(CLEAN.T.tolist(), 6)
WEIGHT = torch.linspace(0.2, 2.0, 6)


class Scored(MessagePassing):
    """Dot-product attention on the edges as they are, plus loops; what reaches the messages is up to subclasses."""

    def __init__(self, aggr: str = "add") -> None:
        super().__init__(aggr=aggr)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(add_self_loops(remove_self_loops(edge_index)[0], num_nodes=len(x))[0], x=x)

    def alpha(self, x_i: Tensor, x_j: Tensor, index: Tensor, scale: float = 1.0) -> Tensor:
        return softmax(scale * (x_i * x_j).sum(-1), index).unsqueeze(-1)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        return self.alpha(x_i, x_j, index) * x_j


class Mixed(Scored):
    """Two softmaxes, combined."""

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        return (0.3 * self.alpha(x_i, x_j, index) + 0.7 * self.alpha(x_i, x_j, index, -2.0)) * x_j


class EdgeWeighted(Scored):
    """The softmax's weight times a weight of the edge; loops weigh 1."""

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        return self.alpha(x_i, x_j, index) * torch.cat([WEIGHT, torch.ones(6)]).to(x_j).unsqueeze(-1) * x_j


class OwnMean(Scored):
    """Another `aggregate`: a mean by hand."""

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        return scatter(inputs, index, 0, dim_size, "sum") / degree(index, dim_size).unsqueeze(-1)


class ProjectsInMessage(Scored):
    """Projects the neighbour where it weighs it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        return self.alpha(x_i, x_j, index) * self.lin(x_j).tanh()


class InForward(Scored):
    """Scores its edges in `forward`, and hands the weights to `propagate`."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=len(x))[0]
        alpha = self.alpha(x[edge_index[1]], x[edge_index[0]], edge_index[1])
        return self.propagate(edge_index, x=x, alpha=alpha)

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return alpha * x_j


class Doubled(GATConv):
    """A subclass that computes something else."""

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return 2 * super().message(x_j, alpha)


def by_hand(x: Tensor, scale: float = 1.0) -> np.ndarray:
    """Softmax of dot products over the edges that enter each node."""
    raised = np.array([np.exp(scale * float(x[i] @ x[j])) for i, j in EDGES])
    return np.array(
        [
            raised[e] / sum(raised[f] for f, (_, other) in enumerate(EDGES) if other == j)
            for e, (_, j) in enumerate(EDGES)
        ]
    )


DEGREE = np.array([sum(other == j for _, other in EDGES) for _, j in EDGES])
EDGE_WEIGHT = np.concatenate([WEIGHT.numpy(), np.ones(6)])
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], np.ndarray]]] = {
    "softmax": (Scored, by_hand),
    "mixed": (Mixed, lambda x: 0.3 * by_hand(x) + 0.7 * by_hand(x, -2.0)),
    "edge weights": (EdgeWeighted, lambda x: by_hand(x) * EDGE_WEIGHT),
    "mean": (lambda: Scored("mean"), lambda x: by_hand(x) / DEGREE),
    "own mean": (OwnMean, lambda x: by_hand(x) / DEGREE),
    "projects in message": (ProjectsInMessage, by_hand),
    "softmax in forward": (InForward, by_hand),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("error", FOREIGN)
def test_gatt_of_the_weights_that_are_used(name: str) -> None:
    torch.manual_seed(0)
    make, weights_of = CASES[name]
    x = X.double().relu()  # some features, and all of a node, are 0
    model = Stack(make(), make()).double().eval()
    before = snapshot(model)
    attention = capture_attention(model, x, CLEAN)
    assert snapshot(model) == before
    hidden = torch.nn.functional.elu(model.convs[0](x, CLEAN)).detach()
    expected = [weights_of(x), weights_of(hidden)]
    for layer in range(2):
        np.testing.assert_allclose(attention.weights[layer][:, 0], expected[layer], atol=1e-12)
    scores = GAtt().attribute(attention, 2).dense(2)
    flows = attribution_by_flows(EDGES, [list(row) for row in expected], 2)["gatt"]
    np.testing.assert_allclose(scores, [flows.get(edge, 0.0) for edge in range(len(EDGES))], atol=1e-12)


def alpha_of(conv: Any, x: Tensor) -> Tensor:
    """PyG's own report of what the softmax returned."""
    return conv(x, CLEAN, return_attention_weights=True)[1][1]


@pytest.mark.parametrize("heads", [1, 3])
def test_subclasses_and_means_of_pygs_convolutions(heads: int) -> None:
    torch.manual_seed(0)
    x = X.double()
    count = torch.tensor(DEGREE).unsqueeze(1)
    for conv, expected in (
        (GATConv(4, 5, heads, aggr="mean"), lambda alpha: alpha / count),
        (GATv2Conv(4, 5, heads), lambda alpha: alpha),
        (Doubled(4, 5, heads), lambda alpha: 2 * alpha),
    ):
        conv = conv.double().eval()
        attention = capture_attention(Stack(conv), x, CLEAN)
        torch.testing.assert_close(attention.weights[0], expected(alpha_of(conv, x)).detach())


def test_what_cannot_be_told_is_said_once() -> None:
    class Vectors(Scored):
        """Messages that depend on the node they go to."""

        def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
            return self.alpha(x_i, x_j, index) * (x_i * x_j).tanh()

    torch.manual_seed(0)
    for conv, reason in ((Vectors(), "no multiples of neighbours' features"), (Scored("max"), "does not add up")):
        model = Stack(conv)
        with pytest.warns(UserWarning, match=f"could not be read: .*{reason}") as said:
            first, _ = (capture_attention(model, X, CLEAN) for _ in range(2))
        assert len({str(warning.message) for warning in said}) == 1  # Python shows the same warning once
        np.testing.assert_allclose(first.weights[0][:, 0], by_hand(X), rtol=1e-5)


@pytest.mark.parametrize("protocol", ["weight", "removal"])
def test_reduction_where_softmax_is_called_in_forward(protocol: str) -> None:
    """As of the same convolution that calls it in `message`."""
    x = X.double()
    settings = {"targets": "all", "protocols": [protocol], "mode": "multiclass_classification"}
    in_forward, in_message = (
        attree.evaluate(Stack(make()).double(), Data(x, CLEAN), **settings).reductions[protocol].delta_pc
        for make in (InForward, Scored)
    )
    assert float(in_message.abs().max()) > 1e-3
    torch.testing.assert_close(in_forward, in_message)


def test_softmax_in_forward_of_other_edges_than_messages() -> None:
    class Elsewhere(InForward):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            alpha = self.alpha(x[edge_index[1]], x[edge_index[0]], edge_index[1])
            return self.propagate(edge_index.flip(0), x=x, alpha=alpha)

    with pytest.raises(attree.errors.AttreeError, match="passes them along others"):
        attree.evaluate(Stack(Elsewhere()), Data(X, CLEAN), protocols=["weight"], mode="multiclass_classification")
