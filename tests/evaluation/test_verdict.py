"""Verdicts on nets that are built so that the right one is known."""

from __future__ import annotations

import json
import math
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from scipy.stats import pearsonr
from torch import nn
from torch_geometric.data import Data

from attree.evaluation import Evaluation, evaluate
from attree.evaluation.verdict_rules import RULES, judge
from attree.metrics.functional import pearson_by_target
from attree.report.logged_metrics import print_results
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
    assert "Under `weight`, the network's attention explains more than uniform attention" in found["attention"]
    # Five comparisons or more hold together: more careful than one, and less than if they were unrelated (Bonferroni).
    assert 0.95 < result.verdict_level < 1 - 0.05 / comparisons(result)
    difference = result.difference("gatt", "uniform", "weight", "within_pearson", level=result.verdict_level)
    assert str(difference) in found["attention"]
    assert "Under `removal`, GAtt predicts best how" in found["best"]
    assert not {"no_effect", "unseen", "saturated"} & set(found)


def test_attention_that_does_not_matter(graph: Data) -> None:
    _, found = verdict(graph, Built(sharpness=0.0, scale=3.0))
    assert (
        "Under `weight`, the network's attention explains no more than uniform attention by more than 0.05"
        in (found["attention"])
    )
    assert "explains more" not in found["attention"]


def test_a_skip_that_carries_all(graph: Data) -> None:
    _, found = verdict(graph, Built(sharpness=4.0, skip=5.0, through=0.0))
    assert "Under `removal` and `weight`, reducing any one edge changes no prediction" in found["no_effect"]
    assert "100% of the predictions stay the same" in found["unseen"]
    assert not {"best", "attention", "protocol", "sizes"} & set(found)


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
    assert "Intervals speak of all 120 targets, if these 2 were drawn at random." in said
    assert "Statistics over the pairs of all targets have no interval with fewer than 50 targets." in said
    result = evaluate(model, graph, num_targets=60, methods=["gatt"])
    changing = len(set(result.pairs.owner[result.reductions["removal"].changed].tolist()))
    few = f"Under `removal`, predictions change for {changing} of 60 targets: too few for an interval"
    assert any(few in sentence for sentence in result.verdict.sentences) == (changing < 30)
    pooled = "Pearson's correlations over the pairs of all targets, and `faithfulness (mean)`, have no interval"
    assert any(pooled in sentence for sentence in result.verdict.sentences)


def test_if_all_targets_are_measured_the_numbers_are_exact(graph: Data) -> None:
    result = evaluate(Built(sharpness=4.0, scale=3.0).eval(), graph, targets="all", methods=["gatt", "uniform"])
    exact = "All 120 targets that there are were measured: these numbers are exact, and have no intervals."
    assert exact in result.verdict.sentences
    assert not any("Intervals speak" in sentence for sentence in result.verdict.sentences)
    assert "\nall 120 nodes, " in str(result)
    assert "\N{PLUS-MINUS SIGN}" not in str(result)
    difference = result.difference("gatt", "uniform", "removal", "within_pearson")
    assert difference.low == difference.value == difference.high
    assert difference.is_certain


def test_the_best_method_is_recommended(graph: Data) -> None:
    model = Built(sharpness=4.0, scale=3.0)
    names = ["uniform", "gatt", "avgatt", "random"]
    for protocols in (["removal", "weight"], ["removal"], ["weight"]):
        result, _ = verdict(graph, model, methods=names, protocols=protocols)
        pearson = {name: result.metrics[f"explain/{name}/{protocols[0]}/within_pearson"] for name in names}
        assert result.verdict.method == max(pearson, key=lambda name: pearson[name])
    assert result.explain(3).method == result.verdict.method
    exact, _ = verdict(graph, model, methods=["gatt", "occlusion"], protocols=["removal"])
    assert exact.verdict.method == "occlusion"
    assert pickle.loads(pickle.dumps(exact.verdict)).method == "occlusion"
    scores_alone, _ = verdict(graph, model, methods=["gatt"], protocols=[])
    assert scores_alone.verdict.method is None
    still, _ = verdict(graph, Built(sharpness=4.0, skip=5.0, through=0.0), methods=["gatt"])
    assert still.verdict.method is None


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
    effects = f"an edge's effects under `removal` and `weight` have a correlation of {agreement:.2f}"
    assert found["protocol"].startswith(start + effects)
    assert ("Decide which" in found["protocol"]) == matters


def test_a_difference_between_two_weak_scores_is_called_so(graph: Data) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0, scale=3.0), methods=["gatt", "uniform"], protocols=["removal"])
    generator = torch.Generator().manual_seed(0)
    gatt, uniform, chance = torch.rand(3, len(result.pairs), generator=generator, dtype=torch.float64)
    for share, is_said in ((0.25, True), (2.0, False)):
        built = with_effects(result, {"gatt": gatt, "uniform": uniform}, share * gatt + chance)
        (sentence,) = (finding.sentence for finding in built.verdict if finding.rule == "attention")
        assert "explains more than uniform attention" in sentence
        assert (", but neither predicts the effects well (within" in sentence) == is_said


def with_effects(result: Evaluation, scores: dict[str, torch.Tensor], effect: torch.Tensor) -> Evaluation:
    """The evaluation with other scores and effects under `removal`."""
    owner, targets = result.pairs.owner, result.num_targets
    metrics = {
        f"explain/{name}/removal/within_pearson": float(pearson_by_target(values, effect, owner, targets).nanmean())
        for name, values in scores.items()
    }
    reductions = {"removal": replace(result.reductions["removal"], delta_pc=effect)}
    return replace(result, metrics=metrics, pair_scores=scores, reductions=reductions)


def comparisons(result: Evaluation) -> int:
    """Every two methods that are ranked, under each protocol, and GAtt under both of them.

    Occlusion is exact under `removal`, and random scores are never ranked.
    """
    ranked = {name for name in result.pair_scores if name != "random"}
    pairs = [
        math.comb(len(ranked - {"occlusion"} if protocol == "removal" else ranked), 2) for protocol in result.reductions
    ]
    return sum(pairs) + len(pairs) - 1


def test_two_scores_that_explain_nothing_are_not_said_to_explain_as_much(graph: Data) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0, scale=3.0), methods=["gatt", "uniform"], protocols=["removal"])
    generator = torch.Generator().manual_seed(0)
    scores, chance = torch.rand(2, len(result.pairs), generator=generator, dtype=torch.float64)
    built = with_effects(result, {"gatt": scores, "uniform": scores + 1}, chance)
    (sentence,) = (finding.sentence for finding in built.verdict if finding.rule == "attention")
    assert "no more than uniform attention by more than 0.05, and neither explains the effects" in sentence
    assert "computation tree" not in " ".join(built.verdict.sentences)
    built = with_effects(result, {"gatt": scores, "uniform": scores + 1}, scores + chance)
    (sentence,) = (finding.sentence for finding in built.verdict if finding.rule == "attention")
    assert "by more than 0.05, so the computation tree alone explains as much" in sentence


def test_a_class_that_always_wins_says_nothing_about_bypassed_attention(graph: Data) -> None:
    class Same(Built):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return super().forward(x, edge_index) + torch.tensor([9.0, 0.0, 0.0, 0.0])

    result, found = verdict(graph, Same(sharpness=4.0, skip=0.01))
    assert result.metrics["explain/bypass"] == 1.0
    assert "because information bypasses it" not in " ".join(result.verdict.sentences)
    assert "The network predicts the same class for all targets" in found["unseen"]


def test_effects_of_another_size_make_the_protocol_matter(graph: Data) -> None:
    """Their correlation is 1, but one protocol changes probabilities a thousand times as much."""
    result, _ = verdict(graph, Built(sharpness=4.0, scale=3.0), methods=["gatt"])
    weight = result.reductions["weight"]
    metrics = {
        **result.metrics,
        "explain/effects/removal/strongest": result.metrics["explain/effects/weight/strongest"] / 1000,
        "explain/gatt/removal/within_pearson": result.metrics["explain/gatt/weight/within_pearson"],
    }
    reductions = {"removal": replace(weight, delta_pc=weight.delta_pc / 1000), "weight": weight}
    built = replace(result, metrics=metrics, reductions=reductions)
    (sentence,) = (finding.sentence for finding in built.verdict if finding.rule == "protocol")
    assert sentence.startswith("The protocol matters: ")
    assert "have a correlation of 1.00, a target's strongest effect is " in sentence


def test_scores_that_know_only_the_number_of_neighbours_are_not_recommended(graph: Data) -> None:
    """Scores that are constant within every target correlate over the pooled pairs, and say nothing within a target."""
    result, _ = verdict(graph, Built(sharpness=4.0), methods=["gatt"], protocols=["removal"])
    owner = result.pairs.owner
    by_size = 1 / owner.bincount()[owner].double()
    chance = torch.rand(owner.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    built = with_effects(result, {"gatt": by_size}, by_size * chance)
    assert pearsonr(by_size, by_size * chance).statistic > 0.3
    assert built.metrics["explain/gatt/removal/within_pearson"] == 0.0
    assert built.verdict.method is None
    assert built.verdict.headline.startswith("No method predicts which edges matter. Attention is no guide")


@pytest.mark.parametrize("methods", [None, ["gatt", "avgatt"], ["uniform"]])
@pytest.mark.parametrize("protocols", [("removal", "weight"), ("weight",), ()])
def test_the_headline_is_short_and_stands_first(graph: Data, methods: Any, protocols: tuple[str, ...]) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0, scale=3.0), methods=methods, protocols=protocols)
    headline = result.verdict.headline
    assert len(headline.splitlines()) <= 2
    assert (headline == "") == (not protocols)
    for text in (str(result), result.table("full")):
        assert " ".join(text.split()).startswith(" ".join(headline.split()))
    if methods is None and protocols:
        assert headline.startswith("Use occlusion (exact). Attention is ") == ("removal" in protocols)
        assert "The network's attention matters: +" in headline
    assert all(len(line) <= 80 for line in str(result).splitlines())


def test_random_scores_are_never_called_the_best(graph: Data) -> None:
    lonely = Data(x=graph.x[:6], edge_index=graph.edge_index.new_tensor([[0, 1], [1, 2]]))
    result, found = verdict_of(evaluate(Built(sharpness=1.0, scale=3.0).eval(), lonely, targets=[3, 4, 5]))
    assert not any("Random" in sentence for sentence in result.verdict.sentences)
    assert "no correlation is defined: too few pairs, or all scores are equal" in found["best"]


def test_one_pair_alone_is_said_to_be_too_little(graph: Data, capsys: pytest.CaptureFixture[str]) -> None:
    lonely = Data(x=graph.x[:6], edge_index=graph.edge_index.new_tensor([[0, 1], [1, 2]]))
    result = evaluate(Built(sharpness=1.0, scale=3.0).eval(), lonely, targets=5, methods=["gatt"])
    text = str(result)
    assert "\n1 of 6 nodes, 1 pair\n" in text
    assert "1 target is too few to say much" in text
    assert "half of the 95 % interval" not in text  # nothing has one
    print_results(Console(width=100), result, result.metrics, result.intervals)
    assert "half of the 95 % interval" not in capsys.readouterr().out


def test_rows_of_a_protocol_stand_together(graph: Data) -> None:
    result = evaluate(Built(sharpness=1.0).eval(), graph, num_targets=5, methods=["gatt"], sets=True)
    groups = [protocol for protocol, _ in result.to_pandas().index]
    assert groups == sorted(groups, key=groups.index)


def test_every_number_of_a_verdict_stands_in_the_table(graph: Data) -> None:
    """One statistic stands behind headline, sentences and table."""
    result, found = verdict(graph, Built(sharpness=4.0, scale=3.0))
    rows = {line.split()[0]: line for line in str(result).splitlines() if line.strip()}
    numbers = re.findall(r"(GAtt|AvgAtt) (-?\d\.\d\d)", result.verdict.headline)
    assert {label for label, _ in numbers} == {"GAtt", "AvgAtt"}
    assert all(number in rows[label] for label, number in numbers)
    names = {name for rule in ("best", "attention") for name in re.findall(r"\((\w+ \w+, \w+): ", found[rule])}
    assert names == {"within targets, Pearson"}
    for low, high in re.findall(r"Pearson: \S+ \[(\S+), (\S+)\]", found["best"]):
        assert (low, high) in {tuple(f"{end:.2f}" for end in ends) for ends in result.intervals.values()}


def test_a_verdict_stands_under_tables_and_in_files(graph: Data, tmp_path: Path) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0))
    sentences = result.verdict.sentences
    text = " ".join(result.table("full").split())
    assert all(sentence in text for sentence in sentences)
    assert result._repr_html_().count("<li>") == len(sentences)
    result.save(tmp_path)
    saved = json.loads((tmp_path / "metrics.json").read_text())
    assert saved["verdict"] == sentences
    assert next(iter(saved)) == "headline"
    assert saved["headline"] == result.verdict.headline == Evaluation.load(tmp_path).verdict.headline
    assert Evaluation.load(tmp_path).verdict.rules == result.verdict.rules
    assert result.verdict.rules <= {rule.name for rule in RULES}
