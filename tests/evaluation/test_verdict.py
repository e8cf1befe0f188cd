"""Verdicts on nets that are built so that the right one is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
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


def test_a_verdict_stands_under_tables_and_in_files(graph: Data, tmp_path: Path) -> None:
    result, _ = verdict(graph, Built(sharpness=4.0))
    sentences = result.verdict.sentences
    assert all(sentence in str(result) for sentence in sentences)
    assert result._repr_html_().count("<li>") == len(sentences)
    result.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["verdict"] == sentences
    assert Evaluation.load(tmp_path).verdict.rules == result.verdict.rules
    assert result.verdict.rules <= {rule.name for rule in RULES}
