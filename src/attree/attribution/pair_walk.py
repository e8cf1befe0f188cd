"""The walks behind fixed pairs, found once and walked again whenever the attention has changed.

While a network trains, the graph and the pairs that its explanations are judged on stay as they are. Which entries
the walks pass and which listed edge is which pair are then found before the first epoch, and an epoch only multiplies
and adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.attention.graph import Graph
from attree.attribution.flows import BYTES_PER_ENTRY, Walk, frontier_bound
from attree.subject.roots import Roots
from attree.tensors.memory import KEPT_WALK_MEMORY
from attree.tensors.ragged import expand


@dataclass(frozen=True)
class PairWalk:
    """The walks from the targets of some pairs, and the edges that their flows start with.

    Attributes:
        walk: The walks.
        entry: For each listed edge, the entry of the walk whose node it enters.
        place: For each listed edge, its position in `graph.entering.items`.
        edges: For each listed edge, its id in `graph.edge_index`.
        pair: For each listed edge, the pair that it is.
    """

    walk: Walk
    entry: Tensor
    place: Tensor
    edges: Tensor
    pair: Tensor

    @classmethod
    def of(
        cls,
        graph: Graph,
        targets: Tensor,
        flow: Tensor,
        edges: Tensor,
        num_layers: int,
        memory: int = KEPT_WALK_MEMORY,
    ) -> PairWalk | None:
        """Find the walks of pairs; None if keeping them may take more than `memory` bytes, or if pairs were left out.

        Args:
            graph: The graph.
            targets: The pairs' targets.
            flow: For each pair whether its edge carries a flow.
            edges: The edge of each pair.
            num_layers: Depth of the network.
            memory: Bytes that walks may take.
        """
        if float(frontier_bound(graph, num_layers + 1)[targets].sum()) * BYTES_PER_ENTRY > memory:
            return None
        walk = Walk.of(graph, Roots.at_nodes(targets), num_layers)
        entry, place = expand(graph.entering.ptr, walk.node)
        listed = graph.entering.items[place]
        # Pairs list the edges that carry a flow target by target, in the order of these rows.
        pair = flow.nonzero().view(-1)
        return cls(walk, entry, place, listed, pair) if torch.equal(edges[pair], listed) else None
