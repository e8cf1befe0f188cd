"""The part of a graph that the computation trees of some targets live on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attree.tensors.ragged import Rows, expand


class Neighbourhood(NamedTuple):
    """A part of a graph: its nodes and the given edges it keeps, both ascending."""

    nodes: Tensor
    edges: Tensor


def neighbourhood(edge_index: Tensor, entering: Rows, targets: Tensor, hops: int) -> Neighbourhood:
    """All nodes within `hops` of some target, and all edges that enter the nodes within `hops` - 1.

    Args:
        edge_index: Edges of the full graph [2, E].
        entering: These edges grouped by destination.
        targets: Where the neighbourhoods are centred.
        hops: Their radius.
    """
    seen = torch.zeros(entering.ptr.numel() - 1, dtype=torch.bool, device=edge_index.device)
    seen[targets] = True
    outermost, edges = targets, []
    for _ in range(hops):
        _, place = expand(entering.ptr, outermost)
        edges.append(entering.items[place])
        reached = edge_index[0, edges[-1]]
        outermost = reached[~seen[reached]].unique()
        seen[outermost] = True
    return Neighbourhood(seen.nonzero().view(-1), torch.cat(edges).sort().values)
