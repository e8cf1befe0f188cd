"""Metrics of sets of edges against PyG's functions on the same masks, and against masked passes one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.explain import Explainer, Explanation, GNNExplainer
from torch_geometric.explain.metric import characterization_score as pyg_characterization
from torch_geometric.explain.metric import fidelity as pyg_fidelity
from torch_geometric.explain.metric import unfaithfulness as pyg_unfaithfulness
from torch_geometric.nn import GAT

from attree.data import Infection
from attree.errors import ArgumentError
from attree.evaluation import Evaluation, EvaluationConfig, Evaluator, evaluate
from attree.evaluation.config import Shard
from attree.evaluation.edge_sets import CHOSEN, SHARES
from attree.metrics import CharacterizationScore, Fidelity, Unfaithfulness
from attree.metrics import functional as F
from attree.subject import Subject

TARGETS = [1, 4, 9, 17, 25, 31]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(40, (2, 160), generator=generator)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    return Data(x=torch.randn(40, 6, generator=generator), edge_index=edges)


@pytest.fixture(scope="module")
def model() -> GAT:
    torch.manual_seed(3)
    return GAT(6, 8, 2, 3).eval()


@pytest.fixture(scope="module")
def result(model: GAT, graph: Data) -> Evaluation:
    return evaluate(model, graph, TARGETS, ["gatt", "random"], ["weight", "removal"], sets=True)


def chosen_edges(result: Evaluation, position: int, share: float) -> Tensor:
    """The highest-scored share of a target's edges that carry a flow and are no self-loops, in plain steps."""
    pairs = result.pairs
    own = range(int(pairs.ptr[position]), int(pairs.ptr[position + 1]))
    kept = [pair for pair in own if pairs.flow[pair] and int(pairs.edges[pair]) < pairs.graph.num_proper_edges]
    kept.sort(key=lambda pair: -float(result.pair_scores["gatt"][pair]))
    return pairs.edges[kept[: max(1, round(share * len(kept)))]]


def test_fidelity_and_unfaithfulness_are_those_of_pyg_on_the_same_masks(
    model: GAT, graph: Data, result: Evaluation
) -> None:
    explainer = Explainer(
        model,
        GNNExplainer(epochs=1),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    prediction = explainer.get_prediction(graph.x, graph.edge_index)
    found: dict[str, list[float]] = {"fidelity_plus": [], "fidelity_minus": [], "unfaithfulness": []}
    for position, target in enumerate(TARGETS):
        mask = torch.zeros(graph.num_edges)
        mask[chosen_edges(result, position, CHOSEN)] = 1.0
        explanation = Explanation(
            x=graph.x,
            edge_index=graph.edge_index,
            edge_mask=mask,
            index=torch.tensor([target]),
            prediction=prediction,
            target=prediction.argmax(-1),
            _model_args=[],
        )
        plus, minus = pyg_fidelity(explainer, explanation)
        for name, value in zip(found, (plus, minus, pyg_unfaithfulness(explainer, explanation)), strict=True):
            found[name].append(value)
    for name, values in found.items():
        metric = f"explain/gatt/weight/{name}"
        assert result.by_target[metric].tolist() == pytest.approx(values, abs=1e-6), name
        assert result.metrics[metric] == pytest.approx(sum(values) / len(values), abs=1e-6)
    plus, minus = (torch.tensor(result.metrics[f"explain/gatt/weight/fidelity_{one}"]) for one in ("plus", "minus"))
    expected = float(pyg_characterization(plus, minus))
    assert result.metrics["explain/gatt/weight/characterization"] == pytest.approx(expected, abs=1e-6)


def test_areas_are_those_of_passes_with_edges_deleted(model: GAT, graph: Data, result: Evaluation) -> None:
    """Under `removal`, an edge that is reduced is an edge that is not there."""

    def probability(target: int, gone: Tensor) -> float:
        kept = torch.ones(graph.num_edges, dtype=torch.bool)
        kept[gone] = False
        with torch.no_grad():
            usual = model(graph.x, graph.edge_index)[target].argmax()
            return float(model(graph.x, graph.edge_index[:, kept])[target].softmax(-1)[usual])

    for position, target in enumerate(TARGETS[:3]):
        every = chosen_edges(result, position, 1.0)
        none = every[:0]
        tops = [none, *(chosen_edges(result, position, share) for share in SHARES), every]
        deleted = [probability(target, top) for top in tops]
        inserted = [probability(target, every[~torch.isin(every, top)]) for top in tops]
        shares = torch.tensor([0.0, *SHARES, 1.0])
        for name, values in (("deletion_area", deleted), ("insertion_area", inserted)):
            expected = float(torch.trapezoid(torch.tensor(values), shares))
            found = float(result.by_target[f"explain/gatt/removal/{name}"][position])
            assert found == pytest.approx(expected, abs=1e-5), name


def test_sets_have_intervals_and_rows_of_their_own(result: Evaluation) -> None:
    table = result.to_pandas()
    assert {("weight", "fidelity_plus"), ("removal", "deletion_area"), ("scores", "sparsity")} <= set(table.index)
    for name in result.by_target:
        assert name in result.intervals
    low, high = result.interval("gatt", "weight", "unfaithfulness")
    assert low <= result.metrics["explain/gatt/weight/unfaithfulness"] <= high
    assert "explain/gatt/weight/characterization" in result.intervals


def test_precision_and_jaccard_beside_auroc_where_there_is_truth() -> None:
    data = Infection(num_nodes=150, edge_probability=0.02, num_layers=2, seed=3)
    torch.manual_seed(0)
    net = GAT(data.num_features, 8, 2, data.num_classes).eval()
    assert data.truth is not None
    result = evaluate(
        net, data.graph, num_targets=5, methods=["gatt"], protocols=["weight"], truth=data.truth, sets=True
    )
    columns = result.truth_columns
    assert columns is not None
    assert columns.labels is not None
    precision, overlap = [], []
    for target in range(data.truth.num_targets):
        own = columns.owner == target
        true = set(columns.labels[own].nonzero().view(-1).tolist())
        best = set(columns.scores["gatt"][own].argsort(descending=True, stable=True)[: len(true)].tolist())
        precision.append(len(true & best) / len(true))
        overlap.append(len(true & best) / len(true | best))
    assert result.metrics["explain/gatt/precision_at_k"] == pytest.approx(sum(precision) / len(precision))
    assert result.metrics["explain/gatt/jaccard"] == pytest.approx(sum(overlap) / len(overlap))
    assert ("truth", "jaccard") in result.to_pandas().index


def test_numbers_move_in_standard_deviations(graph: Data) -> None:
    torch.manual_seed(0)
    result = evaluate(GAT(6, 8, 2, 1).eval(), graph, TARGETS, ["gatt"], ["weight"], mode="regression", sets=True)
    assert result.metrics["explain/gatt/weight/fidelity_plus"] > 0
    assert not any("unfaithfulness" in name or "characterization" in name for name in result.metrics)


def test_metric_classes_are_means_of_the_functions() -> None:
    generator = torch.Generator().manual_seed(0)
    usual, without, alone = (torch.randint(0, 3, (20,), generator=generator) for _ in range(3))
    p, q = (torch.rand(20, 3, generator=generator).softmax(-1) for _ in range(2))
    plus, unfaithful, score = Fidelity(), Unfaithfulness(), CharacterizationScore()
    for part in (slice(0, 7), slice(7, 20)):
        plus.update(usual[part], without[part])
        unfaithful.update(p[part], q[part])
        score.update(usual[part], without[part], alone[part])
    assert float(plus.compute()) == pytest.approx(float((usual != without).float().mean()))
    assert float(unfaithful.compute()) == pytest.approx(float(F.unfaithfulness(p, q).mean()))
    expected = F.characterization_score(F.fidelity(usual, without).mean(), F.fidelity(usual, alone).mean())
    assert float(score.compute()) == pytest.approx(float(expected))
    score.reset()
    assert math.isnan(float(score.positive.compute()))


def test_what_does_not_fit_is_refused(model: GAT, graph: Data) -> None:
    with pytest.raises(ArgumentError, match="`predicted_after`"):
        F.fidelity(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ArgumentError, match="`shares`"):
        F.curve_area(torch.tensor([0.0, 0.0]), torch.zeros(1, 2))
    subject = Subject.of_data(model, graph)
    with pytest.raises(ArgumentError, match=r"`config\.sets`"):
        Evaluator(subject, TARGETS, EvaluationConfig(sets=True), shard=Shard(0, 2))
