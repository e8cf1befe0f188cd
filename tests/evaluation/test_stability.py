"""Stability of explanations, against correlations of single targets and against graphs whose edges were deleted."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from scipy.stats import pearsonr
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.errors import ArgumentError
from attree.evaluation.stability import stability_of
from attree.metrics.functional.faithfulness import TargetDeviations

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
METHODS = ["gatt", "avgatt", "attention_gradient"]


@pytest.fixture(scope="module")
def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 30, (2, 90), generator=generator)
    return Data(x=torch.randn(30, 8, generator=generator), edge_index=edges[:, edges[0] != edges[1]].unique(dim=1))


@pytest.fixture(scope="module")
def models() -> list[nn.Module]:
    networks: list[nn.Module] = []
    for seed in range(3):
        torch.manual_seed(seed)
        networks.append(GAT(8, 16, 2, out_channels=3).eval())
    return networks


def by_target(columns: list[Tensor], ptr: list[int]) -> float:
    """The mean over targets and pairs of columns of SciPy's correlation, without targets with a constant column."""
    of_pairs = []
    for x, y in combinations(columns, 2):
        values = [
            pearsonr(x[begin:end].double(), y[begin:end].double()).statistic
            for begin, end in pairwise(ptr)
            if len(x[begin:end].unique()) > 1 and len(y[begin:end].unique()) > 1
        ]
        of_pairs.append(sum(values) / len(values))
    return sum(of_pairs) / len(of_pairs)


def test_agreement_is_the_mean_correlation_of_every_two_models(graph: Data, models: list[nn.Module]) -> None:
    targets = [1, 4, 9, 16, 25]
    result = attree.stability(models, graph, targets, METHODS)
    alone = [attree.evaluate(model, graph, targets, METHODS, ["removal"]) for model in models]
    ptr = alone[0].pairs.ptr.tolist()
    for method in METHODS:
        assert result.agreement[method] == pytest.approx(
            by_target([single.pair_scores[method] for single in alone], ptr)
        )
        values = [single.metrics[f"explain/{method}/removal/within_pearson"] for single in alone]
        assert result.alone[method] == pytest.approx(sum(values) / 3)
    assert result.effects == pytest.approx(by_target([single.reductions["removal"].delta_pc for single in alone], ptr))
    same = torch.stack([single.predictions.argmax(dim=-1) for single in alone if single.predictions is not None])
    assert result.same_prediction == pytest.approx(float((same == same[0]).all(dim=0).float().mean()))
    assert f"GAtt of 3 models agree by {result.agreement['gatt']:.2f}" in str(result)


def test_one_model_twice_agrees_with_itself_and_gains_nothing(graph: Data, models: list[nn.Module]) -> None:
    result = attree.stability([models[0], models[0]], graph, num_targets=6, methods=METHODS)
    for method in METHODS:
        assert result.agreement[method] == pytest.approx(1.0)
        assert result.averaged[method] == pytest.approx(result.alone[method])
    assert (result.effects, result.same_prediction) == (pytest.approx(1.0), 1.0)
    assert "similar explanations" in result.sentence
    assert "no better guide" in result.sentence


def test_what_one_model_adds_is_averaged_out() -> None:
    """Models whose scores are the effects plus opposite errors: their mean is the effects, up to its scale."""
    case = attree.planted.make("redundant", seed=0)
    base = attree.evaluate(case.model, case.data, case.targets, ["gatt"], ["removal"])
    effects = torch.randn(len(base.pairs), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = torch.randn(len(base.pairs), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    owner, count = base.pairs.owner, len(base.targets)
    error = TargetDeviations(error, owner, count).values
    plus, minus = effects + error, effects - error
    reductions = {"removal": replace(base.reductions["removal"], delta_pc=effects)}
    results = [replace(base, pair_scores={"gatt": scores}, reductions=reductions) for scores in (plus, minus)]
    ptr = base.pairs.ptr.tolist()
    scaled = [TargetDeviations(scores, owner, count).values for scores in (plus, minus)]
    assert stability_of(results).averaged["gatt"] == pytest.approx(by_target([scaled[0] + scaled[1], effects], ptr))


def test_a_prediction_is_explained_again_from_the_kept_edges(graph: Data, models: list[nn.Module]) -> None:
    targets, share = [1, 4, 9], 0.5
    result = attree.stability(models[:2], graph, targets, ["gatt"], share=share, kept_targets=3)
    values = []
    for target in targets:
        before = attree.capture_attention(models[0], graph.x, graph.edge_index)
        scores = attree.GAtt().attribute(before, [target]).edge_mask(target)
        tree = scores.nonzero().view(-1)
        kept = tree[scores[tree].argsort(descending=True)[: math.ceil(share * len(tree))]].sort().values
        after = attree.capture_attention(models[0], graph.x, graph.edge_index[:, kept])
        values.append(pearsonr(scores[kept], attree.GAtt().attribute(after, [target]).edge_mask(target)).statistic)
    assert result.reexplained["gatt"] == pytest.approx(sum(values) / len(values), abs=1e-5)  # scores are float32
    # GAtt and gradients read the computation tree alone, so that they are the same without the rest of the graph.
    whole = attree.stability(models[:2], graph, targets, ["gatt", "attention_gradient"], share=1.0)
    assert whole.reexplained == {"gatt": pytest.approx(1.0), "attention_gradient": pytest.approx(1.0)}


def test_the_verdict_says_it_where_other_models_are_given(graph: Data, models: list[nn.Module]) -> None:
    result = attree.evaluate(models[0], graph, num_targets=6, models=models[1:])
    assert result.stability is not None
    assert result.stability.num_models == 3
    assert result.stability.sentence in result.verdict.cautions
    assert " ".join(result.stability.sentence.split()) in " ".join(str(result).split())
    assert attree.evaluate(models[0], graph, num_targets=6).stability is None


def test_what_cannot_be_compared_is_refused(graph: Data, models: list[nn.Module]) -> None:
    with pytest.raises(ArgumentError, match="two models"):
        attree.stability(models[:1], graph)
    with pytest.raises(ArgumentError, match="equal depth"):
        attree.stability([models[0], GAT(8, 16, 3, out_channels=3)], graph, num_targets=3)
    with pytest.raises(ArgumentError, match="`share`"):
        attree.stability(models, graph, share=1.5)
