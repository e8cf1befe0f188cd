"""Verdicts on nets that are built so that the right one is known."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kendalltau, pearsonr
from torch import nn
from torch_geometric.data import Data

from attree.evaluation import Evaluation, evaluate
from attree.evaluation.verdict_rules import RULES, judge
from helpers.built_attention import KINDS, Built, loud_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def graph() -> Data:
    return loud_graph()


def verdict(graph: Data, model: nn.Module, **kwargs: Any) -> tuple[Evaluation, dict[str, str]]:
    """The result, and its findings by rule; the sentences of a rule that has several, joined."""
    return verdict_of(evaluate(model.eval(), graph, num_targets=60, **kwargs))


def verdict_of(result: Evaluation) -> tuple[Evaluation, dict[str, str]]:
    found: dict[str, str] = {}
    for finding in result.verdict:
        found[finding.rule] = f"{found.get(finding.rule, '')} {finding.sentence}".strip()
    return result, found


def test_attention_that_matters(graph: Data) -> None:
    result, found = verdict(graph, Built(sharpness=4.0, scale=3.0))
    assert "Under `weight`, learned attention explains more than uniform attention" in found["learned"]
    assert str(result.difference("gatt", "uniform", "weight", "pc_pearson")) in found["learned"]
    assert "Under `weight`, GAtt predicts best how" in found["best"] or "GAtt may be as good" in found["best"]
    assert not {"no_effect", "unseen", "saturated"} & set(found)


def test_attention_that_does_not_matter(graph: Data) -> None:
    _, found = verdict(graph, Built(sharpness=0.0, scale=3.0))
    assert "explains no more than uniform attention, so the computation tree alone explains as much" in found["learned"]
    assert "explains more" not in found["learned"]


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
    result = evaluate(model, graph, targets=[3, 5], methods=["gatt"])
    said = judge(result).sentences
    assert any("2 targets are too few" in sentence for sentence in said)
    weak = "too few for an interval of `prediction, AUROC` and `faithfulness (mean)`"
    changing = len(set(result.pairs.owner[result.reductions["removal"].changed].tolist()))
    assert changing > 0
    assert f"Under `removal`, predictions change for {changing} of 2 targets: {weak}." in said


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


@pytest.mark.parametrize(
    ("slope", "noise", "sentence"),
    [
        (-0.01, 0.0, "GAtt finds the strongest edges, but over all edges its ranks run the wrong way"),
        (0.0, 0.01, "GAtt finds the strongest edges, but over all edges its ranks agree less with the effects"),
        (-0.1, 0.0, "GAtt even ranks the edges the wrong way round"),
    ],
)
def test_a_few_strong_edges_and_all_others(graph: Data, slope: float, noise: float, sentence: str) -> None:
    """A twentieth of the edges matters and is scored highest; the others matter less with their score, or by chance."""
    result, _ = verdict(graph, Built(sharpness=1.0), methods=["gatt"], protocols=["removal"])
    generator = torch.Generator().manual_seed(0)
    scores, chance = torch.rand(2, len(result.pairs), generator=generator, dtype=torch.float64)
    effect = torch.where(scores > 0.95, 0.5 + 0.1 * scores, slope * scores + noise * chance)
    metrics = {
        "explain/gatt/removal/pc_pearson": (pearson := float(pearsonr(scores, effect).statistic)),
        "explain/gatt/removal/pc_kendall": (kendall := float(kendalltau(scores, effect).statistic)),
    }
    reductions = {"removal": replace(result.reductions["removal"], delta_pc=effect)}
    built = replace(result, metrics=metrics, pair_scores={"gatt": scores}, reductions=reductions)
    said = {finding.rule: finding.sentence for finding in built.verdict}
    assert said["ranks"].startswith(f"Under `removal`, {sentence} (confidence, Kendall: {kendall:.2f} [")
    assert ("no method predicts well" in said["best"]) == ("even" in sentence) == (pearson < 0.3)
    other = replace(built, metrics={name: -value for name, value in metrics.items()}, pair_scores={"gatt": -scores})
    assert "ranks" not in other.verdict.rules  # where all correlations are negative, there is nothing to limit


def crowd(offset: float, nodes: int = 40) -> Data:
    """Every node hears every other; the first feature, and with it the first class, is moved by `offset`."""
    x = torch.randn(nodes, KINDS + 1, generator=torch.Generator().manual_seed(1))
    x[:, 0] += offset
    pairs = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes)).t()
    return Data(x=x, edge_index=pairs[:, pairs[0] != pairs[1]].contiguous())


@pytest.mark.parametrize(("offset", "matters"), [(0.0, False), (4.0, True)])
def test_whether_the_protocol_matters(offset: float, matters: bool) -> None:
    """What 40 nodes send adds up to about 0 without the offset: then spreading an edge's weight changes nothing more.

    With it, all edges speak for the first class: taking a weight away counts by its size, removing an edge does not.
    """
    result, found = verdict(crowd(offset), Built(sharpness=1.0), methods=["gatt", "uniform"])
    agreement = pearsonr(result.reductions["weight"].delta_pc, result.reductions["removal"].delta_pc).statistic
    start = "The protocol matters: " if matters else "The protocol matters little: "
    effects = f"an edge's effects under `weight` and `removal` have a correlation of {agreement:.2f}, and GAtt has "
    assert found["protocol"].startswith(start + effects)
    assert ("Decide which" in found["protocol"]) == matters


def test_a_difference_between_two_weak_scores_is_called_so(graph: Data) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0, scale=3.0), methods=["gatt", "uniform"], protocols=["removal"])
    generator = torch.Generator().manual_seed(0)
    gatt, uniform, chance = torch.rand(3, len(result.pairs), generator=generator, dtype=torch.float64)
    for share, is_said in ((0.2, True), (2.0, False)):
        effect = share * gatt + chance
        scores = {"gatt": gatt, "uniform": uniform}
        metrics = {
            f"explain/{name}/removal/pc_pearson": float(pearsonr(own, effect).statistic) for name, own in scores.items()
        }
        reductions = {"removal": replace(result.reductions["removal"], delta_pc=effect)}
        built = replace(result, metrics=metrics, pair_scores=scores, reductions=reductions)
        (sentence,) = (finding.sentence for finding in built.verdict if finding.rule == "learned")
        assert "explains more than uniform attention" in sentence
        assert (", but neither predicts the effects well (confidence" in sentence) == is_said


def test_random_scores_are_never_called_the_best(graph: Data) -> None:
    lonely = Data(x=graph.x[:6], edge_index=graph.edge_index.new_tensor([[0, 1], [1, 2]]))
    result, found = verdict_of(evaluate(Built(sharpness=1.0, scale=3.0).eval(), lonely, targets=[3, 4, 5]))
    assert not any("Random" in sentence for sentence in result.verdict.sentences)
    assert "no correlation is defined: too few pairs, or all scores are equal" in found["best"]


def test_one_pair_alone_is_said_to_be_too_little(graph: Data) -> None:
    lonely = Data(x=graph.x[:6], edge_index=graph.edge_index.new_tensor([[0, 1], [1, 2]]))
    text = str(evaluate(Built(sharpness=1.0, scale=3.0).eval(), lonely, targets=5, methods=["gatt"]))
    assert text.startswith("1 node, 1 pair; changed predictions: ")
    assert "1 target is too few to say much" in text
    assert "half of the 95 % interval" not in text  # nothing has one


def test_rows_of_a_protocol_stand_together(graph: Data) -> None:
    result = evaluate(Built(sharpness=1.0).eval(), graph, num_targets=5, methods=["gatt"], sets=True)
    groups = [protocol for protocol, _ in result.to_pandas().index]
    assert groups == sorted(groups, key=groups.index)


def test_every_number_of_a_verdict_has_a_name_that_stands_in_the_table(graph: Data) -> None:
    result, found = verdict(graph, Built(sharpness=4.0, scale=3.0))
    rows = {line[:40].strip() for line in str(result).splitlines()}
    names = {
        name for rule in ("best", "ranks", "learned") for name in re.findall(r"\((\w+, \w+): ", found.get(rule, ""))
    }
    assert names
    assert all(any(name in row for row in rows) for name in names)
    for low, high in re.findall(r"Pearson: \S+ \[(\S+), (\S+)\]", found["best"]):
        ends = {tuple(f"{end:.2f}" for end in own) for own in result.intervals.values()}
        assert (low, high) in ends


def test_a_verdict_stands_under_tables_and_in_files(graph: Data, tmp_path: Path) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0))
    sentences = result.verdict.sentences
    assert all(sentence in str(result) for sentence in sentences)
    assert result._repr_html_().count("<li>") == len(sentences)
    result.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["verdict"] == sentences
    assert Evaluation.load(tmp_path).verdict.rules == result.verdict.rules
    assert result.verdict.rules <= {rule.name for rule in RULES}
