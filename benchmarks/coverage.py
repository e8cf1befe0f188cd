"""How often the 95 % intervals over targets hold the true value, and how often a tie among equals is denied.

    python benchmarks/coverage.py [--data data] [--samples 200]

A population is all targets of a trained GAT of 2 layers: Cora and Texas (all nodes), Infection (all nodes with true
edges). A sample draws 20 or 100 targets from it with replacement. A cell of the first table is the share of samples
whose interval holds the number of the whole population, as the lowest and the highest over three methods (GAtt, AvgAtt,
attention gradient) and two protocols; in brackets, the share of samples in which the statistic has an interval at all.

The second table asks which correlation within targets to lead with. `moved`: the largest change of a method's mean when
effects below 1e-6 instead of 1e-9 count as 0. `separates`: the difference between GAtt and Uniform, divided by its
standard error over 100 targets. `top edge`: the correlation over targets between the statistic and whether the edge
with the highest score is the one with the largest effect.

The third gives five methods of equal quality to the verdict: GAtt's scores plus noise of the same size, drawn five
times. Each cell is the share of samples in which the verdict says that one of them is better or worse than another.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.stats import kendalltau, pearsonr
from torch import Tensor

import attree
from attree.data import NodeDataModule
from attree.evaluation.certainty import PairColumns, influences_of
from attree.evaluation.names import TRUTH, WITHIN, MetricName
from attree.evaluation.verdict import SIGNIFICANCE
from attree.metrics.functional import auroc, faithfulness_statistics, interval_of, pearson_by_target
from attree.metrics.functional.influence import influence_on_mean
from attree.paper.net import Net, make_data, train
from attree.tensors.ragged import expand, pointers

METHODS = ("gatt", "avgatt", "attention_gradient")
PROTOCOLS = ("removal", "weight")
SIZES = (20, 100)
EQUALS = 5


@dataclass
class Population:
    """All targets of a trained network, and their pairs."""

    name: str
    pairs: PairColumns
    truth: PairColumns | None
    ptr: Tensor

    def draw(self, columns: PairColumns, drawn: Tensor) -> PairColumns:
        """The pairs of some targets; a target that is drawn twice counts as two."""
        position, pairs = expand(self.ptr, drawn)
        picked = columns.at(pairs)
        return PairColumns(position, picked.scores, picked.deltas, picked.labels)


def population(name: str, root: str) -> Population:
    data = make_data(name, 2, 0, root)
    assert isinstance(data, NodeDataModule)
    data.prepare_data()
    data.setup()
    model, _ = train(Net(name), data)
    targets = torch.arange(data.graph.num_nodes) if data.truth is None else data.truth.targets
    names = [*METHODS, "uniform"]
    result = attree.evaluate(model.eval(), data.graph, targets, names, PROTOCOLS, data.truth)
    return Population(name, result.columns(), result.truth_columns, pointers(result.pairs.owner.bincount()))


def values(pairs: PairColumns, truth: PairColumns | None) -> dict[str, float]:
    """Every statistic of the whole population, by metric name."""
    targets = int(pairs.owner.max()) + 1
    numbers: dict[str, float] = {}
    for protocol, deltas in pairs.deltas.items():
        for method, scores in pairs.scores.items():
            pooled = faithfulness_statistics(scores, *deltas)
            pooled[WITHIN] = pearson_by_target(scores, deltas[0], pairs.owner, targets).nanmean()
            numbers |= {str(MetricName(method, name, protocol)): float(value) for name, value in pooled.items()}
    if truth is not None and truth.labels is not None:
        numbers |= {str(MetricName(name, TRUTH)): float(auroc(s, truth.labels)) for name, s in truth.scores.items()}
    return numbers


def coverage(whole: Population, size: int, samples: int) -> dict[str, str]:
    expected = values(whole.pairs, whole.truth)
    generator, count = torch.Generator().manual_seed(size), whole.ptr.numel() - 1
    holds: dict[str, list[float]] = {}
    for _ in range(samples):
        drawn = torch.randint(count, (size,), generator=generator)
        pairs = whole.draw(whole.pairs, drawn)
        truth = None if whole.truth is None else whole.draw(whole.truth, drawn)
        for name, (low, high) in influences_of({}, pairs, truth, ()).intervals().items():
            metric = MetricName.parse(name)
            if metric is not None and metric.method in METHODS:
                holds.setdefault(name, []).append(math.nan if math.isnan(low) else low <= expected[name] <= high)
    cells: dict[str, list[float]] = {}
    printed: dict[str, list[float]] = {}
    for name, outcomes in holds.items():
        statistic = name.rpartition("/")[2]
        has_interval = np.isfinite(outcomes)
        printed.setdefault(statistic, []).append(has_interval.mean())
        if has_interval.mean() >= 0.1:  # fewer say nothing
            cells.setdefault(statistic, []).append(float(np.nanmean(outcomes)))
    return {
        name: f"{min(cells[name]):.2f} to {max(cells[name]):.2f} ({np.mean(shares):.0%})"
        if name in cells
        else f"none ({np.mean(shares):.0%})"
        for name, shares in printed.items()
    }


def by_target(whole: Population, method: str, protocol: str, kind: str, resolution: float = 1e-9) -> np.ndarray:
    """A correlation of each target's scores and effects; 0 for constant scores, NaN without an effect."""
    effects = whole.pairs.deltas[protocol][0].numpy()
    effects = np.where(np.abs(effects) < resolution, 0.0, effects)
    scores, ptr, found = whole.pairs.scores[method].double().numpy(), whole.ptr.tolist(), []
    function = pearsonr if kind == "Pearson" else kendalltau
    for begin, end in pairwise(ptr[:401]):
        x, y = scores[begin:end], effects[begin:end]
        is_flat = len(set(x.tolist())) < 2
        found.append(math.nan if len(set(y.tolist())) < 2 else 0.0 if is_flat else float(function(x, y).statistic))
    return np.array(found)


def leading(whole: Population, protocol: str, kind: str) -> tuple[float, float, float]:
    moved = max(
        abs(np.nanmean(by_target(whole, m, protocol, kind)) - np.nanmean(by_target(whole, m, protocol, kind, 1e-6)))
        for m in METHODS
    )
    gatt, uniform = (by_target(whole, method, protocol, kind) for method in ("gatt", "uniform"))
    difference = gatt - uniform
    separates = abs(np.nanmean(difference)) / (np.nanstd(difference) / math.sqrt(100))
    hits, numbers = [], []
    for method in METHODS:
        scores, effects = whole.pairs.scores[method].numpy(), whole.pairs.deltas[protocol][0].numpy()
        for target, value in enumerate(by_target(whole, method, protocol, kind)):
            part = slice(int(whole.ptr[target]), int(whole.ptr[target + 1]))
            if not math.isnan(value):
                hits.append(scores[part].argmax() == np.abs(effects[part]).argmax())
                numbers.append(value)
    return moved, separates, float(np.corrcoef(hits, numbers)[0, 1])


def ties_denied(whole: Population, size: int, samples: int) -> float:
    """How often the verdict's level calls one of five equal methods better or worse than another."""
    generator, count = torch.Generator().manual_seed(size), whole.ptr.numel() - 1
    base = whole.pairs.scores["gatt"].double()
    denied = 0
    for _ in range(samples):
        pairs = whole.draw(whole.pairs, torch.randint(count, (size,), generator=generator))
        scores = pairs.scores["gatt"].double()
        level = 1 - SIGNIFICANCE / (len(PROTOCOLS) * math.comb(EQUALS, 2))
        is_denied = False
        noises = torch.randn(EQUALS, scores.numel(), generator=generator, dtype=torch.float64) * base.std()
        for deltas in pairs.deltas.values():
            influences = [
                influence_on_mean(pearson_by_target(scores + noise, deltas[0], pairs.owner, size).numpy())
                for noise in noises
            ]
            for first in range(EQUALS):
                for second in range(first):
                    low, high = interval_of(influences[first].minus(influences[second]), level)
                    is_denied |= low > 0 or high < 0
        denied += is_denied
    return denied / samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--samples", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wholes = [population(name, arguments.data) for name in ("Cora", "Infection", "Texas")]
    cells = {(whole.name, size): coverage(whole, size, arguments.samples) for whole in wholes for size in SIZES}
    statistics = list(dict.fromkeys(name for column in cells.values() for name in column))
    print("| statistic | " + " | ".join(f"{name}, {size}" for name, size in cells) + " |")
    print("|---" * (len(cells) + 1) + "|")
    for statistic in statistics:
        print(f"| `{statistic}` | " + " | ".join(column.get(statistic, "") for column in cells.values()) + " |")
    print("\n| population, protocol | statistic | moved | separates | top edge |\n|---|---|---:|---:|---:|")
    for whole in wholes:
        for protocol in PROTOCOLS:
            for kind in ("Pearson", "Kendall"):
                moved, separates, top = leading(whole, protocol, kind)
                print(f"| {whole.name}, {protocol} | {kind} | {moved:.3f} | {separates:.1f} | {top:.2f} |")
    print("\n| targets | " + " | ".join(whole.name for whole in wholes) + " |\n" + "|---" * (len(wholes) + 1) + "|")
    for size in SIZES:
        print(f"| {size} | " + " | ".join(f"{ties_denied(w, size, arguments.samples):.3f}" for w in wholes) + " |")


if __name__ == "__main__":
    main()
