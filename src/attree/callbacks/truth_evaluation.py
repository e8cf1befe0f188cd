"""How well attributions find the true edges: the part of an evaluation that stays the same from epoch to epoch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attree.attention import Attention, LoopedGraph
from attree.attribution import AttributionMethod, subgraph_pairs
from attree.data import GroundTruth
from attree.metrics import TruthAUROC


class TruthEvaluation:
    """AUROC of each method's scores against ground truth, pooled over the pairs of all targets that have some.

    The targets are spread over the processes of a distributed run; the metric gathers their pairs.

    Args:
        graph: The looped graph.
        truth: The true edges of each target.
        num_layers: Number of attention layers, L: the pairs of a target are the edges of its L-hop subgraph.
        rank: This process.
        world_size: Number of processes.
    """

    def __init__(
        self, graph: LoopedGraph, truth: GroundTruth, num_layers: int, rank: int = 0, world_size: int = 1
    ) -> None:
        positions = torch.arange(rank, truth.num_targets, world_size, device=graph.device)
        self.pairs = subgraph_pairs(graph, truth.targets.to(graph.device)[positions], num_layers)
        source, destination = graph.edge_index[:, self.pairs.edges]
        self.labels = truth.labels(positions[self.pairs.owner], source, destination)

    def evaluate(self, attention: Attention, methods: Mapping[str, AttributionMethod]) -> dict[str, Tensor]:
        """AUROC by method name; the same in every process."""
        results = {}
        for name, method in methods.items():
            metric = TruthAUROC().to(self.labels.device)
            metric.update(method.score_pairs(attention, self.pairs), self.labels)
            results[name] = metric.compute()
        return results
