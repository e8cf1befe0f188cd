"""Intervals of an evaluation: of every statistic, of differences, over processes, in files and tables."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from attree.data import Infection
from attree.errors import ArgumentError
from attree.evaluation import Evaluation, EvaluationConfig, MetricName, evaluate
from attree.io.files import read_metrics
from attree.metrics.functional import pearson_by_target
from attree.models import GAT
from helpers.influence import corrected, freedom, interval

NODES, TARGETS = 200, 60
NOT_DRAWN = math.sqrt(1 - TARGETS / NODES)
"""What the error of a sample is multiplied by, because the targets were drawn from finitely many."""


@pytest.fixture(scope="module")
def result() -> Evaluation:
    torch.manual_seed(0)
    data = Infection(num_nodes=NODES, edge_probability=0.015, num_layers=2, seed=4)
    model = GAT(data.num_features, data.num_classes, hidden_channels=8, num_layers=2).eval()
    # Without a bias, a node that receives nothing has equal scores for all classes, and a tie is no change.
    torch.nn.init.normal_(model.convs[-1].bias, std=0.05)
    return evaluate(model, data.graph, num_targets=TARGETS, methods=["gatt", "uniform", "random"], truth=data.truth)


def columns_of(result: Evaluation, method: str, group: str, statistic: str) -> tuple[str, np.ndarray, ...]:
    """The statistic's kind, and the scores, effects (or labels) and owners that it is of."""
    if group == "truth":
        truth = result.truth_columns
        assert truth is not None
        assert truth.labels is not None
        return "auroc", truth.scores[method].double().numpy(), truth.labels.numpy(), truth.owner.numpy()
    measure, _, kind = statistic.partition("_")
    reduction = result.reductions[group]
    effects = {"pc": reduction.delta_pc, "ne": reduction.delta_ne, "p": reduction.changed}[measure]
    return kind, result.pair_scores[method].double().numpy(), effects.double().numpy(), result.pairs.owner.numpy()


CASES = [("weight", "pc_kendall"), ("removal", "pc_kendall"), ("removal", "ne_spearman"), ("truth", "truth_auroc")]


@pytest.mark.parametrize(("group", "statistic"), CASES)
def test_intervals_are_those_of_the_definitions(result: Evaluation, group: str, statistic: str) -> None:
    """Equal to rounding: nothing is drawn, so they are the same on every machine."""
    columns = columns_of(result, "gatt", group, statistic)
    # The sums have fewer than 10^7 terms of at most 1, so their errors are below 10^7 * 2^-53.
    drawn = NOT_DRAWN if group != "truth" else 1.0  # nobody knows how many targets with true edges there could be
    assert result.interval("gatt", group, statistic) == pytest.approx(interval(*columns, drawn), abs=1e-9)


def test_every_statistic_has_an_interval_unless_too_few_targets_decide_it(result: Evaluation) -> None:
    assert set(result.intervals) == {name for name in result.metrics if MetricName.parse(name) is not None}
    for name, (low, high) in result.intervals.items():
        assert math.isnan(low) == math.isnan(high)
        if name.endswith(("_pearson", "faithfulness")) and not name.endswith("within_pearson"):
            assert math.isnan(low), "a few targets decide pooled moments"
        elif name.endswith("within_pearson"):  # near 1, it needs 50 targets with an effect
            without = result.metrics[f"explain/effects/{name.split('/')[2]}/targets_without"]
            assert math.isnan(low) == (abs(result.metrics[name]) > 0.75 and TARGETS - without < 50)
        elif math.isnan(low):
            group = name.split("/")[2]
            assert name.endswith("p_auroc"), name
            deciding = result.pairs.owner[result.reductions[group].changed].unique().numel()
            assert deciding < result.num_targets / 2, name
        else:
            assert low < result.metrics[name] < high
    assert result.interval("gatt", "truth") == result.intervals["explain/gatt/truth_auroc"]


@pytest.mark.parametrize(("group", "statistic"), CASES)
def test_the_difference_of_two_methods_has_the_difference_of_their_influences(
    result: Evaluation, group: str, statistic: str
) -> None:
    difference = result.difference("gatt", "uniform", group, statistic)
    (gatt, effective), (uniform, _) = (
        corrected(*columns_of(result, method, group, statistic)) for method in ("gatt", "uniform")
    )
    error = np.sqrt(((gatt - uniform) ** 2).sum()) * (NOT_DRAWN if group != "truth" else 1.0)
    half = stats.t.ppf(0.975, freedom(gatt - uniform, effective)) * error
    assert (difference.low, difference.high) == pytest.approx(
        (difference.value - half, difference.value + half), abs=1e-9
    )
    assert difference.is_certain == (difference.low > 0 or difference.high < 0)
    wider = result.difference("gatt", "uniform", group, statistic, level=0.99)
    assert wider.low < difference.low < difference.high < wider.high


def student(values: np.ndarray) -> float:
    """Student's quantile for values whose variance is less certain the heavier their tails are."""
    number = len(values)
    if number < 50:
        return float(stats.t.ppf(0.975, number - 1))
    excess = max(stats.kurtosis(values), 0.0)
    return float(stats.t.ppf(0.975, 2 / (excess / number + 2 / (number - 1))))


def test_within_targets_the_interval_is_students_on_fishers_scale(result: Evaluation) -> None:
    """Each target is one observation, for the value of a method and for the difference of two."""
    effects, owner = result.reductions["removal"].delta_pc, result.pairs.owner
    names = ("gatt", "uniform")
    values = {name: pearson_by_target(result.pair_scores[name], effects, owner, TARGETS) for name in names}
    gatt, uniform = (column[~column.isnan()].numpy() for column in values.values())
    assert result.metrics["explain/gatt/removal/within_pearson"] == pytest.approx(gatt.mean())
    half = student(gatt) * stats.sem(gatt) * NOT_DRAWN / (1 - gatt.mean() ** 2)
    ends = tuple(np.tanh(np.arctanh(gatt.mean()) + side * half) for side in (-1, 1))
    assert result.interval("gatt", "removal", "within_pearson") == pytest.approx(ends)
    difference = result.difference("gatt", "uniform", "removal", "within_pearson")
    half = student(gatt - uniform) * stats.sem(gatt - uniform) * NOT_DRAWN
    middle = (gatt - uniform).mean()
    assert (difference.low, difference.high) == pytest.approx((middle - half, middle + half))
    without = sum(not effects[owner == target].any() for target in range(TARGETS))
    assert without <= int(values["gatt"].isnan().sum())  # a single edge with an effect has no other to compare with
    assert result.metrics["explain/effects/removal/targets_without"] == without


def test_a_method_differs_from_itself_by_nothing(result: Evaluation) -> None:
    nothing = result.difference("gatt", "gatt", "weight", "within_pearson")
    assert (nothing.value, nothing.low, nothing.high, nothing.is_certain) == (0.0, 0.0, 0.0, False)
    with pytest.raises(ArgumentError, match="statistic"):
        result.difference("gatt", "avgatt", "weight")


def test_intervals_are_in_tables_and_files(result: Evaluation, tmp_path: Path) -> None:
    low, high = result.interval("gatt", "weight", "pc_kendall")
    value = result.metrics["explain/gatt/weight/pc_kendall"]
    assert f"{value:.4f} \N{PLUS-MINUS SIGN}{(high - low) / 2:.2f}" in result.table("full")
    table = result.to_pandas(intervals=True)
    assert table.loc[("weight", "pc_kendall"), ["GAtt", "GAtt low", "GAtt high"]].tolist() == [value, low, high]
    assert list(result.to_pandas().columns) == ["GAtt", "Uniform", "Random"]
    result.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["intervals"]["explain/gatt/weight/pc_kendall"] == [
        low,
        high,
    ]
    assert set(read_metrics(tmp_path / "metrics.json")) == set(result.metrics)
    loaded = Evaluation.load(tmp_path)
    assert loaded.intervals.keys() == result.intervals.keys()
    for name, ends in result.intervals.items():
        assert loaded.intervals[name] == pytest.approx(ends, abs=1e-12, nan_ok=True)


def test_intervals_can_be_left_out(result: Evaluation) -> None:
    without = replace(result, has_intervals=False)
    assert without.intervals == {}
    assert "\N{PLUS-MINUS SIGN}" not in str(without)
    assert all(math.isnan(end) for end in without.interval("gatt", "weight"))


def test_a_config_refuses_what_it_cannot_measure() -> None:
    assert [method.name for method in EvaluationConfig("gatt").methods] == ["gatt"]  # type: ignore[union-attr]
    for wrong, argument in (
        ({"methods": "gat"}, "methods"),
        ({"protocols": ["weights"]}, "protocols"),
        ({"num_targets": 0}, "num_targets"),
        ({"random_draws": 0}, "random_draws"),
        ({"intervals": 2}, "intervals"),
        ({"seed": -1}, "seed"),
        ({"ground_truth": 1}, "ground_truth"),
    ):
        with pytest.raises(ArgumentError, match=f"`{argument}`"):
            EvaluationConfig(**wrong)  # type: ignore[arg-type]
