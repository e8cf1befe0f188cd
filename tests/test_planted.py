"""Planted cases: what they state holds by PyG alone, without any of attree's engines; then attree says the same."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.utils import k_hop_subgraph

import attree
from attree.attribution import GAtt
from attree.errors import ArgumentError
from attree.evaluation import Evaluation
from attree.planted import NAMES, PlantedCase, PlantedNet, all_cases, make

RESOLUTION = 1e-9
"""attree rounds effects to this, in float64; so two ways of measuring one effect differ by no more."""

PAGE = Path(__file__).parents[1] / "docs" / "lab" / "planted.md"


@cache
def case_of(name: str, seed: int) -> PlantedCase:
    return make(name, seed)


@cache
def result_of(name: str, seed: int) -> Evaluation:
    case = case_of(name, seed)
    methods = ["gatt", "avgatt", "uniform", "occlusion"]
    return attree.evaluate(case.model, case.data, case.targets, methods, ("removal", "weight"), truth=case.truth)


def truth_area(name: str, seed: int, method: str) -> float:
    return result_of(name, seed).metrics[f"explain/{method}/truth_auroc"]


def in_float64(case: PlantedCase) -> PlantedNet:
    return copy.deepcopy(case.model).double()


def probabilities(model: PlantedNet, case: PlantedCase, edge_index: Tensor) -> Tensor:
    """Probabilities of the targets' classes, by a model in float64."""
    with torch.no_grad():
        return model(case.data.x.double(), edge_index)[case.targets].softmax(dim=-1)


def without_edge(model: PlantedNet, case: PlantedCase, edge: int) -> Tensor:
    """The edge is deleted from the data."""
    remaining = torch.arange(case.data.num_edges) != edge
    return probabilities(model, case, case.data.edge_index[:, remaining])


def without_message(model: PlantedNet, case: PlantedCase, edge: int) -> Tensor:
    """The edge's weight after softmax is 0: its message is 0, and all others stay as they are."""
    position = torch.tensor([edge])
    handles = [
        conv.register_message_forward_hook(lambda conv, inputs, messages: messages.index_fill(0, position, 0.0))
        for conv in model.convs
    ]
    reduced = probabilities(model, case, case.data.edge_index)
    for handle in handles:
        handle.remove()
    return reduced


@cache
def effects(name: str, seed: int, protocol: str) -> Tensor:
    """The drop of each target's probability of its class when each edge of the data is reduced, [targets, edges]."""
    case = case_of(name, seed)
    model = in_float64(case)
    reduce = {"removal": without_edge, "weight": without_message}[protocol]
    before = probabilities(model, case, case.data.edge_index)
    k = before.argmax(dim=-1, keepdim=True)
    drops = [(before - reduce(model, case, edge)).gather(1, k).view(-1) for edge in range(case.data.num_edges)]
    return torch.stack(drops, dim=1)


def tree_of(case: PlantedCase, target: int) -> Tensor:
    """The edges of the data around a target, as a mask."""
    return k_hop_subgraph(target, len(case.model.convs), case.data.edge_index, num_nodes=case.data.num_nodes)[3]


every_seed = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])


def every_case(test: Callable[..., None]) -> Callable[..., None]:
    return every_seed(pytest.mark.parametrize("name", NAMES)(test))


@every_case
def test_targets_are_predicted_right(name: str, seed: int) -> None:
    case = case_of(name, seed)
    assert not case.model.training
    logits = case.model(case.data.x, case.data.edge_index)
    assert torch.equal(logits[case.targets].argmax(dim=-1), case.data.y[case.targets])
    exact = probabilities(in_float64(case), case, case.data.edge_index)
    assert torch.equal(exact.argmax(dim=-1), case.data.y[case.targets])
    assert case.data.y[case.targets].bincount().tolist() == [12, 12]


@every_case
@pytest.mark.parametrize("protocol", ["removal", "weight"])
def test_single_edges_have_the_stated_effects(name: str, seed: int, protocol: str) -> None:
    low, high = case_of(name, seed).facts.strongest_effect[protocol]
    strongest = effects(name, seed, protocol).abs().max(dim=1).values
    assert low <= float(strongest.min())
    assert float(strongest.max()) <= high


@every_case
def test_without_all_true_edges_the_other_class_is_predicted(name: str, seed: int) -> None:
    case = case_of(name, seed)
    model = in_float64(case)
    before = probabilities(model, case, case.data.edge_index).argmax(dim=-1)
    for position, target in enumerate(case.targets.tolist()):
        edge_mask = case.edge_mask(target)
        marked, stated = (ends.T.tolist() for ends in (case.data.edge_index[:, edge_mask], case.truth.edges_of(target)))
        assert sorted(marked) == sorted(stated)
        after = probabilities(model, case, case.data.edge_index[:, ~edge_mask]).argmax(dim=-1)
        changed = torch.zeros_like(before, dtype=torch.bool)
        changed[position] = case.has_true_edges
        assert torch.equal(after != before, changed)


@every_case
def test_attention_matters_as_stated(name: str, seed: int) -> None:
    """With zero attention vectors, PyG's softmax is uniform."""
    case = case_of(name, seed)
    model, uniform = in_float64(case), in_float64(case)
    for conv in uniform.convs:
        nn.init.zeros_(conv.att_src)
        nn.init.zeros_(conv.att_dst)
    before, after = (probabilities(net, case, case.data.edge_index).argmax(dim=-1) for net in (model, uniform))
    assert torch.equal(after != before, torch.full_like(before, case.facts.attention_matters, dtype=torch.bool))


@every_case
def test_deletion_finds_the_true_edges_where_occlusion_must(name: str, seed: int) -> None:
    case = case_of(name, seed)
    if not case.has_true_edges:
        assert case.facts.found_by == case.facts.missed_by == ()
        return
    drops = effects(name, seed, "removal")
    drops = drops.where(drops.abs() > RESOLUTION, 0.0)
    scores, labels = [], []
    for position, target in enumerate(case.targets.tolist()):
        tree = tree_of(case, target)
        scores.append(drops[position, tree])
        labels.append(case.edge_mask(target)[tree])
    area = roc_auc_score(torch.cat(labels), torch.cat(scores))
    assert area == (1.0 if "occlusion" in case.facts.found_by else 0.5)


@every_case
def test_attree_measures_the_same_effects(name: str, seed: int) -> None:
    case, result = case_of(name, seed), result_of(name, seed)
    pairs = result.pairs
    assert pairs.graph.num_proper_edges == case.data.num_edges
    assert len(pairs) == sum(int(tree_of(case, target).sum()) for target in case.targets.tolist())
    for protocol in ("removal", "weight"):
        expected = effects(name, seed, protocol)[pairs.owner, pairs.edges]
        torch.testing.assert_close(result.reductions[protocol].delta_pc, expected, rtol=0.0, atol=RESOLUTION)


@every_case
def test_attree_finds_and_misses_the_true_edges_as_stated(name: str, seed: int) -> None:
    case, result = case_of(name, seed), result_of(name, seed)
    for method in case.facts.found_by:
        assert truth_area(name, seed, method) == 1.0
    for method in case.facts.missed_by:
        for position, target in enumerate(case.targets.tolist()):
            of_target = result.pairs.owner == position
            scores = result.pair_scores[method][of_target]
            is_true = case.edge_mask(target)[result.pairs.edges[of_target]]
            assert float(scores[~is_true].max()) >= float(scores[is_true].min()), method


@every_seed
def test_gatt_against_uniform_attention(seed: int) -> None:
    for name in ("attention_irrelevant", "degree_only"):
        scores = result_of(name, seed).pair_scores
        torch.testing.assert_close(scores["gatt"], scores["uniform"])
    for name in ("attention_decides", "saturated", "redundant", "one_head"):
        assert truth_area(name, seed, "gatt") > truth_area(name, seed, "uniform"), name
    assert truth_area("degenerate", seed, "gatt") < truth_area("degenerate", seed, "uniform")


@every_seed
def test_degree_only_differs_between_targets_and_not_within(seed: int) -> None:
    case = case_of("degree_only", seed)
    drops = effects("degree_only", seed, "weight")
    effect_of_degree: dict[int, float] = {}
    for position, target in enumerate(case.targets.tolist()):
        of_target = drops[position, tree_of(case, target)]
        effect = effect_of_degree.setdefault(of_target.numel(), float(of_target[0]))
        torch.testing.assert_close(of_target, torch.full_like(of_target, effect), rtol=0.0, atol=RESOLUTION)
    by_degree = [effect_of_degree[degree] for degree in sorted(effect_of_degree)]
    assert len(by_degree) > 1
    assert all(larger > smaller + RESOLUTION for larger, smaller in pairwise(by_degree))
    # Scores 1 / degree and effects fall with the degree alike: pooled, uniform attention looks like an explanation.
    assert result_of("degree_only", seed).metrics["explain/uniform/weight/pc_kendall"] == pytest.approx(1.0)


def test_the_one_head_that_decides_finds_the_true_edges() -> None:
    case = case_of("one_head", 0)
    result = attree.evaluate(case.model, case.data, case.targets, [GAtt(heads=[0])], "removal", truth=case.truth)
    assert result.metrics["explain/gatt/truth_auroc"] == 1.0


def test_a_seed_fixes_everything() -> None:
    for first, second, other in zip(all_cases(3), all_cases(3), all_cases(4), strict=True):
        assert first.data.to_dict().keys() == {"x", "edge_index", "y"}
        for column in ("x", "edge_index", "y"):
            assert torch.equal(first.data[column], second.data[column])
        assert torch.equal(first.truth.edges, second.truth.edges)
        assert first.data.edge_index.tolist() != other.data.edge_index.tolist()
        assert first.sentence.endswith(".")
    assert [case.name for case in all_cases()] == list(NAMES)


def test_wrong_names_and_seeds_are_refused() -> None:
    for name in ("nothing", ["redundant"], None):
        with pytest.raises(ArgumentError, match=r"`name` to be one of attention_decides, .*degenerate, but got"):
            make(name)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="seed"):
        make("redundant", seed="x")  # type: ignore[arg-type]


def test_the_module_is_an_attribute_of_the_package() -> None:
    assert attree.planted.make is make
    assert "planted" in dir(attree)


def test_the_example_of_the_page_runs() -> None:
    section = PAGE.read_text()
    (block,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    for algorithm, hits in (("GAttExplainer", 0), ("OcclusionExplainer", 24)):
        names: dict[str, object] = {}
        exec(block.replace("GAttExplainer", algorithm), names)
        assert names["hits"] == hits
