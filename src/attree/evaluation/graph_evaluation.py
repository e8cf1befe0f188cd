"""Explanation quality of a network that classifies graphs."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Batch

from attree.attention import Attention, LoopedGraph, capture_attention
from attree.attribution import Attribution, AttributionMethod, AvgAtt, Pairs, Random, make_methods
from attree.evaluation.evaluation import Evaluation, Settings, Shard
from attree.faithfulness import graph_pairs, make_reducer
from attree.faithfulness.choose import Reducer
from attree.models import GraphClassifier
from attree.ragged import pointers
from attree.report.case_study import case_study


class GraphEvaluation(Evaluation):
    """Evaluates explanations of graphs: every edge of a graph, for the graph's prediction, through the readout.

    Args:
        model: The graph classifier.
        graphs: The chosen graphs as one batch; the same in every process, so that edges are named alike.
        targets: Positions of the chosen graphs in their dataset.
        settings: What to evaluate.
    """

    def __init__(self, model: GraphClassifier, graphs: Batch, targets: Tensor, settings: Settings) -> None:
        self.graphs = graphs
        self.targets = targets
        self.classifier = model
        graph = LoopedGraph(graphs.edge_index, graphs.num_nodes)
        pairs = _share(graph_pairs(graph, graphs.batch), settings.shard)
        super().__init__(model, graph, pairs, settings)

    def make_reducer(self) -> Reducer:
        data = self.graphs
        return make_reducer(self.model, data.x, data.edge_index, graph=self.graph, batch=data.batch)

    def score_pairs(self, method: AttributionMethod, attention: Attention) -> Tensor:
        """Follow flows through the readout; methods that know no flows score every edge as it is."""
        if isinstance(method, AvgAtt | Random):
            return method.score_pairs(attention, self.pairs)
        return self.pairs.scores(self._attribute(method, attention, self.pairs.targets))

    def attribute(self, method: str) -> Attribution:
        """Explain all chosen graphs; targets of the result are their positions in the batch."""
        return self._attribute(make_methods([method])[method], self._attention(), None)

    def draw_case_studies(self, count: int) -> dict[str, Figure]:
        attention, figures = self._attention(), {}
        for position, name in enumerate(self.targets[:count].tolist()):
            scores = {
                label: self._attribute(method, attention, torch.tensor([position])).dense(position)
                for label, method in self.methods.items()
            }
            mine = self.graphs.batch == position
            figures[f"case_study_{name}"] = _draw_graph(self.graph, mine, scores)
        return figures

    def _attribute(self, method: AttributionMethod, attention: Attention, graphs: Tensor | None) -> Attribution:
        return method.attribute_graphs(attention, self.graphs.batch, self.classifier.readout, graphs)

    def _attention(self) -> Attention:
        data = self.graphs
        return capture_attention(self.model, data.x, data.edge_index, graph=self.graph, batch=data.batch)


def _share(pairs: Pairs, shard: Shard) -> Pairs:
    """The pairs of a share of the targets."""
    positions = shard.of(torch.arange(pairs.targets.numel(), device=pairs.targets.device))
    kept = torch.isin(pairs.owner, positions)
    sizes = pairs.ptr.diff()[positions]
    ptr = pointers(sizes)
    return Pairs(pairs.targets[positions], ptr, pairs.edges[kept], pairs.flow[kept])


def _draw_graph(graph: LoopedGraph, nodes: Tensor, scores: dict[str, Tensor]) -> Figure:
    """Draw one graph of a batch, cut out so that its nodes count from 0."""
    number = nodes.cumsum(0) - 1
    inside = nodes[graph.source]
    proper = inside & (graph.source != graph.destination)
    alone = LoopedGraph(number[graph.edge_index[:, proper]], int(nodes.sum()))
    loops = inside & (graph.source == graph.destination)
    cut = {name: torch.cat([values[proper], values[loops]]) for name, values in scores.items()}
    return case_study(alone, None, 0, cut)
