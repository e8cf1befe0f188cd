"""Cells for the proximity effect: edges near the target occur more often in the target's computation tree."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch_geometric.data import Batch

from attree.attention import Graph
from attree.attention.capture import Attention
from attree.attribution import GAttSim, subgraph_pairs
from attree.data import GraphDataModule
from attree.paper.cells.base import Cell, CellContext, Result

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
