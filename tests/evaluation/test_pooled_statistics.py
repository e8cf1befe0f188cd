"""Statistics of an epoch use what was computed from scores that stay the same, in one process and in two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from scipy.stats import kendalltau, pearsonr, spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

from attree.attention import Graph
from attree.attribution import Pairs
from attree.evaluation import statistics
from attree.evaluation.statistics import PooledStatistics
from attree.faithfulness import Reduction
from attree.metrics.functional import Ranking
from helpers.processes import spawn

COLUMNS = {"gatt": ["gatt"], "uniform": ["uniform"], "random": ["random 0", "random 1"], "occlusion": ["occlusion"]}
FIXED = ("uniform", "random 0", "random 1")
TARGETS, EDGES = 6, 5
EPOCHS = 4


def epoch(number: int) -> tuple[dict[str, Tensor], list[list[Tensor]]]:
    """Scores, and effects under two protocols. The scores of Uniform change once, at the second half of the targets.

    The second draw of Random is there every other time.
    """
    fixed = torch.Generator().manual_seed(0)
    scores = {name: torch.rand(TARGETS * EDGES, generator=fixed) for name in FIXED}
    if number > 1:
        scores["uniform"] = torch.cat([scores["uniform"][: TARGETS * EDGES // 2], scores["random 0"][:15]])
    generator = torch.Generator().manual_seed(number + 1)
    scores |= {name: torch.rand(TARGETS * EDGES, generator=generator) for name in ("gatt", "occlusion")}
    effects = [torch.rand(2, TARGETS * EDGES, generator=generator, dtype=torch.float64) for _ in range(2)]
    order = [name for names in COLUMNS.values() for name in names if number % 2 or name != "random 1"]
    deltas = [[pc * (pc > 0.5), ne * (pc > 0.5), pc > 0.8] for pc, ne in effects]
    return {name: scores[name] for name in order}, deltas


def pairs_of(first: int, last: int) -> Pairs:
    """The pairs of consecutive targets: each has the same number of edges."""
    graph = Graph(torch.zeros(2, 0, dtype=torch.int64), TARGETS)
    edges = torch.zeros((last - first) * EDGES, dtype=torch.int64)
    return Pairs(torch.arange(first, last), torch.arange(0, len(edges) + 1, EDGES), edges, edges.bool(), graph, None)


def metrics_by_epoch(pooled: PooledStatistics, pairs: Pairs, epochs: range) -> list[dict[str, str]]:
    results, ptr = [], slice(int(pairs.targets[0]) * EDGES, (int(pairs.targets[-1]) + 1) * EDGES)
    for number in epochs:
        scores, deltas = epoch(number)
        reductions = {
            name: Reduction(pairs, *(column[ptr] for column in columns))
            for name, columns in zip(("removal", "weight"), deltas, strict=True)
        }
        metrics = pooled.metrics({name: values[ptr] for name, values in scores.items()}, reductions, TARGETS)
        results.append({name: float(value).hex() for name, value in metrics.items()})
    return results


def anew() -> list[dict[str, str]]:
    """The metrics of each epoch, without anything kept from the one before."""
    pairs = pairs_of(0, TARGETS)
    return [
        metrics_by_epoch(PooledStatistics(COLUMNS, (), False), pairs, range(number, number + 1))[0]
        for number in range(EPOCHS)
    ]


def test_the_statistics_are_those_of_scipy_and_scikit_learn() -> None:
    metrics = {name: float.fromhex(value) for name, value in anew()[0].items()}
    scores, (removal, _) = epoch(0)
    pc, ne, changed = (column.numpy() for column in removal)
    x = scores["gatt"].double().numpy()
    expected = {
        "pc_pearson": pearsonr(x, pc).statistic,
        "pc_kendall": kendalltau(x, pc).statistic,
        "ne_spearman": spearmanr(x, ne).statistic,
        "p_auroc": roc_auc_score(changed, x),
    }
    for statistic, value in expected.items():
        assert metrics[f"explain/gatt/removal/{statistic}"] == pytest.approx(value, abs=1e-12)


def test_what_is_kept_changes_no_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[Tensor] = []
    monkeypatch.setattr(statistics, "Ranking", lambda values: ranked.append(values) or Ranking(values))
    pooled = PooledStatistics(COLUMNS, FIXED, False)
    assert metrics_by_epoch(pooled, pairs_of(0, TARGETS), range(EPOCHS)) == anew()
    pooled, ranked[:] = PooledStatistics(COLUMNS, FIXED, False), []
    metrics_by_epoch(pooled, pairs_of(0, TARGETS), range(EPOCHS))
    effects, new, uniform, random = 4 * EPOCHS, 2 * EPOCHS, 2, 2
    assert len(ranked) == effects + new + uniform + random


def test_scores_changed_in_place_are_read_anew() -> None:
    pooled, pairs = PooledStatistics({"random": ["random"]}, ["random"], False), pairs_of(0, TARGETS)
    scores, (removal, _) = epoch(1)
    values, reductions = scores["random 0"], {"removal": Reduction(pairs, *removal)}
    for _ in range(3):
        expected = PooledStatistics({"random": ["random"]}, (), False).metrics({"random": values}, reductions, TARGETS)
        assert pooled.metrics({"random": values}, reductions, TARGETS) == expected
        values.copy_(values.roll(1))


def without_a_value(pooled: PooledStatistics, pairs: Pairs) -> dict[str, str]:
    """The metrics if the first score of GAtt, and the first effect under `weight`, are NaN."""
    scores, (removal, weight) = epoch(0)
    scores["gatt"][0], weight[0][0] = torch.nan, torch.nan
    place = slice(int(pairs.targets[0]) * EDGES, (int(pairs.targets[-1]) + 1) * EDGES)
    effects = {"removal": removal, "weight": weight}
    reductions = {name: Reduction(pairs, *(column[place] for column in columns)) for name, columns in effects.items()}
    metrics = pooled.metrics({name: values[place] for name, values in scores.items()}, reductions, TARGETS)
    return {name: float(value).hex() for name, value in metrics.items()}


def in_process(rank: int, folder: Path) -> None:
    """The first process has four of the six targets. Only scores of the second process change in the third epoch."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    ranked: list[Tensor] = []
    statistics.Ranking = lambda values: ranked.append(values) or Ranking(values)  # type: ignore[assignment, misc]
    pairs = pairs_of(0, 4) if rank == 0 else pairs_of(4, TARGETS)
    results = metrics_by_epoch(PooledStatistics(COLUMNS, FIXED, True), pairs, range(EPOCHS))
    number_ranked = len(ranked)
    undefined = without_a_value(PooledStatistics(COLUMNS, FIXED, True), pairs)
    torch.save((results, number_ranked, undefined), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_keep_what_they_rank(tmp_path: Path) -> None:
    spawn(in_process, (tmp_path,))
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    assert [metrics for metrics, *_ in results] == [anew()] * 2
    of_effects = 2 * 4 * EPOCHS
    of_scores = sum(number for _, number, _ in results) - of_effects
    assert of_scores == 2 * EPOCHS + 2 + 2  # each column is ranked by one process, and again only if it changed
    alone = without_a_value(PooledStatistics(COLUMNS, FIXED, False), pairs_of(0, TARGETS))
    assert alone["explain/gatt/removal/within_pearson"] == alone["explain/uniform/weight/within_pearson"] == "nan"
    assert alone["explain/uniform/removal/within_pearson"] != "nan"
    assert [undefined for *_, undefined in results] == [alone] * 2
