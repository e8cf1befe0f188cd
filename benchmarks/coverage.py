"""How often the 95 % intervals over targets hold the true value, and how often a verdict is wrong.

    python benchmarks/coverage.py [--data data] [--samples 300] [--datasets Cora,Infection,Texas]

A population is all targets of a trained GAT of 2 layers: all nodes, or all nodes with true edges. A sample draws 20 or
100 targets from it, each at most once, as `evaluate` does. A cell of the first table is the share of samples whose
interval holds the number of the whole population, as the lowest and the highest over three methods (GAtt, AvgAtt,
attention gradient), two protocols and, in the last row, three differences of methods; in brackets, the share of samples
in which there is an interval at all. "none": fewer than one in ten.

The second table asks which correlation within targets to lead with. `moved`: the largest change of a method's mean when
effects below 1e-6 instead of 1e-9 count as 0. `separates`: the difference between GAtt and Uniform, divided by its
standard error over 100 targets. `top edge`: the correlation over targets between the statistic and whether the edge
with the highest score is the one with the largest effect.

The third has false statements of a whole verdict. `tie denied`: five methods of equal quality (GAtt's scores plus noise
of the same size, drawn five times); a verdict says that one of them is better or worse than another, at the level of
the verdict; `best alone (Hsu)`: the same if the best is only compared with all others, by one-sided intervals. `false
more`: the scores of GAtt and Uniform are exchanged in each target with probability 1/2, so that neither is better; a
verdict on these and on AvgAtt and the attention gradient says that one of the two is. `bound`: standard errors that a
difference needs, and after the slash, by Bonferroni over all pairs.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import torch
from scipy.stats import kendalltau, norm, pearsonr
from torch import Tensor

import attree
from attree.data import NodeDataModule
from attree.evaluation.certainty import Difference, influences_of
from attree.evaluation.columns import PairColumns
from attree.evaluation.metric_names import TRUTH, WITHIN, MetricName
from attree.metrics.functional import auroc, faithfulness_statistics, interval_of, joint_level, pearson_by_target
from attree.metrics.functional.influence import Influence, influence_on_mean
from attree.metrics.functional.intervals import is_beyond_chance
from attree.paper.networks import Net, make_data, train
from attree.tensors.arrays import expand, pointers

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

    @property
    def size(self) -> int:
        return self.ptr.numel() - 1

    def draw(self, columns: PairColumns, drawn: Tensor) -> PairColumns:
        """The pairs of some targets."""
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
    generator = torch.Generator().manual_seed(size)
    holds: dict[str, dict[str, list[float]]] = {}
    for _ in range(samples):
        drawn = torch.randperm(whole.size, generator=generator)[:size].sort().values
        pairs = whole.draw(whole.pairs, drawn)
        # Ground truth stands for other targets with true edges; to be tested, they are drawn with replacement.
        again = torch.randint(whole.size, (size,), generator=generator)
        truth = None if whole.truth is None else whole.draw(whole.truth, again)
        certainty = influences_of({}, pairs, truth, (), population=whole.size)
        for name, ends in certainty.intervals().items():
            metric = MetricName.parse(name)
            if metric is not None and metric.method in METHODS:
                held = math.nan if math.isnan(ends[0]) else ends[0] <= expected[name] <= ends[1]
                holds.setdefault(metric.statistic, {}).setdefault(name, []).append(held)
        for protocol in PROTOCOLS:
            for other in ("uniform", "avgatt", "attention_gradient"):
                names = MetricName("gatt", WITHIN, protocol), MetricName(other, WITHIN, protocol)
                difference = certainty.difference(expected, *names)
                value = certainty.contrast(*names).value
                held = math.nan if math.isnan(difference.low) else abs(value - difference.value) <= half_of(difference)
                holds.setdefault("difference", {}).setdefault(f"{other}/{protocol}", []).append(held)
    return {statistic: cell_of(list(outcomes.values())) for statistic, outcomes in holds.items()}


def half_of(difference: Difference) -> float:
    return (difference.high - difference.low) / 2


def cell_of(outcomes: list[list[float]]) -> str:
    """The lowest and highest share of intervals that hold, and how often there is one."""
    shares = [float(np.isfinite(column).mean()) for column in outcomes]
    held = [float(np.nanmean(column)) for column, share in zip(outcomes, shares, strict=True) if share >= 0.1]
    if not held:
        return f"none ({np.mean(shares):.0%})"
    return f"{min(held):.2f} to {max(held):.2f} ({np.mean(shares):.0%})"


def by_target(whole: Population, method: str, protocol: str, kind: str, resolution: float = 1e-9) -> np.ndarray:
    """A correlation of each target's scores and effects; 0 for constant scores, NaN without an effect."""
    effects = whole.pairs.deltas[protocol][0].numpy()
    effects = np.where(np.abs(effects) < resolution, 0.0, effects)
    scores, ptr, correlations = whole.pairs.scores[method].double().numpy(), whole.ptr.tolist(), []
    function = pearsonr if kind == "Pearson" else kendalltau
    for begin, end in pairwise(ptr[:401]):
        x, y = scores[begin:end], effects[begin:end]
        is_flat = len(set(x.tolist())) < 2
        correlations.append(
            math.nan if len(set(y.tolist())) < 2 else 0.0 if is_flat else float(function(x, y).statistic)
        )
    return np.array(correlations)


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


def false_statements(whole: Population, size: int, samples: int) -> tuple[float, float, float, float, float]:
    """Shares of samples with a false statement: a tie denied, a tie denied after Hsu, a false more; and two bounds."""
    generator, base = torch.Generator().manual_seed(size), whole.pairs.scores["gatt"].double()
    denied = denied_by_best = false_more = 0
    bounds = []
    for _ in range(samples):
        # With replacement: the populations of these nulls are those of all possible draws of noise and of exchanges.
        pairs = whole.draw(whole.pairs, torch.randint(whole.size, (size,), generator=generator))
        scores = {name: column.double() for name, column in pairs.scores.items()}
        noises = torch.randn(EQUALS, base.numel(), generator=generator, dtype=torch.float64)[:, : len(pairs.owner)]
        equal = {str(place): scores["gatt"] + noise * base.std() for place, noise in enumerate(noises)}
        comparisons, bests = compared(equal, pairs, size)
        denied += any_is_certain(comparisons, comparisons)
        denied_by_best += any(loses_to_best(influences) for influences in bests)
        coin = torch.rand(size, generator=generator)[pairs.owner] < 0.5
        exchanged = {
            "gatt": torch.where(coin, scores["uniform"], scores["gatt"]),
            "uniform": torch.where(coin, scores["gatt"], scores["uniform"]),
        }
        comparisons, _ = compared(exchanged | {name: scores[name] for name in METHODS[1:]}, pairs, size)
        of_both = [comparisons[0], comparisons[len(comparisons) // len(PROTOCOLS)]]  # GAtt and Uniform come first
        false_more += any_is_certain(of_both, comparisons)
        bounds.append(bound(joint_level(comparisons)))
    bonferroni = bound(1 - 0.05 / len(comparisons))
    return denied / samples, denied_by_best / samples, false_more / samples, float(np.mean(bounds)), bonferroni


def compared(scores: dict[str, Tensor], pairs: PairColumns, size: int) -> tuple[list[Influence], list[list[Influence]]]:
    """The difference of every two methods under every protocol; and the methods of each protocol themselves."""
    comparisons, by_protocol = [], []
    for effects, _, _ in pairs.deltas.values():
        influences = [
            influence_on_mean(pearson_by_target(column, effects, pairs.owner, size).double().numpy(), "correlations")
            for column in scores.values()
        ]
        by_protocol.append(influences)
        comparisons += [first.minus(second) for first, second in combinations(influences, 2)]
    return comparisons, by_protocol


def any_is_certain(differences: list[Influence], comparisons: list[Influence]) -> bool:
    """Whether a verdict with these comparisons says that one of the differences is not 0."""
    level = joint_level(comparisons)
    ends = [interval_of(difference, level) for difference in differences]
    is_large = any(is_beyond_chance(difference, level) for difference in differences)
    return is_large or any(low > 0 or high < 0 for low, high in ends)


def loses_to_best(influences: list[Influence]) -> bool:
    """Whether a method is worse than the best by Hsu's one-sided comparison with it (Dunnett's bound, independent)."""
    best = max(influences, key=lambda influence: influence.value)
    others = [best.minus(other) for other in influences if other is not best]
    one_sided = 1 - 2 * (1 - 0.95 ** (1 / len(others)))
    return any(interval_of(difference, one_sided)[0] > 0 for difference in others)


def bound(level: float) -> float:
    return float(norm.ppf((1 + level) / 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=["Cora", "Infection", "Texas"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wholes = [population(name, arguments.data) for name in arguments.datasets]
    cells = {(whole.name, size): coverage(whole, size, arguments.samples) for whole in wholes for size in SIZES}
    statistics = list(dict.fromkeys(name for column in cells.values() for name in column))
    print("| statistic | " + " | ".join(f"{name}, {size}" for name, size in cells) + " |")
    print("|---" * (len(cells) + 1) + "|")
    for statistic in statistics:
        print(f"| `{statistic}` | " + " | ".join(column.get(statistic, "") for column in cells.values()) + " |")
    print("\n| population, targets | tie denied | best alone (Hsu) | false more | bound |\n|---|---:|---:|---:|---:|")
    for whole in wholes:
        for size in SIZES:
            tie, hsu, more, joint, bonferroni = false_statements(whole, size, arguments.samples)
            print(f"| {whole.name}, {size} | {tie:.3f} | {hsu:.3f} | {more:.3f} | {joint:.2f} / {bonferroni:.2f} |")
    print("\n| population, protocol | statistic | moved | separates | top edge |\n|---|---|---:|---:|---:|")
    for whole in wholes:
        for protocol in PROTOCOLS:
            for kind in ("Pearson", "Kendall"):
                moved, separates, top = leading(whole, protocol, kind)
                print(f"| {whole.name}, {protocol} | {kind} | {moved:.3f} | {separates:.1f} | {top:.2f} |")


if __name__ == "__main__":
    main()
