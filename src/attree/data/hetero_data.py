"""Base class of heterogeneous datasets: one graph with several types of nodes, of which one is classified."""

from __future__ import annotations

from torch_geometric.data import HeteroData
from torch_geometric.data.storage import NodeStorage
from torch_geometric.typing import EdgeType

from attree.data.checks import check_hetero_graph, check_masks, check_node_labels
from attree.data.counts import HeteroCounts, Widths
from attree.data.whole_graph import WholeGraph, WholeGraphModule


class HeteroDataModule(WholeGraphModule[HeteroData]):
    """One heterogeneous graph, trained full-batch: one step per epoch classifies nodes of one type.

    In a distributed run each process counts its share of the validation and test nodes, each node exactly once.

    A subclass validates its arguments in `__init__`, sets `name` and `counts`, and implements `load`, which is called
    once, when the graph is first needed. The edges of a ground truth use one id space for the nodes of all types,
    in the order of `graph.node_types` (see `offsets`); its targets are ids within the classified type.
    """

    counts: HeteroCounts

    @property
    def node_type(self) -> str:
        """The type whose nodes are classified."""
        return self.counts.node_type

    @property
    def edge_types(self) -> list[EdgeType]:
        """The relations (source type, name, destination type), known without loading."""
        return list(self.counts.edges)

    @property
    def num_features(self) -> Widths:
        """Input width of a network for each type of node, with the relations, known without loading."""
        return Widths(self.counts.features, self.edge_types, self.node_type)

    def check(self, graph: HeteroData) -> None:
        """Raise unless the graph has the promised types and sizes, finite features, labels and masks."""
        check_hetero_graph(graph, self.node_type)
        self.counts.check(self.name, graph)
        check_masks(graph[self.node_type])
        check_node_labels(graph[self.node_type], self.num_classes)

    def masked(self, graph: HeteroData) -> NodeStorage:
        """Return the classified nodes, which have the masks and labels."""
        return graph[self.node_type]

    def train_dataloader(self) -> WholeGraph[HeteroData]:
        """One step per epoch over the whole graph."""
        return WholeGraph(self._share_on(self._device))


def offsets(graph: HeteroData) -> dict[str, int]:
    """Return the first id of each type in the id space of all nodes.

    >>> import torch
    >>> graph = HeteroData({"person": {"x": torch.zeros(3, 1)}, "fly": {"x": torch.zeros(2, 1)}})
    >>> offsets(graph)
    {'person': 0, 'fly': 3}
    """
    found, begin = {}, 0
    for kind in graph.node_types:
        found[kind] = begin
        begin += int(graph[kind].num_nodes or 0)
    return found
