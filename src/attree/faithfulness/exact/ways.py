"""Which nodes matter in each call of a convolution, and which edges lead from there to the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.layer_graph import LayerGraph
from attree.faithfulness.exact.stages import Stages
from attree.tensors.ragged import Rows, expand, group


class Ways:
    """The paths from changed nodes to targets: which nodes matter in each call, and which edges lead there.

    Paths follow the looped graph, whatever edges a layer leaves out: a skip may carry a node to itself. Calls on
    several types have no such loops; there a node's own features are followed apart.

    Args:
        graph: The graph.
        layers: The edges of each call.
        stages: Which call feeds which.
        nodes: The nodes that outputs are read from.

    Attributes:
        needed: For each call, the nodes at which its output matters, as a mask [num_nodes].
        onward: For each call on what earlier calls returned, the edges that enter these nodes, grouped by the node that
            they leave, block by block.
    """

    def __init__(self, graph: Graph, layers: Sequence[LayerGraph], stages: Stages, nodes: Tensor) -> None:
        self._graph = graph
        self._layers = layers
        self._stages = stages
        feeds = stages.feeds
        none = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        read = none.index_fill(0, nodes, True)
        self.needed = [(read if call in stages.outputs else none).clone() for call in range(1, len(feeds) + 1)]
        self.onward: list[tuple[Rows, ...]] = [()] * len(feeds)
        for call in reversed(range(len(feeds))):
            if feeds[call]:
                layer, needed = layers[call], self.needed[call]
                own = layer.nodes(needed.nonzero().view(-1))
                if layer.blocks is not None:
                    own = own[(own >= 0) & (own < layer.num_nodes)]
                _, place = expand(layer.entering.ptr, own)
                edges = layer.entering.items[place]
                source = layer.source_node[edges]
                self.onward[call] = tuple(_by_source(edges, source, layer, graph.num_nodes))
                for before in feeds[call]:
                    self.needed[before - 1][source] = True
                    if layer.blocks is not None:
                        self.needed[before - 1] |= needed

    def entries(self, edges: Tensor) -> Tensor:
        """Upper bound on the entries that reducing each of some edges changes, over all calls."""
        graph, feeds = self._graph, self._stages.feeds
        counts = [torch.ones(graph.num_nodes, device=graph.device) for _ in feeds]
        for call in reversed(range(len(feeds))):
            if feeds[call]:
                layer = self._layers[call]
                onward = torch.zeros_like(counts[call])
                source, destination = layer.source_node, layer.destination_node
                for rows in self.onward[call]:
                    onward.index_add_(0, source[rows.items], counts[call][destination[rows.items]])
                if layer.blocks is not None:
                    onward += counts[call]
                for before in feeds[call]:
                    counts[before - 1] = (counts[before - 1] + onward).clamp_(max=float(graph.num_edges))
        total = torch.zeros(edges.numel(), device=graph.device)
        for call, count in enumerate(counts):
            if not feeds[call] or self._layers[call].blocks is not None:
                total += count[graph.destination[edges]]
        return total


def _by_source(edges: Tensor, source: Tensor, layer: LayerGraph, num_nodes: int) -> Iterator[Rows]:
    """Edges of a call grouped by the node that they leave, block by block."""
    if layer.blocks is None or layer.block is None:
        by_source = group(source, num_nodes)
        yield Rows(by_source.ptr, edges[by_source.items])
        return
    block = layer.block[edges]
    for number in range(len(layer.blocks.relations)):
        own = (block == number).nonzero().view(-1)
        by_source = group(source[own], num_nodes)
        yield Rows(by_source.ptr, edges[own[by_source.items]])
