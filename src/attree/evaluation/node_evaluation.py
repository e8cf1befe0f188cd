"""Explanation quality of a network that classifies nodes, on its one graph."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from attree.attention import Attention, LoopedGraph, capture_attention
from attree.attribution import Attribution, AttributionMethod, Random, make_methods, subgraph_pairs
from attree.attribution.pair_walk import PairWalk
from attree.data import GroundTruth
from attree.evaluation.evaluation import Evaluation, Settings
from attree.faithfulness import make_reducer
from attree.faithfulness.choose import Reducer
from attree.metrics import TruthAUROC
from attree.report.case_study import case_study


class NodeEvaluation(Evaluation):
    """Evaluates explanations of nodes.

    Args:
        model: The network, called as `model(x, edge_index)`.
        x: Node features.
        graph: The looped graph.
        targets: Nodes whose predictions are measured under attention reduction; the same in every process.
        truth: True edges of the nodes that have some, or None.
        settings: What to evaluate.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        graph: LoopedGraph,
        targets: Tensor,
        truth: GroundTruth | None,
        settings: Settings,
    ) -> None:
        self.x = x
        self.targets = targets.to(graph.device)
        self.truth = truth
        num_layers = capture_attention(model, x, graph.original_edge_index, graph=graph).num_layers
        pairs = subgraph_pairs(graph, settings.shard.of(self.targets), num_layers)
        super().__init__(model, graph, pairs, settings)
        self.num_layers = num_layers
        self._walk = PairWalk.of(graph, pairs, num_layers)
        self._fixed_aurocs: dict[str, Tensor] = {}
        if truth is not None:
            positions = settings.shard.of(torch.arange(truth.num_targets, device=graph.device))
            self._truth_pairs = subgraph_pairs(graph, truth.targets.to(graph.device)[positions], num_layers)
            source, destination = graph.edge_index[:, self._truth_pairs.edges]
            self._truth_labels = truth.labels(positions[self._truth_pairs.owner], source, destination)
            self._truth_walk = PairWalk.of(graph, self._truth_pairs, num_layers)
            self._truth_auroc = TruthAUROC().to(graph.device)

    def make_reducer(self) -> Reducer:
        return make_reducer(self.model, self.x, self.graph.original_edge_index, graph=self.graph)

    def score_pairs(self, method: AttributionMethod, attention: Attention) -> Tensor:
        return method.score_pairs(attention, self.pairs, self._walk)

    def truth_aurocs(self, attention: Attention) -> dict[str, Tensor]:
        """Pooled over the pairs of all targets that have ground truth, gathered from all processes."""
        results: dict[str, Tensor] = {}
        if self.truth is not None:
            for name, columns in self.columns.items():
                aurocs = [self._column_auroc(column, method, attention) for column, method in columns.items()]
                results[name] = torch.stack(aurocs).mean()
        return results

    def _column_auroc(self, column: str, method: AttributionMethod, attention: Attention) -> Tensor:
        """One column's AUROC; that of a random draw never changes."""
        if column in self._fixed_aurocs:
            return self._fixed_aurocs[column]
        scores = method.score_pairs(attention, self._truth_pairs, self._truth_walk)
        self._truth_auroc.update(scores, self._truth_labels)
        auroc = self._truth_auroc.compute()
        self._truth_auroc.reset()
        if isinstance(method, Random):
            self._fixed_aurocs[column] = auroc
        return auroc

    def attribute(self, method: str) -> Attribution:
        """Explain the targets that have ground truth, or the chosen ones where none has."""
        targets = self.targets if self.truth is None else self.truth.targets
        return make_methods([method])[method].attribute(self._attention(), targets)

    def draw_case_studies(self, count: int) -> dict[str, Figure]:
        shown = self.targets if self.truth is None else self.truth.targets
        attention, figures = self._attention(), {}
        for target in shown[:count].tolist():
            scores = {name: method.attribute(attention, target).dense(target) for name, method in self.methods.items()}
            truth = None if self.truth is None else self.truth.edges_of(target)
            figures[f"case_study_{target}"] = case_study(self.graph, target, self.num_layers, scores, truth)
        return figures

    def _attention(self) -> Attention:
        return capture_attention(self.model, self.x, self.graph.original_edge_index, graph=self.graph)
