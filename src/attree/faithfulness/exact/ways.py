"""Which nodes matter to some target in each call, and the ways that lead there.

Ways lead along the looped graph: whatever edges a layer leaves out, a node may reach itself around attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.faithfulness.exact.stages import Wiring
from attree.tensors.ragged import Rows, expand, group


class Ways:
    """The ways from changed nodes to targets.

    Args:
        graph: The graph.
        wiring: What feeds what.
        nodes: The nodes that outputs are read from.

    Attributes:
        needed: For each call, whether its output at a node matters, [num_nodes].
        onward: For each call that others feed, the edges that enter these nodes, by the node that they leave.
    """

    def __init__(self, graph: Graph, wiring: Wiring, nodes: Tensor) -> None:
        self._graph = graph
        self._wiring = wiring
        feeds = wiring.feeds
        none = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        read = none.index_fill(0, nodes, True)
        self.needed = [(read if call in wiring.outputs else none).clone() for call in range(1, len(feeds) + 1)]
        self.onward: list[Rows | None] = [None] * len(feeds)
        for call in reversed(range(len(feeds))):
            if feeds[call]:
                _, place = expand(graph.entering.ptr, self.needed[call].nonzero().view(-1))
                edges = graph.entering.items[place]
                source = graph.source[edges]
                by_source = group(source, graph.num_nodes)
                self.onward[call] = Rows(by_source.ptr, edges[by_source.items])
                for before in feeds[call]:
                    self.needed[before - 1][source] = True

    def entries(self, edges: Tensor) -> Tensor:
        """How many entries of all calls each of some edges changes, at most, when it is reduced."""
        graph, feeds = self._graph, self._wiring.feeds
        counts = [torch.ones(graph.num_nodes, device=graph.device) for _ in feeds]
        for call in reversed(range(len(feeds))):
            rows = self.onward[call]
            if rows is not None:
                onward = torch.zeros_like(counts[call])
                onward.index_add_(0, graph.source[rows.items], counts[call][graph.destination[rows.items]])
                for before in feeds[call]:
                    counts[before - 1] = (counts[before - 1] + onward).clamp_(max=float(graph.num_edges))
        total = torch.zeros(edges.numel(), device=graph.device)
        for count, before_it in zip(counts, feeds, strict=True):
            if not before_it:
                total += count[graph.destination[edges]]
        return total
