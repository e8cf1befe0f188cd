"""Occlusion against one forward pass of the whole model for each reduced edge."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.explain import Explainer, ModelConfig

import attree
from attree.attribution import METHODS, GAtt, make_methods, subject_pairs
from attree.errors import ArgumentError
from attree.evaluation import EvaluationConfig, Evaluator
from attree.faithfulness import ReductionProtocol
from attree.faithfulness.effect_measures import ReductionPass
from attree.models import GAT
from attree.subject import Head, Subject
from helpers.effect_nets import EDGES, NETS, X, made, probabilities
from helpers.graphs import NODES, randomize

PROTOCOLS = ("removal", "weight", "coefficient")


@pytest.mark.filterwarnings("ignore:Attention of")
@pytest.mark.parametrize("name", NETS)
def test_equal_to_one_pass_for_each_edge(name: str) -> None:
    model, kwargs = made(name)
    for protocol in PROTOCOLS:
        subject = Subject.of(model, X, EDGES, **kwargs)
        result = attree.Occlusion(protocol).attribute(subject)
        expected = probabilities(model, protocol, 0.0, **kwargs) - probabilities(model, protocol, 1.0, **kwargs)
        pairs = subject_pairs(subject)
        scores = attree.Occlusion(protocol).score_pairs(subject, pairs)
        assert torch.allclose(scores, expected[pairs.edges, pairs.owner], atol=1e-7)
        for row, target in enumerate(result.targets.tolist()):
            # Beyond its neighbourhood a target depends on no edge, unless the model is not local.
            own = pairs.edges[pairs.owner == row] if name == "not local" else slice(None)
            assert torch.allclose(result.dense(target)[own], expected[own, row], atol=1e-7), (protocol, target)
        assert float(result.scores.min()) < -1e-3 < 1e-3 < float(result.scores.max())


def test_lists_the_edges_that_carry_a_flow_in_parts_of_any_size() -> None:
    model, _ = made("gat, 3 layers, heads")
    subject = Subject.of(model, X, EDGES)
    whole = attree.Occlusion().attribute(subject)
    flows = GAtt().attribute(subject)
    for target in range(NODES):
        assert whole[target].edges.sort().values.tolist() == flows[target].edges.sort().values.tolist()
    parts = list(attree.Occlusion().stream(subject, memory=1))
    assert [len(part) for part in parts] == [1] * NODES
    assert torch.allclose(torch.cat([part.scores for part in parts]), whole.scores, atol=1e-12)
    some = attree.Occlusion().attribute(subject, [7, 2])
    assert torch.allclose(some.dense(2), whole.dense(2), atol=1e-12)
    assert len(attree.Occlusion().attribute(subject, torch.zeros(0, dtype=torch.int64))) == 0


def test_of_a_predicted_number_its_drop() -> None:
    model = randomize(GAT(5, 1, 4), 1).double().eval()
    subject = Subject.of(model, X, EDGES, head=Head("regression"))
    with mock.patch("helpers.effect_nets.probability", lambda output, usual: output.view(-1)):
        expected = probabilities(model, "removal", 0.0) - probabilities(model, "removal", 1.0)
    result = attree.Occlusion().attribute(subject)
    for target in range(NODES):
        assert torch.allclose(result.dense(target), expected[:, target], atol=1e-7)


def counted(measured: list[str]) -> Any:
    """Notes the protocol of every reduction that is really measured."""
    reduce = ReductionPass.reduce

    def noting(self: ReductionPass, pairs: Any, protocol: ReductionProtocol, *args: Any, **kwargs: Any) -> Any:
        measured.append(protocol.name)
        return reduce(self, pairs, protocol, *args, **kwargs)

    return mock.patch.object(ReductionPass, "reduce", noting)


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [(("weight", "removal"), ["weight", "removal"]), (("weight",), ["weight", "removal"]), ((), ["removal"])],
)
def test_an_evaluation_measures_nothing_twice(protocols: tuple[str, ...], expected: list[str]) -> None:
    model, _ = made("gat")
    measured: list[str] = []
    with counted(measured):
        result = attree.evaluate(model, Data(x=X, edge_index=EDGES), [0, 3], ["gatt", "occlusion"], protocols)
    assert measured == expected
    if "removal" in protocols:
        assert result.metrics["explain/occlusion/removal/pc_pearson"] == pytest.approx(1.0)
        assert torch.equal(result.pair_scores["occlusion"], result.reductions["removal"].delta_pc)


def test_each_evaluation_measures_the_weights_of_then() -> None:
    model, _ = made("gat")
    subject = Subject.of(model, X, EDGES)
    evaluator = Evaluator(subject, "all", EvaluationConfig(["occlusion"], ()))
    before = evaluator.evaluate().pair_scores["occlusion"]
    randomize(model, 2)
    after = evaluator.evaluate().pair_scores["occlusion"]
    assert not torch.allclose(before, after)
    fresh = attree.Occlusion().score_pairs(Subject.of(model, X, EDGES), evaluator.pairs)
    assert torch.allclose(after, fresh, atol=1e-12)


def test_protocols_side_by_side_have_names_of_their_own() -> None:
    made_methods = make_methods(["occlusion", attree.Occlusion("weight"), attree.AttentionGradient("coefficient")])
    assert list(made_methods) == ["occlusion", "occlusion_weight", "attention_gradient_coefficient"]
    assert made_methods["occlusion_weight"].label == "Occlusion (weight)"
    assert made_methods["occlusion_weight"].settings() == {"protocol": "weight"}
    assert METHODS["occlusion"] is attree.Occlusion
    assert METHODS["attention_gradient"] is attree.AttentionGradient


@pytest.mark.parametrize("make", [attree.Occlusion, attree.AttentionGradient, attree.OcclusionExplainer])
@pytest.mark.parametrize("protocol", ["deletion", 3, None])
def test_unknown_protocols_are_refused(make: Any, protocol: Any) -> None:
    with pytest.raises(ArgumentError, match="`protocols`"):
        make(protocol)


def test_needs_a_model() -> None:
    model, _ = made("gat")
    attention = attree.capture_attention(model, X, EDGES)
    with pytest.raises(ArgumentError, match="to have a model"):
        attree.Occlusion().attribute(attention)


def test_explainer_of_pyg() -> None:
    model, _ = made("gat")
    config = ModelConfig("multiclass_classification", task_level="node", return_type="raw")
    options: dict[str, Any] = {"explanation_type": "model", "edge_mask_type": "object", "model_config": config}
    result = attree.Occlusion("weight").attribute(Subject.of(model, X, EDGES))
    explanation = Explainer(model, attree.OcclusionExplainer("weight"), **options)(X, EDGES, index=3)
    assert torch.allclose(explanation.edge_mask, result.edge_mask(3), atol=1e-12)
    assert float(explanation.edge_mask.min()) < 0
    scaled = Explainer(model, attree.OcclusionExplainer("weight", normalize=True), **options)(X, EDGES, index=3)
    assert float(scaled.edge_mask.abs().max()) == pytest.approx(1.0)
