"""The proximity effect: edges close to the target occur more often in its computation tree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch_geometric.data import Batch

from attree.attention import LoopedGraph
from attree.attention.capture import Attention
from attree.attribution import GAttSim
from attree.data import GraphDataModule
from attree.paper.cells.base import Cell, Result
from attree.paper.cells.workshop import Workshop

CHUNK = 200


@dataclass(frozen=True)
class Proximity(Cell):
    """Spearman's rho between an edge's distance from the target and its occurrences in the computation tree.

    The distance of an edge is the number of hops from the node that it enters to the target. rho is taken over the
    edges of each target's tree, self-loops included, and averaged over the targets where it is defined.

    Attributes:
        name: Name of the dataset.
        layers: Height of the trees.
        targets: How many nodes, evenly spread; None for all.
    """

    name: str
    layers: int
    targets: int | None = None
    kind: ClassVar[str] = "proximity"

    def __str__(self) -> str:
        return f"proximity on {self.name}, {self.layers} layers"

    @property
    def dataset(self) -> str:
        return self.name

    def measure(self, shop: Workshop) -> Result:
        data = shop.data(self.name, self.layers, 0)
        graph = Batch.from_data_list(data.graphs) if isinstance(data, GraphDataModule) else data.graph
        looped = LoopedGraph(graph.edge_index, graph.num_nodes)
        count = graph.num_nodes if self.targets is None else min(self.targets, graph.num_nodes)
        targets = (torch.arange(count) * graph.num_nodes) // count
        found = np.concatenate([_correlations(looped, part, self.layers) for part in targets.split(CHUNK)])
        defined = found[np.isfinite(found)]
        rho = float(defined.mean()) if defined.size else math.nan
        return {"rho": rho, "targets": count, "defined": int(defined.size)}


def _correlations(graph: LoopedGraph, targets: Tensor, layers: int) -> np.ndarray:
    """Rho of every target; NaN where all distances or all occurrences are the same."""
    ones = [torch.ones(graph.num_edges, dtype=torch.float64)] * layers
    # With every weight 1, GAtt-sim counts occurrences; and the first depth that reaches an edge tells its distance.
    occurrences = GAttSim().attribute(Attention.from_weights(graph, ones), targets)
    distance = torch.full_like(occurrences.scores, layers - 1)
    for depth in range(layers - 1, 0, -1):
        reached = GAttSim().attribute(Attention.from_weights(graph, ones[:depth]), targets)
        owner = torch.repeat_interleave(torch.arange(targets.numel()), occurrences.ptr.diff())
        distance[reached.at(owner, occurrences.edges) > 0] = depth - 1
    rhos = []
    for begin, end in zip(occurrences.ptr[:-1].tolist(), occurrences.ptr[1:].tolist(), strict=True):
        near, often = distance[begin:end].numpy(), occurrences.scores[begin:end].numpy()
        constant = end - begin < 2 or np.ptp(near) == 0 or np.ptp(often) == 0
        rhos.append(math.nan if constant else float(spearmanr(near, often).statistic))
    return np.array(rhos)
