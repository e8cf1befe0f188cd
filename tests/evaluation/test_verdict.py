"""Verdicts on nets that are built so that the right one is known."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kendalltau, pearsonr
from torch import nn
from torch_geometric.data import Data

from attree.evaluation import Evaluation, evaluate
from attree.evaluation.verdict import RULES, judge
from helpers.built_attention import Built, loud_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def graph() -> Data:
    return loud_graph()


def verdict(graph: Data, model: nn.Module, **kwargs: Any) -> tuple[Evaluation, dict[str, str]]:
    """The result, and its findings by rule; the sentences of a rule that has several, joined."""
    result = evaluate(model.eval(), graph, num_targets=60, **kwargs)
    found: dict[str, str] = {}
    for finding in result.verdict:
        found[finding.rule] = f"{found.get(finding.rule, '')} {finding.sentence}".strip()
    return result, found


def test_attention_that_matters(graph: Data) -> None:
    result, found = verdict(graph, Built(sharpness=4.0, scale=3.0))
    assert "Under `weight`, learned attention says more than uniform attention" in found["learned"]
    assert str(result.difference("gatt", "uniform", "weight", "pc_pearson")) in found["learned"]
    assert "Under `weight`, GAtt foretells the model best" in found["best"] or "GAtt may be as good" in found["best"]
    assert not {"no_effect", "unseen", "saturated"} & set(found)


def test_attention_that_does_not_matter(graph: Data) -> None:
    _, found = verdict(graph, Built(sharpness=0.0, scale=3.0))
    assert "says no more than uniform attention: the computation tree alone says as much" in found["learned"]
    assert "says more" not in found["learned"]


def test_a_skip_that_carries_all(graph: Data) -> None:
    _, found = verdict(graph, Built(sharpness=4.0, skip=5.0, through=0.0))
    assert "Under `weight` and `removal`, reducing any one edge changes no prediction" in found["no_effect"]
    assert "100% of the predictions stay the same" in found["unseen"]
    assert not {"best", "learned", "protocol"} & set(found)


def test_a_skip_that_carries_most(graph: Data) -> None:
    _, found = verdict(graph, Built(sharpness=1.0, skip=5.0, through=0.5))
    assert "of the predictions stay the same without the attention of a layer" in found["unseen"]
    assert "no_effect" not in found


def test_a_saturated_net(graph: Data) -> None:
    _, found = verdict(graph, Built(sharpness=0.5, scale=400.0))
    assert "The model is saturated" in found["saturated"]
    _, found = verdict(graph, Built(sharpness=0.5, scale=3.0))
    assert "saturated" not in found


def test_few_targets_and_few_changes_are_said_to_be_uncertain(graph: Data) -> None:
    model = Built(sharpness=1.0, scale=0.01).eval()
    said = judge(evaluate(model, graph, targets=[3, 5], methods=["gatt"])).sentences
    assert any("2 targets are too few" in sentence for sentence in said)
    changed = evaluate(model, graph, targets=[3]).num_changed("removal")
    assert any("`p_auroc` and `faithfulness` say little" in sentence for sentence in said) == (changed < 10)


def test_the_best_method_is_recommended(graph: Data) -> None:
    model = Built(sharpness=4.0, scale=3.0)
    names = ["uniform", "gatt", "avgatt", "random"]
    for protocols in (["removal", "weight"], ["removal"], ["weight"]):
        result, _ = verdict(graph, model, methods=names, protocols=protocols)
        pearson = {name: result.metrics[f"explain/{name}/{protocols[0]}/pc_pearson"] for name in names}
        assert result.verdict.method == max(pearson, key=lambda name: pearson[name])
    assert result.explain(3).method == result.verdict.method
    exact, _ = verdict(graph, model, methods=["gatt", "occlusion"], protocols=["removal"])
    assert exact.verdict.method == "occlusion"
    assert pickle.loads(pickle.dumps(exact.verdict)).method == "occlusion"
    scores_alone, _ = verdict(graph, model, methods=["gatt"], protocols=[])
    assert scores_alone.verdict.method is None
    still, _ = verdict(graph, Built(sharpness=4.0, skip=5.0, through=0.0), methods=["gatt"])
    assert still.verdict.method is None


def test_a_few_strong_edges_against_all_others(graph: Data) -> None:
    """A twentieth of the edges matters and is scored highest; among the others, higher scores matter less."""
    result, _ = verdict(graph, Built(sharpness=1.0), methods=["gatt"], protocols=["removal"])
    number = len(result.pairs)
    scores = torch.rand(number, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    effect = torch.where(scores > 0.95, 0.5 + 0.1 * scores, -0.1 * scores)
    metrics = {
        "explain/gatt/removal/pc_pearson": float(pearsonr(scores, effect).statistic),
        "explain/gatt/removal/pc_kendall": (kendall := float(kendalltau(scores, effect).statistic)),
    }
    reductions = {"removal": replace(result.reductions["removal"], delta_pc=effect)}
    built = replace(result, metrics=metrics, pair_scores={"gatt": scores}, reductions=reductions)
    (sentence,) = (finding.sentence for finding in built.verdict if finding.rule == "ranks")
    assert sentence.startswith(
        "Under `removal`, that holds for the strongest edges only: over all edges the ranks run the other way "
        f"(Kendall {kendall:.2f} ["
    )
    assert built.interval("gatt", "removal", "pc_kendall")[1] < 0
    other = replace(built, metrics={name: -value for name, value in metrics.items()}, pair_scores={"gatt": -scores})
    assert "ranks" not in other.verdict.rules  # where all correlations are negative, there is nothing to limit


def test_a_verdict_stands_under_tables_and_in_files(graph: Data, tmp_path: Path) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0))
    sentences = result.verdict.sentences
    assert all(sentence in str(result) for sentence in sentences)
    assert result._repr_html_().count("<li>") == len(sentences)
    result.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["verdict"] == sentences
    assert Evaluation.load(tmp_path).verdict.rules == result.verdict.rules
    assert result.verdict.rules <= {rule.name for rule in RULES}
