"""RGATConv and HEATConv, with all relations in one list of edges: GAtt by its definition, reduction by deletion."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import HEATConv, RGATConv
from torch_geometric.utils import softmax as pyg_softmax

from attree.attribution import GAtt, subject_pairs
from attree.faithfulness import PROTOCOLS, Reducer
from attree.subject import Subject
from helpers.graphs import randomize
from reference import gatt_by_matrices

pytestmark = pytest.mark.filterwarnings("ignore:Attention of .* is reduced by:UserWarning")
NODES, EDGES = 8, 20
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(NODES, 4, generator=GENERATOR, dtype=torch.float64)
EDGE_INDEX = torch.randint(NODES, (2, EDGES), generator=GENERATOR)
EDGE_INDEX[1] = torch.where(EDGE_INDEX[0] == EDGE_INDEX[1], (EDGE_INDEX[1] + 1) % NODES, EDGE_INDEX[1])
EDGE_TYPE, NODE_TYPE = torch.arange(EDGES) % 2, torch.arange(NODES) % 3
EDGE_ATTR = torch.randn(EDGES, 2, generator=GENERATOR, dtype=torch.float64)


class Relational(nn.Module):
    """Two layers of RGATConv."""

    def __init__(self, mechanism: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList(RGATConv(4, 4, num_relations=2, attention_mechanism=mechanism) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        first, last = self.convs
        return last(first(x, edge_index, edge_type).tanh(), edge_index, edge_type)

    def weights(self) -> list[Tensor]:
        """What the layers attend to, as PyG returns it."""
        first, last = self.convs
        x, (_, one) = first(X, EDGE_INDEX, EDGE_TYPE, return_attention_weights=True)
        _, (_, two) = last(x.tanh(), EDGE_INDEX, EDGE_TYPE, return_attention_weights=True)
        return [one.mean(dim=1), two.mean(dim=1)]


class Typed(nn.Module):
    """Two layers of HEATConv, with types of nodes and edges and attributes of edges."""

    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"edge_type_emb_dim": 2, "edge_dim": 2, "edge_attr_emb_dim": 2, "root_weight": False}
        self.convs = nn.ModuleList(HEATConv(4, 4, num_node_types=3, num_edge_types=2, **sizes) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor, edge_type: Tensor, edge_attr: Tensor) -> Tensor:
        first, last = self.convs
        x = first(x, edge_index, node_type, edge_type, edge_attr).tanh()
        return last(x, edge_index, node_type, edge_type, edge_attr)

    def weights(self) -> list[Tensor]:
        """What the layers attend to, as PyG's softmax gives it."""
        found = []

        def softmax(*args: Any, **kwargs: Any) -> Tensor:
            found.append(pyg_softmax(*args, **kwargs))
            return found[-1]

        with mock.patch("torch_geometric.nn.conv.heat_conv.softmax", softmax):
            self(X, EDGE_INDEX, NODE_TYPE, EDGE_TYPE, EDGE_ATTR)
        return [one.mean(dim=1) for one in found]


ROWS = {"edge_type": EDGE_TYPE, "edge_attr": EDGE_ATTR}
NETS: dict[str, tuple[Any, dict[str, Tensor]]] = {
    "RGAT, within relations": (Relational("within-relation"), {"edge_type": EDGE_TYPE}),
    "RGAT, across relations": (Relational("across-relation"), {"edge_type": EDGE_TYPE}),
    "HEAT": (Typed(), {"node_type": NODE_TYPE, **ROWS}),
}


@pytest.mark.parametrize("name", NETS)
def test_gatt_is_that_of_the_matrices_and_removal_deletes(name: str) -> None:
    net, given = NETS[name]
    model = randomize(net, 1).double().eval()
    subject = Subject.of(model, X, EDGE_INDEX, **given)
    with torch.no_grad():
        alpha = [one.tolist() for one in model.weights()]
    edges = list(zip(*EDGE_INDEX.tolist(), strict=True))
    expected = gatt_by_matrices(edges, NODES, alpha)
    scores = GAtt().attribute(subject)
    for target in range(NODES):
        np.testing.assert_allclose(scores.edge_mask(target), expected[target], atol=1e-12)

    pairs = subject_pairs(subject, [1, 4])
    reduction = Reducer(subject).record().reduce(pairs, PROTOCOLS["removal"], with_probability=True)
    proper = (pairs.edges < EDGES).nonzero().view(-1).tolist()
    for place in proper:
        left = torch.arange(EDGES) != pairs.edges[place]
        cut = {key: value[left] if key in ROWS else value for key, value in given.items()}
        with torch.no_grad():
            logits = model(X, EDGE_INDEX[:, left], **cut)[pairs.targets[pairs.owner[place]]]
        torch.testing.assert_close(reduction.probability[place], logits.softmax(-1), rtol=0, atol=1e-9)
    assert float(reduction.delta_pc.abs().max()) > 1e-3
