"""Data modules of graphs in memory: no subclass is needed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torch_geometric.data import Data

from attree.data.checks import MASKS, check_graph, check_graph_labels, check_masks, check_node_labels, check_truth
from attree.data.counts import Counts
from attree.data.graph_data import GraphDataModule
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import NodeDataModule
from attree.data.splits import index_mask
from attree.errors import ArgumentError, expect, expect_instance, expect_int, expect_list

SPLIT = (0.6, 0.2)
"""Fractions of training and validation nodes in a random split; the rest is for testing."""


class InMemoryGraph(NodeDataModule):
    """Data module of one graph in memory. The graph is checked at once and is not changed.

    Args:
        data: The graph: `x` [N, width], `edge_index` [2, E], `y` [N] and the boolean masks `train_mask`, `val_mask`
            and `test_mask` [N]. Nodes outside all masks may have negative labels. Other attributes are kept.
        truth: The ground truth, if there is one.
        num_classes: Number of classes; None for the highest label + 1.
        name: Name of the data in messages and tables.
        split_seed: Seed of a random split into 60 % training, 20 % validation and 20 % test nodes, for a graph without
            masks. Without a seed, such a graph is refused.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    unrecorded: ClassVar[tuple[str, ...]] = ("data", "truth")

    def __init__(
        self,
        data: Data,
        truth: GroundTruth | None = None,
        num_classes: int | None = None,
        name: str = "Data",
        split_seed: int | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        check_graph(data)
        graph = copy.copy(data)
        if split_seed is not None:
            _split_at_random(graph, split_seed)
        elif absent := [mask for mask in MASKS if mask not in data]:
            raise ArgumentError(
                f"Expected argument `data` to have {', '.join(MASKS)}, but got a graph without {', '.join(absent)}: "
                "set them, or pass `split_seed` for a random split."
            )
        check_masks(graph)
        highest = int(graph.y.max())
        num_classes = highest + 1 if num_classes is None else num_classes
        check_node_labels(graph, expect_int(num_classes, "num_classes", 1))
        if truth is not None:
            check_truth(truth, graph.edge_index, graph.x.size(0))
        expect_instance(name, "name", str)
        self.name = name
        self.counts = Counts(graph.x.size(0), graph.edge_index.size(1), graph.x.size(1), num_classes)
        self._in_memory = graph, truth

    def load(self) -> tuple[Data, GroundTruth | None]:
        """Return the graph and its ground truth."""
        return self._in_memory


class InMemoryGraphs(GraphDataModule):
    """Data module of graphs in memory with one label each. The graphs are checked at once and split at random.

    Args:
        graphs: The graphs, each with `x`, `edge_index` and `y` [1].
        num_classes: Number of classes; None for the highest label + 1.
        name: Name of the data in messages and tables.
        val_fraction: Fraction of the graphs for validation.
        test_fraction: Fraction of the graphs for testing; the rest is for training.
        batch_size: Number of graphs in a step.
        seed: Seed of the split and of the order of training graphs.
    """

    unrecorded: ClassVar[tuple[str, ...]] = ("graphs",)

    def __init__(
        self,
        graphs: Sequence[Data],
        num_classes: int | None = None,
        name: str = "Graphs",
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)
        graph_list = expect_list(graphs, "graphs", Data, "a list of torch_geometric.data.Data")
        expect(len(graph_list) > 0, "graphs", "at least one graph", "none")
        for position, graph in enumerate(graph_list):
            check_graph(graph, f"graphs[{position}]")
            width, expected = graph.x.size(1), graph_list[0].x.size(1)
            expect(width == expected, f"graphs[{position}].x", f"{expected} wide, like the first graph's", width)
        highest = max((int(graph.y.max()) for graph in graph_list if graph.y.numel()), default=0)
        num_classes = highest + 1 if num_classes is None else num_classes
        check_graph_labels(graph_list, expect_int(num_classes, "num_classes", 1))
        expect_instance(name, "name", str)
        self.name = name
        self.counts = Counts(None, None, graph_list[0].x.size(1), num_classes, graphs=len(graph_list))
        self._in_memory = graph_list

    def load(self) -> list[Data]:
        """Return the graphs in memory."""
        return self._in_memory


def _split_at_random(graph: Data, seed: int) -> None:
    """Set the three masks of a graph without masks."""
    present = [mask for mask in MASKS if mask in graph]
    expect(not present, "split_seed", "None for a graph that has masks", f"{seed} beside {present}")
    expect_int(seed, "split_seed")
    size = graph.x.size(0)
    ends = [round(SPLIT[0] * size), round(sum(SPLIT) * size)]
    for mask, nodes in zip(MASKS, np.split(np.random.default_rng(seed).permutation(size), ends), strict=True):
        graph[mask] = index_mask(nodes, size)
