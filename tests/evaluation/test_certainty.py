"""Intervals of an evaluation: of every statistic, of differences, over processes, in files and tables."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap, kendalltau, pearsonr, spearmanr
from sklearn.metrics import roc_auc_score

from attree.data import Infection
from attree.errors import ArgumentError
from attree.evaluation import Evaluation, EvaluationConfig, evaluate
from attree.evaluation.certainty import PairColumns, resample
from attree.io.files import read_metrics
from attree.metrics.functional import percentile_interval, resampled_faithfulness
from attree.models import GAT


@pytest.fixture(scope="module")
def result() -> Evaluation:
    torch.manual_seed(0)
    data = Infection(num_nodes=200, edge_probability=0.015, num_layers=2, seed=3)
    model = GAT(data.num_features, data.num_classes, hidden_channels=8, num_layers=2).eval()
    # Without a bias, a node that receives nothing has equal scores for all classes, and a tie is no change.
    torch.nn.init.normal_(model.convs[-1].bias, std=0.05)
    return evaluate(model, data.graph, num_targets=25, methods=["gatt", "uniform", "random"], truth=data.truth)


def test_every_statistic_has_an_interval(result: Evaluation) -> None:
    assert set(result.intervals) == {name for name in result.metrics if name.count("/") > 1}
    for name, (low, high) in result.intervals.items():
        assert math.isnan(result.metrics[name]) == math.isnan(low)
        if not math.isnan(low):
            middle = (low + high) / 2
            assert low <= high
            assert abs(middle - result.metrics[name]) < 0.5 * (high - low) + 0.02, name
    reduction = result.reductions["removal"]
    found = resampled_faithfulness(
        {"gatt": result.pair_scores["gatt"]},
        *(reduction.delta_pc, reduction.delta_ne, reduction.changed, result.pairs.owner),
    )
    assert result.interval("gatt", "removal", "pc_pearson") == percentile_interval(found["gatt", "pc_pearson"])
    assert result.interval("gatt", "truth") == result.intervals["explain/gatt/truth_auroc"]


def test_the_difference_of_two_methods_is_that_of_their_resamples(result: Evaluation) -> None:
    found = result.difference("gatt", "uniform", "weight", "pc_pearson")
    names = [f"explain/{method}/weight/pc_pearson" for method in ("gatt", "uniform")]
    assert found.value == result.metrics[names[0]] - result.metrics[names[1]]
    both = [result.certainty.resampled[name] for name in names]
    assert (found.low, found.high) == percentile_interval(both[0] - both[1])
    assert found.is_certain == (found.low > 0 or found.high < 0)
    nothing = result.difference("gatt", "gatt", "weight")
    assert (nothing.value, nothing.low, nothing.high, nothing.is_certain) == (0.0, 0.0, 0.0, False)
    with pytest.raises(ArgumentError, match="statistic"):
        result.difference("gatt", "avgatt", "weight")


def of_targets(result: Evaluation, drawn: np.ndarray, method: str, group: str, statistic: str) -> float:
    """A statistic of some targets, each with its pairs as often as it is drawn; by SciPy and scikit-learn."""
    truth = result.truth_columns
    assert truth is not None
    owner = (truth.owner if group == "truth" else result.pairs.owner).numpy()
    index = np.concatenate([np.flatnonzero(owner == target) for target in drawn])
    if group == "truth":
        assert truth.labels is not None
        return float(roc_auc_score(truth.labels.numpy()[index], truth.scores[method].numpy()[index]))
    scores, reduction = result.pair_scores[method].numpy()[index], result.reductions[group]
    if statistic == "p_auroc":
        changed = reduction.changed.numpy()[index]
        return float(roc_auc_score(changed, scores)) if len(set(changed.tolist())) == 2 else math.nan
    effect = (reduction.delta_pc if statistic.startswith("pc") else reduction.delta_ne).numpy()[index]
    function = {"pearson": pearsonr, "kendall": kendalltau, "spearman": spearmanr}[statistic.partition("_")[2]]
    return float(function(scores, effect).statistic)


@pytest.mark.parametrize(
    ("group", "statistic"),
    [
        ("weight", "pc_pearson"),
        ("removal", "pc_kendall"),
        ("removal", "ne_spearman"),
        ("weight", "p_auroc"),
        ("truth", ""),
    ],
)
def test_intervals_are_those_of_a_plain_loop_over_the_same_draws(
    result: Evaluation, group: str, statistic: str
) -> None:
    """With so many pairs, Kendall's tau follows the first order of the weights: the ends move a little."""
    digits = 0.015 if statistic.endswith("kendall") else 1e-6
    assert result.truth_columns is not None
    targets = int((result.truth_columns if group == "truth" else result.pairs).owner.max()) + 1
    draws = torch.randint(targets, (200, targets), generator=torch.Generator().manual_seed(0)).numpy()
    one, other = (
        np.array([of_targets(result, drawn, method, group, statistic) for drawn in draws])
        for method in ("gatt", "uniform")
    )
    assert result.interval("gatt", group, statistic) == pytest.approx(
        tuple(np.nanquantile(one, [0.025, 0.975])), abs=digits
    )
    found = result.difference("gatt", "uniform", group, statistic)
    assert (found.low, found.high) == pytest.approx(tuple(np.nanquantile(one - other, [0.025, 0.975])), abs=digits)


def test_intervals_are_those_of_scipy_with_draws_of_its_own(result: Evaluation) -> None:
    expected = bootstrap(
        (np.arange(result.num_targets),),
        lambda drawn: of_targets(result, drawn, "gatt", "weight", "pc_pearson"),
        n_resamples=2000,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    found = result.interval("gatt", "weight", "pc_pearson")
    assert found == pytest.approx((expected.low, expected.high), abs=0.15 * (expected.high - expected.low))


def test_pairs_of_several_processes_are_those_of_one(result: Evaluation) -> None:
    whole = result.columns()
    parts = []
    for rank in range(3):
        own = (whole.owner % 3 == rank).nonzero().view(-1)
        parts.append(whole.at(own))
    joined = PairColumns.joined(parts)
    assert torch.equal(joined.owner, whole.owner)
    one, many = (resample(result.metrics, columns, None, (), 50, 0) for columns in (whole, joined))
    for name, values in one.resampled.items():
        np.testing.assert_array_equal(values, many.resampled[name])


def test_intervals_are_in_tables_and_files(result: Evaluation, tmp_path: Path) -> None:
    low, high = result.interval("gatt", "weight", "pc_pearson")
    value = result.metrics["explain/gatt/weight/pc_pearson"]
    assert f"{value:.4f} \N{PLUS-MINUS SIGN}{(high - low) / 2:.2f}" in str(result)
    table = result.to_pandas(intervals=True)
    assert table.loc[("weight", "pc_pearson"), ["GAtt", "GAtt low", "GAtt high"]].tolist() == [value, low, high]
    assert list(result.to_pandas().columns) == ["GAtt", "Uniform", "Random"]
    result.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["intervals"]["explain/gatt/weight/pc_pearson"] == [
        low,
        high,
    ]
    assert set(read_metrics(tmp_path / "metrics.json")) == set(result.metrics)
    loaded = Evaluation.load(tmp_path)
    assert loaded.intervals.keys() == result.intervals.keys()
    for name, ends in result.intervals.items():
        assert loaded.intervals[name] == pytest.approx(ends, abs=1e-12, nan_ok=True)


def test_no_resamples_no_intervals(result: Evaluation) -> None:
    without = replace(result, resamples=0)
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
        ({"resamples": -1}, "resamples"),
        ({"seed": -1}, "seed"),
        ({"ground_truth": 1}, "ground_truth"),
    ):
        with pytest.raises(ArgumentError, match=f"`{argument}`"):
            EvaluationConfig(**wrong)  # type: ignore[arg-type]
