"""Edges deleted several at once: against networks that really run without them, and what the figure says of it."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from attree.attribution import subject_pairs
from attree.errors import ArgumentError
from attree.faithfulness import delete_edges
from attree.models import GAT, GraphClassifier
from attree.report.score_figures import deletion_curve
from attree.subject import Head, Subject
from helpers.graphs import randomize

LOGITS = Head("multiclass_classification", "raw")


def graph(seed: int, nodes: int = 25, edges: int = 120) -> Data:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=generator).unique(dim=1)
    return Data(x=torch.randn(nodes, 5, generator=generator), edge_index=ends[:, ends[0] != ends[1]])


def net() -> GAT:
    return (
        randomize(GAT(5, 3, hidden_channels=8, num_layers=2, heads=2), seed=1, scale=0.6).eval().requires_grad_(False)
    )


def without(ends: Tensor, dropped: Tensor) -> Tensor:
    """Proper edges without some."""
    gone = {tuple(pair) for pair in dropped.t().tolist()}
    return ends[:, [tuple(pair) not in gone for pair in ends.t().tolist()]]


def test_probabilities_are_those_of_the_graph_without_the_edges() -> None:
    data, model = graph(0), net()
    subject = Subject.of(model, data.x, data.edge_index, level="node", head=LOGITS)
    pairs = subject_pairs(subject, [3, 11, 20])
    scores = torch.rand(len(pairs), generator=torch.Generator().manual_seed(5))
    source, destination = subject.graph.edge_index[:, pairs.edges]
    scores[source == destination] = -1.0  # self-loops go last: a conv would give them back
    counts = [0, 1, 3, 6]
    found = delete_edges(subject, pairs, {"mine": scores}, counts, memory=40_000)["mine"]
    assert found.shape == (3, 4)
    before = model(data.x, data.edge_index).softmax(-1)
    bounds = pairs.ptr.tolist()
    for position, target in enumerate(pairs.targets.tolist()):
        own = torch.arange(bounds[position], bounds[position + 1])
        own = own[pairs.flow[own]]
        ranked = pairs.edges[own[scores[own].argsort(descending=True)]]
        proper = int((ranked < subject.graph.num_proper_edges).sum())
        for place, number in enumerate(counts):
            assert number <= proper
            kept = without(data.edge_index, subject.graph.edge_index[:, ranked[:number]])
            after = model(data.x, kept).softmax(-1)
            assert float(found[position, place]) == pytest.approx(
                float(after[target, before[target].argmax()]), abs=1e-5
            )


def test_whole_graphs_lose_edges_too() -> None:
    graphs = [graph(1, 8, 20), graph(2, 6, 12)]
    batch, module = Batch.from_data_list(graphs), GraphClassifier(net()).eval().requires_grad_(False)
    subject = Subject.of(module, batch.x, batch.edge_index, batch=batch.batch, head=LOGITS)
    pairs = subject_pairs(subject)
    scores = (pairs.edges < subject.graph.num_proper_edges).float()
    found = delete_edges(subject, pairs, {"mine": scores}, [0, 4])["mine"]
    for position, one in enumerate(graphs):
        zeros = torch.zeros(one.num_nodes, dtype=torch.int64)
        before = module(one.x, one.edge_index, zeros).softmax(-1)[0]
        after = module(one.x, one.edge_index[:, 4:], zeros).softmax(-1)[0]
        assert float(found[position, 0]) == pytest.approx(float(before.max()), abs=1e-5)
        assert float(found[position, 1]) == pytest.approx(float(after[before.argmax()]), abs=1e-5)


def test_a_target_with_few_edges_loses_them_all() -> None:
    data = Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1], [1, 2]]))
    subject = Subject.of(net(), data.x, data.edge_index, level="node", head=LOGITS)
    pairs = subject_pairs(subject, [0, 2])
    found = delete_edges(subject, pairs, {"mine": torch.rand(len(pairs))}, [5, 50])["mine"]
    torch.testing.assert_close(found[:, 0], found[:, 1])


def test_the_curve_is_the_mean_over_targets_beside_random() -> None:
    values = torch.tensor([[0.9, 0.5, 0.1], [0.7, 0.3, 0.3]])
    figure = deletion_curve([0, 1, 5], {"gatt": values, "random": values.flip(1)}, "a note")
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["GAtt", "Random"]
    np.testing.assert_allclose(lines["GAtt"].get_xydata(), [[0, 0.8], [1, 0.4], [5, 0.2]], rtol=1e-6)
    assert lines["Random"].get_linestyle() == "--"
    assert figure.get_suptitle().endswith("(2 targets)\na note")
    band = axes.collections[0].get_paths()[0].vertices
    error = np.std([0.9, 0.7], ddof=1) / np.sqrt(2)
    assert band[:, 1].max() == pytest.approx(0.8 + error)
    figure.savefig(BytesIO())


@pytest.mark.parametrize("counts", [[1, 0, 5], [0, 1]])
def test_curves_that_do_not_fit_are_refused(counts: list[int]) -> None:
    with pytest.raises(ArgumentError):
        deletion_curve(counts, {"gatt": torch.rand(2, 3)})
