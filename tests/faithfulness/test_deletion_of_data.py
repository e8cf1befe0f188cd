"""`removal` is deletion: every model gives the effects of deleting the edge from its data, in float64."""

from __future__ import annotations

import copy
import re
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import attree
from attree.attribution import subject_pairs
from attree.defaults import RESOLUTION
from attree.faithfulness import PROTOCOLS, Reducer, occlusion
from attree.subject import Subject
from helpers.edge_readers import IN, MODELS
from helpers.graphs import randomize

NODES = 18

pytestmark = pytest.mark.filterwarnings("ignore")


def graph() -> Data:
    """A directed graph in which two hops are far from all; one edge comes twice."""
    generator = torch.Generator().manual_seed(3)
    ring = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    chords = torch.tensor([[0, 3, 3, 7, 9, 12, 14, 5], [2, 0, 1, 4, 6, 15, 11, 6]])
    edge_index = torch.cat([ring, chords, ring[:, :1]], dim=1)
    edge_attr = torch.rand(edge_index.shape[1], 2, generator=generator)
    return Data(x=torch.randn(NODES, IN, generator=generator), edge_index=edge_index, edge_attr=edge_attr)


def made(name: str) -> tuple[nn.Module, Data]:
    make, takes_features = MODELS[name]
    torch.manual_seed(0)
    model, data = randomize(make(), 5, scale=0.6).eval(), graph()
    if not takes_features:
        del data["edge_attr"]
    return model, data


def run(model: nn.Module, data: Data, edge: int | None = None) -> Tensor:
    """Probabilities in float64 without one edge of the data."""
    stays = torch.arange(data.num_edges) != (-1 if edge is None else edge)
    further = (data.edge_attr[stays].double(),) if "edge_attr" in data else ()
    wide = copy.deepcopy(model).double()
    if "dtype" in vars(wide):
        wide.dtype = torch.float64
    with torch.no_grad():
        torch.set_default_dtype(torch.float64)
        try:
            return wide(data.x.double(), data.edge_index[:, stays], *further).double().softmax(dim=-1)
        finally:
            torch.set_default_dtype(torch.float32)


def deleted(model: nn.Module, data: Data) -> Tensor:
    """The drop of the predicted class's probability of every target without each edge, [edges, targets]."""
    before = run(model, data)
    predicted = before.argmax(dim=-1)
    rows = torch.arange(before.shape[0])
    return torch.stack([(before - run(model, data, edge))[rows, predicted] for edge in range(data.num_edges)])


# Two runs in float64 differ by rounding errors, which are far below the resolution that effects are rounded to.
TOLERANCE = RESOLUTION


@pytest.mark.parametrize("name", list(MODELS))
def test_all_pairs_have_the_effect_of_deleting_the_edge(name: str) -> None:
    model, data = made(name)
    subject = Subject.of_data(model, data)
    pairs = subject_pairs(subject)
    effects = Reducer(subject).record().reduce(pairs, PROTOCOLS["removal"]).delta_pc
    expected = deleted(model, data)
    of_data = pairs.edges < subject.graph.num_proper_edges  # the data has no self-loops
    ours = effects[of_data]
    reference = expected[pairs.edges[of_data], pairs.targets[pairs.owner[of_data]]]
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE)
    assert float(reference.abs().max()) > 1e-3


@pytest.mark.parametrize("name", list(MODELS))
def test_explanations_list_every_edge_that_has_an_effect(name: str) -> None:
    model, data = made(name)
    expected = deleted(model, data)
    pairs = subject_pairs(Subject.of_data(model, data))
    for target in (0, 7, 12) if expected.shape[1] > 1 else (0,):
        explanation = attree.explain(model, data, target)
        edges = explanation.evaluation.pairs.edges
        listed = dict(zip(edges.tolist(), explanation.evaluation.reductions["removal"].delta_pc.tolist(), strict=True))
        for edge in range(data.num_edges):
            assert listed.get(edge, 0.0) == pytest.approx(float(expected[edge, target]), abs=TOLERANCE)
        # Edges that are no pairs of the tree are listed only if they have an effect.
        of_tree = set(pairs.edges[pairs.owner == target].tolist())
        assert all(listed[edge] != 0 for edge in set(listed) - of_tree if edge < data.num_edges)


FAR = {
    "GCN step between layers": "outside its attention layers",
    "log degree before layers": "outside its attention layers",
    "popularity": "outside its attention layers",
    "minus the first node": "over all nodes",
    "graph norm": "over all nodes",
    "GPS": r"attention over all nodes \(MultiheadAttention\)",
}


@pytest.mark.parametrize("name", list(FAR))
@pytest.mark.filterwarnings("default")
def test_explanations_say_why_edges_beyond_the_tree_matter(name: str) -> None:
    model, data = made(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explanation = attree.explain(model, data, 7)
    said = [str(one.message) for one in caught if "reads beyond" in str(one.message)]
    assert len(said) == 1
    assert re.search(FAR[name], said[0])
    evaluation = explanation.evaluation
    tree = subject_pairs(Subject.of_data(model, data), [7]).edges
    beyond = ~torch.isin(evaluation.pairs.edges, tree)
    largest = float(evaluation.reductions["removal"].delta_pc[beyond].abs().max())
    assert f"up to {largest:.3g}" in said[0]


def test_without_edges_beyond_the_tree_nothing_is_said() -> None:
    model, data = made("edge features, filled with 0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attree.explain(model, data, 7)


def test_large_graphs_are_not_measured_edge_by_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occlusion, "MOST_EDGES", 10)
    model, data = made("GPS")
    with pytest.warns(UserWarning, match="more than 10 edges, so edges farther away were not measured"):
        attree.explain(model, data, 7)
