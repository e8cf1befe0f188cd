"""Cells for faithfulness: statistics of a network under several protocols, of single heads; the proximity effect."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from attree.attention import Graph
from attree.attention.capture import Attention
from attree.attribution import GAtt, GAttSim, subgraph_pairs
from attree.data import GraphDataModule, NodeDataModule
from attree.defaults import AUTHORS
from attree.evaluation import Evaluation, MetricName, evaluate
from attree.faithfulness import reduce_attention, resolve_protocol
from attree.metrics.functional import faithfulness_statistics, kendall, pearson, spearman
from attree.metrics.functional.influence import faithfulness_influences
from attree.metrics.functional.intervals import Interval, interval_of
from attree.paper.cells.base import Cell, CellContext, NetCell, Result
from attree.paper.networks import AuthorsSuperGAT, held_out, reported_attention
from attree.subject import Subject
from attree.subject.target_roots import Targets

METHOD_NAMES = ("gatt", "gatt_sim", "gatt_avg", "avgatt", "uniform", "random")
"""The methods that read attention, and the baselines."""

MOST_PROBABLE = "most_probable"
"""Name of the quantity that the authors' code measures instead of dPC: max p - max p', with maxima over classes."""

NOISE, LAST_DIGIT = "noise", 2.0**-24
"""Rank correlations are also measured with noise in the last digit of single precision. Most pairs have no effect and
are tied. On a device that adds in any order, two passes differ in the last digit, which breaks the ties."""

REPORTED = "gatt (reported)"
"""GAtt of the attention that the authors' SuperGAT-MX returns, which is not the attention that it uses."""


def paper_targets(num_nodes: int, count: int = 100) -> Tensor:
    """Return the nodes that the paper's authors explain in their tables, ascending: NumPy's legacy draw with seed 0.

    >>> paper_targets(2708)[:4].tolist()
    [10, 70, 92, 104]
    """
    # The authors' notebooks use this legacy generator, so it draws the same nodes.
    nodes = np.random.RandomState(0).choice(num_nodes, min(count, num_nodes), replace=False)
    return torch.from_numpy(nodes).sort().values


@dataclass(frozen=True)
class FaithfulnessCell(NetCell):
    """The seven statistics of all methods that read attention and of the baselines.

    Attributes:
        protocols: Names of the reduction protocols.
        targets: Number of nodes to explain, as the authors draw them. For graph-level networks, all test graphs are
            explained.
    """

    protocols: tuple[str, ...] = ("coefficient", "weight", "removal")
    targets: int = 100
    kind: ClassVar[str] = "faithfulness"

    def __str__(self) -> str:
        return f"faithfulness of {self.net}"

    def measure(self, context: CellContext) -> Result:
        """Return the faithfulness statistics of all methods on one network, with intervals over targets."""
        model, accuracy = context.model(self.net)
        data = context.data_of(self.net)
        graph: Data = held_out(data) if isinstance(data, GraphDataModule) else data.graph
        targets: Targets = "all"
        if isinstance(data, NodeDataModule):
            targets = paper_targets(graph.num_nodes, self.targets)
        evaluation = evaluate(model, graph, targets, METHOD_NAMES, self.protocols)
        metrics = dict(evaluation.metrics)
        scores = dict(evaluation.pair_scores)
        if isinstance(model, AuthorsSuperGAT):
            reported = reported_attention(model, graph.x, evaluation.pairs.graph)
            scores[REPORTED] = GAtt().score_pairs(reported, evaluation.pairs)
            metrics |= _statistics(REPORTED, scores[REPORTED], evaluation)
        for name, method_scores in scores.items():
            metrics |= _with_noise(name, method_scores, evaluation)
        if isinstance(data, NodeDataModule):
            metrics |= _most_probable(model, graph, evaluation, scores)
        return {
            "accuracy": accuracy,
            "targets": evaluation.targets.numel(),
            "pairs": len(evaluation.pairs),
            "changed": {name: evaluation.num_changed(name) for name in evaluation.reductions},
            "metrics": metrics,
            "intervals": _intervals(scores, evaluation),
        }


def _most_probable(
    model: nn.Module, graph: Data, evaluation: Evaluation, scores: dict[str, Tensor]
) -> dict[str, float]:
    """Return correlations with the quantity that the authors' code measures instead of dPC, under their protocol."""
    protocol = resolve_protocol(AUTHORS, model).name
    if protocol not in evaluation.reductions:
        return {}
    pairs = evaluation.pairs
    reduction = reduce_attention(
        model, graph.x, graph.edge_index, pairs, protocol, graph=pairs.graph, with_probability=True
    )
    with torch.no_grad():
        predicted = model(graph.x, graph.edge_index).argmax(dim=-1)[pairs.targets[pairs.owner]]
    after = reduction.probability
    assert after is not None
    # p[k] - max p' = (p[k] - p'[k]) - (max p' - p'[k]); the second term is 0 unless the prediction changes.
    delta = reduction.delta_pc - (after.amax(dim=-1) - after.gather(-1, predicted.unsqueeze(-1)).squeeze(-1))
    return {
        str(MetricName(method, f"{MOST_PROBABLE}_{name}", protocol)): float(correlation(method_scores, delta))
        for method, method_scores in scores.items()
        for name, correlation in (("pearson", pearson), ("kendall", kendall), ("spearman", spearman))
    }


def _with_noise(method: str, scores: Tensor, evaluation: Evaluation) -> dict[str, float]:
    """Return rank correlations with noise in the last digit of the deltas."""
    metrics = {}
    for protocol, reduction in evaluation.reductions.items():
        for measure, delta in (("pc", reduction.delta_pc), ("ne", reduction.delta_ne)):
            generator = torch.Generator().manual_seed(0)
            noisy = delta.double() + LAST_DIGIT * torch.randint(-1, 2, delta.shape, generator=generator)
            for name, correlation in (("kendall", kendall), ("spearman", spearman)):
                metric = MetricName(method, f"{measure}_{NOISE}_{name}", protocol)
                metrics[str(metric)] = float(correlation(scores.double(), noisy))
    return metrics


def _statistics(method: str, scores: Tensor, evaluation: Evaluation) -> dict[str, float]:
    return {
        str(MetricName(method, statistic, protocol)): float(value)
        for protocol, reduction in evaluation.reductions.items()
        for statistic, value in faithfulness_statistics(
            scores, reduction.delta_pc, reduction.delta_ne, reduction.changed
        ).items()
    }


def _intervals(scores: dict[str, Tensor], evaluation: Evaluation) -> dict[str, Interval]:
    """Return the interval over targets of every statistic, by metric name."""
    owner = evaluation.pairs.owner
    return {
        str(MetricName(method, statistic, protocol)): interval_of(influence)
        for protocol, reduction in evaluation.reductions.items()
        for (method, statistic), influence in faithfulness_influences(
            scores, reduction.delta_pc, reduction.delta_ne, reduction.changed, owner
        ).items()
    }


@dataclass(frozen=True)
class HeadSelection(NetCell):
    """Pearson correlation of GAtt with dPC for every choice of one head per layer of the same network.

    The network has several heads in all layers except the last.

    Attributes:
        targets: Number of nodes to explain, as the authors draw them.
    """

    targets: int = 100
    kind: ClassVar[str] = "heads"

    def __str__(self) -> str:
        return f"single heads of {self.net}"

    def measure(self, context: CellContext) -> Result:
        """Return Pearson's correlation of GAtt with dPC for every choice of one head per layer, and the accuracy."""
        model, accuracy = context.model(self.net)
        graph = context.node_data(self.net).graph
        subject = Subject.of_data(model, graph)
        evaluation = evaluate(model, subject, paper_targets(graph.num_nodes, self.targets), [GAtt()], ["weight"])
        delta = evaluation.reductions["weight"].delta_pc
        counts = [weight.shape[1] for weight in subject.attention.weights]
        by_heads = {
            ",".join(map(str, heads)): float(pearson(GAtt(heads).score_pairs(subject, evaluation.pairs), delta))
            for heads in product(*(range(count) for count in counts))
        }
        return {"accuracy": accuracy, "pearson": by_heads}


CHUNK, CHUNK_EDGES = 200, 20_000_000
"""Maximum number of targets in a chunk, and approximate maximum number of edges in their subgraphs."""


@dataclass(frozen=True)
class Proximity(Cell):
    """Spearman's rho between an edge's distance from the target and its occurrences in the computation tree.

    The paper does not define the distance of an edge. Here it is the mean number of hops from the edge's two ends to
    the target. rho is computed over all edges of the target's subgraph, including self-loops. Its mean over targets is
    returned twice: over the targets with a defined rho, and with 0 for the other targets.

    Attributes:
        name: Name of the dataset.
        layers: Height of the trees.
        targets: Number of nodes, evenly spaced; None for all.
    """

    name: str
    layers: int
    targets: int | None = None
    kind: ClassVar[str] = "proximity"
    reads_features: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"proximity on {self.name}, {self.layers} layers"

    @property
    def dataset(self) -> str:
        return self.name

    def measure(self, context: CellContext) -> Result:
        """Return the mean of Spearman's rho over targets, with undefined values left out and counted as 0."""
        data = context.data(self.name, self.layers, 0)
        graph = Batch.from_data_list(data.graphs) if isinstance(data, GraphDataModule) else data.graph
        looped = Graph(graph.edge_index, graph.num_nodes)
        count = graph.num_nodes if self.targets is None else min(self.targets, graph.num_nodes)
        targets = (torch.arange(count) * graph.num_nodes) // count
        chunk = max(1, min(CHUNK, CHUNK_EDGES // looped.num_edges))
        rhos = np.concatenate([_correlations(looped, part, self.layers) for part in targets.split(chunk)])
        defined = rhos[np.isfinite(rhos)]
        return {
            "rho": float(defined.mean()) if defined.size else math.nan,
            "rho_with_zeros": float(np.nan_to_num(rhos).mean()),
            "targets": count,
            "defined": int(defined.size),
        }


def _correlations(graph: Graph, targets: Tensor, layers: int) -> np.ndarray:
    """Return rho of every target; NaN where all distances or all occurrences are equal."""
    pairs = subgraph_pairs(graph, targets, layers)
    owner, loop = pairs.owner, graph.num_proper_edges
    source, destination = graph.edge_index[:, pairs.edges]
    ones = [torch.ones(graph.num_edges, dtype=torch.float64)] * layers
    distance = torch.zeros(len(pairs), dtype=torch.float64)
    for height in range(1, layers + 1):
        # With all weights 1, GAtt-sim counts occurrences. A node's self-loop occurs if the tree is higher than the
        # node's distance.
        tree = GAttSim().attribute(Attention.from_weights(graph, ones[:height]), targets)
        for end in (source, destination):
            distance += (tree.at(owner, loop + end) == 0).double() / 2
    occurrences = tree.at(owner, pairs.edges)
    rhos = []
    for begin, stop in itertools.pairwise(pairs.ptr.tolist()):
        near, often = distance[begin:stop].numpy(), occurrences[begin:stop].numpy()
        constant = stop - begin < 2 or np.ptp(near) == 0 or np.ptp(often) == 0
        rhos.append(math.nan if constant else float(spearmanr(near, often).statistic))
    return np.array(rhos)
