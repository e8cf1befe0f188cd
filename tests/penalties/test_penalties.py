"""Each penalty is what its formula says, has the gradient of finite differences, and moves what it says."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from lightning.pytorch import Trainer
from scipy.stats import pearsonr
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from attree.attention import Attention, Graph, capture_attention
from attree.attribution import GAtt, subgraph_pairs
from attree.data import GroundTruth, NodeDataModule
from attree.errors import ArgumentError
from attree.faithfulness import reduce_attention
from attree.models import GAT, NodeClassifier
from attree.penalties import (
    GSAT,
    PENALTIES,
    AttentionPenalty,
    EffectConsistency,
    Entropy,
    HeadAgreement,
    PenalizedStep,
    Sparsity,
    TrueEdges,
    UniformDistance,
)
from helpers.random_attention import Case, cases
from helpers.small_fits import infection
from reference import gatt_by_matrices


def rows(case: Case) -> Iterator[list[np.ndarray]]:
    """For each layer the weights of every row of several edges, [n, heads], adding up to 1."""
    for weight, used in zip(case.attention.weights, case.used, strict=True):
        found = []
        for node in range(case.num_nodes):
            entering = [place for place, (_, end) in enumerate(case.looped) if end == node and used[place]]
            if len(entering) > 1:
                values = weight[entering].numpy()
                found.append(values / values.sum(axis=0))
        yield found


def mean(case: Case, per_head: Any) -> float:
    """The mean over layers of the mean over rows and heads of a function of one head's weights."""
    layers = []
    for found in rows(case):
        values = [per_head(row[:, head]) for row in found for head in range(row.shape[1])]
        layers.append(float(np.mean(values)) if values else 0.0)
    return float(np.mean(layers))


FORMULAS = {
    Entropy: lambda a: -(a * np.log(a)).sum() / math.log(len(a)),
    UniformDistance: lambda a: ((a - 1 / len(a)) ** 2).sum() * len(a) / (len(a) - 1),
    Sparsity: lambda a: (np.sqrt(a).sum() ** 2 - 1) / (len(a) - 1),
}


@pytest.mark.parametrize("penalty", FORMULAS)
@settings(max_examples=30, deadline=None)
@given(case=cases(partial=True))
def test_penalties_of_rows_are_their_formulas(penalty: type[AttentionPenalty], case: Case) -> None:
    assert float(penalty().measure(case.attention)) == pytest.approx(mean(case, FORMULAS[penalty]), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(case=cases(partial=True))
def test_head_agreement_is_its_formula(case: Case) -> None:
    heads = case.attention.weights[0].shape[1]
    if heads == 1:
        with pytest.raises(ArgumentError, match="several attention"):
            HeadAgreement().measure(case.attention)
        return
    layers = []
    for found in rows(case):
        apart = [((row - row.mean(axis=1, keepdims=True)) ** 2).sum() / (heads - 1) for row in found]
        layers.append(float(np.mean(apart)) if apart else 0.0)
    assert float(HeadAgreement().measure(case.attention)) == pytest.approx(float(np.mean(layers)), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(case=cases(partial=True))
def test_gsat_is_the_divergence_from_keeping_edges_by_chance(case: Case) -> None:
    layers = []
    for weight, used in zip(case.attention.weights, case.used, strict=True):
        values = []
        for place, (source, end) in enumerate(case.looped):
            if source == end:
                continue
            row = [other for other, edge in enumerate(case.looped) if edge[1] == end and used[other]]
            alpha = float((weight[place] / weight[row].sum(dim=0)).mean())
            odds = 0.6 / 0.4 * alpha * len(row)
            p = odds / (1 + odds)
            values.append(p * math.log(p / 0.6) + (1 - p) * math.log((1 - p) / 0.4))
        layers.append(float(np.mean(values)) if values else 0.0)
    assert float(GSAT(keep=0.6).measure(case.attention)) == pytest.approx(float(np.mean(layers)), abs=1e-6)


GRAPH = Graph(torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5], [1, 2, 3, 4, 0, 2, 0, 3]]), 6)
TRUTH = GroundTruth(torch.tensor([3, 0]), torch.tensor([[2, 1, 4], [3, 2, 0]]), torch.tensor([0, 2, 3]))


def attend(*scores: Tensor) -> Attention:
    """Attention by a softmax of scores on the small graph."""
    weights = tuple(softmax(score, GRAPH.destination, num_nodes=6) for score in scores)
    return Attention(GRAPH, weights, (None,) * len(weights))


def scores(heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (GRAPH.num_edges, heads)
    return [torch.randn(shape, generator=generator, dtype=torch.double).requires_grad_() for _ in range(2)]


@pytest.mark.parametrize(
    "penalty",
    [
        *(Entropy(), Entropy(flatter=True), UniformDistance(), UniformDistance(away=True)),
        *(Sparsity(), HeadAgreement(), GSAT(), TrueEdges(truth=TRUTH)),
    ],
    ids=lambda penalty: penalty.name,
)
def test_gradients_are_those_of_finite_differences(penalty: AttentionPenalty) -> None:
    def number(*given: Tensor) -> Tensor:
        return penalty.measure_step(PenalizedStep(attend(*given), torch.nn.Identity()))

    assert torch.autograd.gradcheck(number, scores())


@pytest.mark.parametrize("penalty", [Entropy, UniformDistance, Sparsity, GSAT])
def test_uniform_and_certain_attention_are_the_ends(penalty: type[AttentionPenalty]) -> None:
    flat = torch.zeros(GRAPH.num_edges, 1, dtype=torch.double)
    sharp = torch.full_like(flat, -1e3)
    sharp[GRAPH.num_proper_edges :] = 0.0
    at = [float(penalty().measure(attend(one))) for one in (flat, sharp)]
    expected = {Entropy: [1, 0], Sparsity: [1, 0], UniformDistance: [0, 1]}.get(penalty)
    assert at == pytest.approx(expected, abs=1e-4) if expected else at[0] == pytest.approx(0, abs=1e-6) and at[1] > 1


def test_supervision_is_the_share_of_gatt_on_true_edges() -> None:
    attention = attend(*(score.detach() for score in scores()))
    edges = [(int(i), int(j)) for i, j in GRAPH.edge_index.t()]
    alpha = [weight.mean(dim=1).tolist() for weight in attention.weights]
    dense = gatt_by_matrices(edges, 6, alpha)
    wanted = []
    for target in (0, 3):
        true = [tuple(edge) for edge in TRUTH.edges_of(target).t().tolist()]
        score = dense[target]
        wanted.append(-math.log(sum(score[edges.index(edge)] for edge in true) / score.sum()))
    step = PenalizedStep(attention, torch.nn.Identity(), truth=TRUTH)
    assert float(TrueEdges().measure_step(step)) == pytest.approx(np.mean(wanted))


def dense_data() -> NodeDataModule:
    """A graph whose nodes all have features of their own, and labels that depend on their neighbours."""
    generator = torch.Generator().manual_seed(0)
    x, edges = torch.randn(80, 6, generator=generator), torch.randint(0, 80, (2, 240), generator=generator)
    y = x.index_add(0, edges[1], x[edges[0]])[:, :3].argmax(dim=1)
    return NodeDataModule.from_data(Data(x=x, edge_index=edges, y=y), split_seed=0)


@pytest.fixture(scope="module")
def plain() -> tuple[NodeClassifier, Any]:
    """A fit without penalties, and its data."""
    return fit(dense_data()), dense_data()


@pytest.fixture(scope="module")
def plain_infection() -> tuple[NodeClassifier, Any]:
    """The same on data that has true explanations."""
    return fit(infection()), infection()


def fit(data: Any, **arguments: Any) -> NodeClassifier:
    torch.manual_seed(0)
    model = NodeClassifier(GAT(data.num_features, data.num_classes, heads=2), lr=0.02, **arguments)
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    Trainer(max_epochs=20, accelerator="cpu", enable_model_summary=False, limit_val_batches=0, **quiet).fit(model, data)
    return model


def step_of(model: NodeClassifier, data: Any, grad: bool = False) -> PenalizedStep:
    attention = capture_attention(model, data.graph.x, data.graph.edge_index, grad=grad)
    return PenalizedStep(attention, model, data.graph, data.truth)


def test_consistency_is_one_minus_the_correlation_that_is_measured(plain: tuple[NodeClassifier, Any]) -> None:
    model, data = plain
    graph = data.graph
    nodes = graph.train_mask.nonzero().view(-1)
    for protocol in ("removal", "weight"):
        step = step_of(model, data, grad=True)
        found = EffectConsistency(targets=10**6, protocol=protocol).measure_step(step)
        pairs = subgraph_pairs(Graph(graph.edge_index, graph.num_nodes), nodes, 2)
        effect = reduce_attention(model, graph.x, graph.edge_index, pairs, protocol).delta_pc
        score = GAtt().score_pairs(capture_attention(model, graph.x, graph.edge_index), pairs)
        assert float(found.detach()) == pytest.approx(1 - pearsonr(score.numpy(), effect.numpy())[0], abs=1e-4)
        assert found.requires_grad


def test_the_gradient_of_consistency_takes_effects_as_constants(plain: tuple[NodeClassifier, Any]) -> None:
    """Following it by a small step on the attention raises the correlation with the effects of before."""
    model, data = plain
    step = step_of(model, data)
    penalty = EffectConsistency(targets=5)
    weights = [weight.double().requires_grad_() for weight in step.attention.weights]

    def number(*given: Tensor) -> Tensor:
        attention = Attention(step.attention.graph, given, step.attention.present)
        return penalty.measure_step(PenalizedStep(attention, model, data.graph))

    found = torch.autograd.grad(number(*weights), weights)
    direction = [torch.randn_like(weight) for weight in weights]
    up, down = (
        number(*(weight.detach() + sign * 1e-6 * way for weight, way in zip(weights, direction, strict=True)))
        for sign in (1, -1)
    )
    along = sum(float((one * way).sum()) for one, way in zip(found, direction, strict=True))
    assert along == pytest.approx(float(up - down) / 2e-6, rel=1e-3, abs=1e-6)


MOVED = {
    "entropy": {"strength": 3.0},
    "entropy.flatter": {"strength": 3.0, "flatter": True},
    "uniform_distance": {"strength": 3.0},
    "sparsity": {"strength": 3.0},
    "head_agreement": {"strength": 10.0},
    "true_edges": {"strength": 3.0, "share": 0.5},
    "effect": {"strength": 3.0, "targets": 16},
    "gsat": {"strength": 3.0},
}


@pytest.mark.parametrize("case", MOVED)
def test_training_moves_what_a_penalty_says(request: pytest.FixtureRequest, case: str) -> None:
    """Measured on the trained networks, over all training nodes, in eval mode."""
    without, data = request.getfixturevalue("plain_infection" if case == "true_edges" else "plain")
    name = case.split(".")[0]
    penalty = PENALTIES[name](**MOVED[case])
    measured = PENALTIES[name](**{**MOVED[case], **({"targets": 10**6} if name == "effect" else {})})
    trained = fit(data, penalties={name: penalty})
    before, after = (float(measured.measure_step(step_of(model, data))) for model in (without, trained))
    assert after < 0.9 * before


def test_supervised_targets_are_a_share_of_training_nodes_only(plain_infection: tuple[NodeClassifier, Any]) -> None:
    model, data = plain_infection
    step = step_of(model, data)
    every = TrueEdges().supervised(step.trained_nodes, None, data.truth)
    mask = data.graph.train_mask
    assert set(every.tolist()) == {node for node in data.truth.targets.tolist() if mask[node]}
    half = [TrueEdges(share=0.5, seed=seed).supervised(step.trained_nodes, None, data.truth) for seed in (0, 0, 1)]
    assert set(half[0].tolist()) < set(every.tolist())
    assert 0.3 < half[0].numel() / every.numel() < 0.7
    assert torch.equal(half[0], half[1])
    assert not torch.equal(half[0], half[2])


def test_noise_of_gsat_keeps_rows_and_depends_on_the_step_alone() -> None:
    score = torch.randn(GRAPH.num_edges, 2)

    def altered(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        given: Any = None
        return GSAT(temperature=0.1).alter(
            given, score, lambda one: softmax(one, GRAPH.destination, num_nodes=6), GRAPH.edge_index, generator
        )

    once, again, other = altered(0), altered(0), altered(1)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    total = torch.zeros(6, 2).index_add(0, GRAPH.destination, once)
    torch.testing.assert_close(total, torch.ones(6, 2))
    calm = softmax(score, GRAPH.destination, num_nodes=6)
    ratio = (once / calm).log()  # one factor an edge, but for the row's sum
    within = ratio - ratio[GRAPH.num_proper_edges + GRAPH.destination]
    torch.testing.assert_close(within[:, 0], within[:, 1], rtol=1e-3, atol=1e-3)
    assert float(within[GRAPH.num_proper_edges :].abs().max()) < 1e-6  # self-loops are kept
    assert float(within.max()) < 1e-6


def test_draws_differ_from_step_to_step_and_repeat_when_a_run_does() -> None:
    first = [PenalizedStep(attend(*scores()), torch.nn.Identity(), number=number).generator(0) for number in (0, 1, 0)]
    drawn = [torch.randperm(100, generator=generator).tolist() for generator in first]
    assert drawn[0] == drawn[2]
    assert all(one != other for one, other in pairwise(drawn))


def test_a_copy_leaves_the_engine_behind(plain: tuple[NodeClassifier, Any]) -> None:
    model, data = plain
    penalty = EffectConsistency(targets=3)
    penalty.measure_step(step_of(model, data, grad=True))
    assert penalty._cached_reducer is not None
    assert copy.deepcopy(penalty)._cached_reducer is None


@pytest.mark.parametrize(
    ("penalty", "arguments", "message"),
    [
        (Entropy, {"strength": -1}, "`strength` to be a number >= 0, but got -1"),
        (Entropy, {"flatter": 1}, "`flatter` to be True or False"),
        (TrueEdges, {"share": 0}, r"`share` to be a number in \(0, 1\]"),
        (EffectConsistency, {"protocol": "cut"}, "`protocol` to be one of coefficient"),
        (EffectConsistency, {"targets": 0}, "`targets` to be an integer >= 1"),
        (GSAT, {"keep": 1}, r"`keep` to be a number in \(0, 1\)"),
    ],
)
def test_bad_arguments_are_refused(penalty: type[AttentionPenalty], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        penalty(**arguments)


def test_true_edges_need_a_truth() -> None:
    with pytest.raises(ArgumentError, match="only for data with true edges"):
        TrueEdges().measure_step(PenalizedStep(attend(*scores()), torch.nn.Identity()))
