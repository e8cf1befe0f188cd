"""Explanations of a graph on disk are those of the same graph in memory, to the last digit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PygGAT
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, SAGEConv

import attree
from attree.attribution import GNNExplainer, make_methods
from attree.data import OnDiskGraph, write_graph
from attree.evaluation import Evaluation
from attree.evaluation.on_disk import DiskSubjects, sizes_of
from attree.models import GAT, GATv2
from attree.tensors.precision import same

PROTOCOLS = ["removal", "weight"]


class Net(nn.Module):
    """Two convolutions; edge features go along if the first takes them."""

    def __init__(self, *convs: nn.Module, takes_edges: bool = False) -> None:
        super().__init__()
        self.convs, self.takes_edges = nn.ModuleList(convs), takes_edges

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        for conv in self.convs:
            x = F.elu(conv(x, edge_index, edge_attr=edge_attr) if self.takes_edges else conv(x, edge_index))
        return x


def random_graph() -> Data:
    """Sparse enough that no neighbourhood is the whole graph, with self-loops and parallel edges."""
    generator = torch.Generator().manual_seed(5)
    edge_index = torch.randint(200, (2, 300), generator=generator)
    return Data(
        x=torch.randn(200, 6, generator=generator),
        edge_index=torch.cat([edge_index, edge_index[:, :9], torch.tensor([[3, 9, 9], [3, 9, 9]])], dim=1),
        edge_attr=torch.randn(312, 2, generator=generator),
        y=torch.randint(3, (200,), generator=generator),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs") / "random"
    write_graph(random_graph(), folder)
    return folder


NETS = {
    "attree's GAT": lambda: GAT(6, 3, num_layers=2),
    "attree's GATv2, 3 layers": lambda: GATv2(6, 3, num_layers=3),
    "PyG's GAT with jumping knowledge": lambda: PygGAT(6, 8, 2, out_channels=3, heads=2, jk="cat"),
    "edge features": lambda: Net(GATv2Conv(6, 6, edge_dim=2), GATv2Conv(6, 3, edge_dim=2), takes_edges=True),
    "GCN before GAT": lambda: Net(GCNConv(6, 6), GATConv(6, 3)),
    "GCN": lambda: Net(GCNConv(6, 6), GCNConv(6, 3)),
    "SAGE": lambda: Net(SAGEConv(6, 6), SAGEConv(6, 3)),
}
WITHOUT_ATTENTION = ["structure", "occlusion", "random"]
METHODS = {
    "GCN before GAT": WITHOUT_ATTENTION,
    "GCN": WITHOUT_ATTENTION,
    "SAGE": WITHOUT_ATTENTION,
    "attree's GAT": ["gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", "random", "occlusion"],
}


def links(result: Evaluation) -> Tensor:
    """Return target, source and destination of each pair, as ids of the whole graph."""
    graph = result.pairs.graph
    ends = graph.whole_nodes(graph.edge_index[:, result.pairs.edges])
    return torch.cat([result.targets[result.pairs.owner].view(1, -1), ends])


def assert_equal(result: Evaluation, expected: Evaluation) -> None:
    assert torch.equal(result.targets, expected.targets)
    assert torch.equal(links(result), links(expected))
    assert torch.equal(result.pairs.flow, expected.pairs.flow)
    for name, scores in expected.pair_scores.items():
        assert torch.equal(result.pair_scores[name], scores), name
    for name, reduction in expected.reductions.items():
        assert torch.equal(result.reductions[name].delta_pc, reduction.delta_pc), name
        assert torch.equal(result.reductions[name].delta_ne, reduction.delta_ne), name
        assert torch.equal(result.reductions[name].changed, reduction.changed), name
    assert result.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        same = result.metrics[name] == value or (math.isnan(value) and math.isnan(result.metrics[name]))
        assert same, (name, result.metrics[name], value)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NETS)
def test_scores_effects_and_metrics_are_those_of_the_whole_graph(folder: Path, name: str) -> None:
    torch.manual_seed(0)
    model, whole = NETS[name]().eval(), OnDiskGraph(folder).to_data()
    targets = [150, 3, 9, 42, 77, 120]
    methods = METHODS.get(name, ["gatt", "uniform", "random", "occlusion"])
    expected = attree.evaluate(model, whole, targets, methods, PROTOCOLS)
    at_once = attree.evaluate(model, OnDiskGraph(folder), targets, methods, PROTOCOLS)
    assert at_once.subject is not None
    assert at_once.subject.graph.num_nodes < 200
    assert_equal(at_once, expected)
    subjects = DiskSubjects(model, OnDiskGraph(folder))
    largest = sizes_of(subjects, torch.tensor(targets), subjects.hops_for(make_methods(methods).values())).max()
    in_parts = attree.evaluate(model, OnDiskGraph(folder, memory=float(largest)), targets, methods, PROTOCOLS)
    assert in_parts.subject is None  # there were several parts
    if "jumping" in name:  # the bypass of a part is compared with the outputs of that part
        in_parts.metrics.pop("explain/bypass")
        expected.metrics.pop("explain/bypass")
    assert_equal(in_parts, expected)
    assert str(in_parts).splitlines()[3:] != []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["attree's GAT", "GCN"])
def test_one_node_is_explained_as_in_memory(folder: Path, name: str) -> None:
    torch.manual_seed(0)
    model, whole = NETS[name]().eval(), OnDiskGraph(folder).to_data()
    explanation, expected = (attree.explain(model, data, 9) for data in (OnDiskGraph(folder), whole))
    assert explanation.target == 9
    assert explanation.sentence == expected.sentence
    assert str(explanation) == str(expected)
    assert explanation.to_pandas().equals(expected.to_pandas())
    assert set(explanation.to_networkx().edges) == set(expected.to_networkx().edges)
    assert explanation.subgraph(4).to_pandas().equals(expected.subgraph(4).to_pandas())
    assert torch.equal(
        explanation.evaluation.scores["occlusion"][9].scores, expected.evaluation.scores["occlusion"][9].scores
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradients_are_equal_up_to_rounding(folder: Path) -> None:
    """Gradients are sums of float32, and their order depends on the number of nodes."""
    torch.manual_seed(0)
    graph = OnDiskGraph(folder)
    for name, method in {"GCN": "saliency", "attree's GAT": "attention_gradient"}.items():
        model = NETS[name]().eval()
        of_disk, expected = (attree.evaluate(model, data, [9, 42], [method]) for data in (graph, graph.to_data()))
        assert same(of_disk.pair_scores[method], expected.pair_scores[method], torch.float32)


def test_what_is_drawn_at_random_and_by_default(folder: Path) -> None:
    torch.manual_seed(0)
    model, graph = GAT(6, 3, num_layers=2).eval(), OnDiskGraph(folder)
    result = attree.evaluate(model, graph, num_targets=5, seed=3, protocols="removal")
    expected = attree.evaluate(model, graph.to_data(), num_targets=5, seed=3, protocols="removal")
    assert torch.equal(result.targets, expected.targets)
    # AvgAtt reads twice as far, so it must be asked for.
    assert list(result.pair_scores) == [name for name in expected.pair_scores if name != "avgatt"]
    assert result.num_targets == 5


@pytest.mark.parametrize("norm", ["graph_norm", "pair_norm"])
def test_norms_over_the_whole_graph_are_refused(folder: Path, norm: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(TypeError, match=r"Expected GAT to depend on the neighbourhood of a node only, but .*to_data"):
        attree.explain(PygGAT(6, 8, 2, out_channels=3, norm=norm), OnDiskGraph(folder), 9)


def test_what_needs_the_whole_graph_is_refused(folder: Path) -> None:
    model, graph = GAT(6, 3, num_layers=2), OnDiskGraph(folder)
    with pytest.raises(ValueError, match=r"methods that explain targets one by one .* pg_explainer"):
        attree.evaluate(model, graph, [1], ["pg_explainer"])
    with pytest.raises(ValueError, match="no argument `level` for a graph on disk"):
        attree.explain(model, graph, 1, level="graph")
    with pytest.raises(ValueError, match="`targets`"):
        attree.evaluate(model, graph, [200])
    with pytest.raises(ValueError, match=r"the neighbourhood of node 9 to fit into .* MiB, but it has at least"):
        attree.evaluate(model, OnDiskGraph(folder, memory=1_000), [9])


@pytest.mark.parametrize("feature_mask", [False, True])
def test_learned_masks_are_those_of_the_whole_graph_up_to_rounding(folder: Path, feature_mask: bool) -> None:
    torch.manual_seed(0)
    model, methods = GAT(6, 3, num_layers=2).eval(), [GNNExplainer(epochs=20, feature_mask=feature_mask, seed=3)]
    graphs = OnDiskGraph(folder), OnDiskGraph(folder).to_data()
    results = [attree.evaluate(model, graph, [150, 9, 77], methods, ["weight"]) for graph in graphs]
    scores, expected = (result.pair_scores["gnn_explainer"] for result in results)
    assert expected.unique().numel() > 5
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["fastdnx", "pg_explainer", "graph_mask"])
def test_methods_that_train_on_a_whole_graph_are_refused_for_one_node_too(folder: Path, method: str) -> None:
    with pytest.raises(ValueError, match=f"got {method}, which is trained on a whole graph"):
        attree.explain(GAT(6, 3), OnDiskGraph(folder), 0, method=method)
