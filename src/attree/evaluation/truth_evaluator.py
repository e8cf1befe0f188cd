"""How well methods find the edges that are known to matter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attree.attribution import AttributionMethod, subject_pairs
from attree.data import GroundTruth
from attree.data.checks import check_truth
from attree.errors import expect
from attree.evaluation.certainty import PairColumns
from attree.evaluation.names import JACCARD, PRECISION
from attree.evaluation.targets import Shard
from attree.metrics import TruthAUROC
from attree.metrics.functional.sets import jaccard, precision_at_k
from attree.subject import Subject


class TruthEvaluator:
    """AUROC of scores against ground truth, pooled over the pairs of all targets that have some.

    Args:
        subject: What is explained: nodes.
        truth: The true edges of the nodes that have some.
        shard: This process's share of these nodes.
    """

    def __init__(self, subject: Subject, truth: GroundTruth, shard: Shard) -> None:
        expect(subject.level == "node", "truth", "None where other than nodes are explained", "ground truth of nodes")
        check_truth(truth, subject.graph.original_edge_index, subject.graph.num_nodes)
        positions = shard.of(torch.arange(truth.num_targets, device=subject.device))
        self._pairs = subject_pairs(subject, truth.targets.to(subject.device)[positions])
        source, destination = subject.graph.edge_index[:, self._pairs.edges]
        self._labels = truth.labels(positions[self._pairs.owner], source, destination)
        self._metric = TruthAUROC(sync_on_compute=shard.world_size > 1).to(subject.device)
        self._kept: dict[AttributionMethod, Tensor] = {}
        self._positions = positions
        self._scores: dict[AttributionMethod, Tensor] = {}

    def auroc(self, subject: Subject, method: AttributionMethod) -> Tensor:
        """A method's AUROC, gathered from all processes; that of a random draw is computed once."""
        if method in self._kept:
            return self._kept[method]
        self._scores[method] = method.score_pairs(subject, self._pairs)
        self._metric.update(self._scores[method], self._labels)
        auroc = self._metric.compute()
        self._metric.reset()
        if method.is_random:
            self._kept[method] = auroc
        return auroc

    def by_target(self, method: AttributionMethod) -> dict[str, Tensor]:
        """Precision and Jaccard of a method's last scores, one value per target, by name."""
        arguments = self._scores[method], self._labels, self._pairs.owner, self._pairs.targets.numel()
        return {PRECISION: precision_at_k(*arguments).cpu(), JACCARD: jaccard(*arguments).cpu()}

    def columns(self, methods: Mapping[str, AttributionMethod]) -> PairColumns:
        """The pairs of this process with the last scores of some methods, by name."""
        owner = self._positions[self._pairs.owner]
        return PairColumns(owner, {name: self._scores[method] for name, method in methods.items()}, {}, self._labels)
