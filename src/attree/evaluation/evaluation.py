"""Explanation quality of a network for fixed targets, over and over as it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from attree.attention import Attention, LoopedGraph
from attree.attribution import Attribution, AttributionMethod, Pairs, Random, make_methods
from attree.faithfulness import resolve_protocol
from attree.faithfulness.choose import Reducer
from attree.metrics import FaithfulnessComparison
from attree.report.histogram import score_histogram


@dataclass(frozen=True)
class Shard:
    """This process's share of the targets: every `world_size`-th, from `rank` on."""

    rank: int = 0
    world_size: int = 1

    def of(self, items: Tensor) -> Tensor:
        """The share of a tensor's entries."""
        return items[self.rank :: self.world_size]


@dataclass(frozen=True)
class Settings:
    """What is to be evaluated.

    Attributes:
        methods: Names of the attribution methods.
        protocols: Names of the reduction protocols.
        num_targets: How many targets to choose.
        ground_truth: Measure against ground truth where the data has some.
        random_draws: Draws that the statistics of `random` are averaged over.
        seed: Seed of the choice of targets and of the `random` method.
        shard: This process's share of the targets.
    """

    methods: tuple[str, ...]
    protocols: tuple[str, ...]
    num_targets: int = 100
    ground_truth: bool = True
    random_draws: int = 1
    seed: int = 0
    shard: Shard = Shard()


@dataclass(frozen=True)
class PairScores:
    """This process's pairs at the last evaluation: each method's scores, and whether the prediction changed."""

    scores: dict[str, Tensor]
    changed: Tensor


class Evaluation(ABC):
    """Evaluates explanations of chosen targets; what stays the same from epoch to epoch is made once.

    Args:
        model: What is explained.
        graph: The looped graph that it runs on.
        pairs: This process's pairs.
        settings: What to evaluate.
    """

    targets: Tensor

    def __init__(self, model: nn.Module, graph: LoopedGraph, pairs: Pairs, settings: Settings) -> None:
        self.model = model
        self.graph = graph
        self.pairs = pairs
        self.methods = make_methods(settings.methods, seed=settings.seed)
        self.protocols = tuple(dict.fromkeys(resolve_protocol(name, model) for name in settings.protocols))
        self.last: dict[str, PairScores] = {}
        # Each method by the names of its columns: itself, or several seeded draws of a random one.
        self.columns = {name: _draws(name, method, settings.random_draws) for name, method in self.methods.items()}
        columns = {column: method for group in self.columns.values() for column, method in group.items()}
        fixed = [column for column, method in columns.items() if isinstance(method, Random)]
        self._comparison = FaithfulnessComparison(columns, fixed).to(graph.device)
        self._fixed: dict[str, Tensor] = {}
        self._reducer: Reducer | None = None

    @abstractmethod
    def make_reducer(self) -> Reducer:
        """Run the model once, ready for reductions."""

    @abstractmethod
    def score_pairs(self, method: AttributionMethod, attention: Attention) -> Tensor:
        """A method's score of every pair."""

    @abstractmethod
    def attribute(self, method: str) -> Attribution:
        """Explain all targets of all processes with the model as it is now."""

    def truth_aurocs(self, attention: Attention) -> dict[str, Tensor]:
        """AUROC against ground truth by method; none where there is no ground truth."""
        return {}

    def evaluate(self) -> dict[str, Tensor]:
        """All metrics under the names they are logged with; the same in every process."""
        if self._reducer is None:
            self._reducer = self.make_reducer()
        try:
            return self._evaluate(self._reducer)
        finally:
            self._reducer.forget()

    def _evaluate(self, reducer: Reducer) -> dict[str, Tensor]:
        truth = self.truth_aurocs(reducer.attention)
        results = {f"explain/{name}/truth_auroc": auroc for name, auroc in truth.items()}
        if not self.protocols:
            return results
        scores = self._scores(reducer.attention)
        for protocol in self.protocols:
            reduction = reducer.reduce(self.pairs, protocol)
            first = {name: scores[next(iter(columns))] for name, columns in self.columns.items()}
            self.last[protocol.name] = PairScores(first, reduction.changed)
            self._comparison.update(scores, reduction.delta_pc, reduction.delta_ne, reduction.changed)
            values = self._comparison.compute()
            self._comparison.reset()  # or its columns would take up memory until the next evaluation
            for name, columns in self.columns.items():
                for statistic, value in values[next(iter(columns))].items():
                    if len(columns) > 1:
                        value = torch.stack([values[column][statistic] for column in columns]).mean()
                    results[f"explain/{name}/{protocol}/{statistic}"] = value
        return results

    def _scores(self, attention: Attention) -> dict[str, Tensor]:
        """Scores of every pair by column; those of random draws are made once."""
        scores = {}
        for columns in self.columns.values():
            for column, method in columns.items():
                if isinstance(method, Random):
                    if column not in self._fixed:
                        self._fixed[column] = self.score_pairs(method, attention)
                    scores[column] = self._fixed[column]
                else:
                    scores[column] = self.score_pairs(method, attention)
        return scores

    def draw_histograms(self) -> dict[str, Figure]:
        """Histograms of scores where the prediction changed and where not, by name: one a protocol."""
        return {
            f"scores_{protocol}": score_histogram(last.scores, last.changed) for protocol, last in self.last.items()
        }

    @abstractmethod
    def draw_case_studies(self, count: int) -> dict[str, Figure]:
        """One figure each for the first few targets, by name."""

    def draw(self, count: int) -> dict[str, Figure]:
        """All figures of the model as it is now, by name."""
        return {**self.draw_case_studies(count), **self.draw_histograms()}


def _draws(name: str, method: AttributionMethod, draws: int) -> dict[str, AttributionMethod]:
    if not isinstance(method, Random):
        return {name: method}
    return {f"{name} {draw}": Random(method.seed + draw, method.heads) for draw in range(draws)}
