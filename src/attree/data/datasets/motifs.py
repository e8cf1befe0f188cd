"""Motifs that generated graphs end with: which edges of BA-2motifs and BA-Multi-Shapes explain their labels.

Both datasets attach motifs to a random tree, one after the other, each by a single edge to a node that is already
there. So the nodes of a motif are the last ones of the graph before the next motif comes. The files do not mark them;
they are found from the end, and only believed if what remains is a tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

HOUSE, CYCLE = (2, 2, 2, 3, 3), (2, 2, 2, 2, 2)
WHEEL, GRID = (3, 3, 3, 3, 3, 5), (2, 2, 2, 2, 3, 3, 3, 3, 4)

MOTIFS = {"BA2MotifDataset": (HOUSE, CYCLE), "BAMultiShapesDataset": (HOUSE, WHEEL, GRID)}
"""The motifs of each dataset, as the degrees of their nodes, ascending."""


def motif_edges(edge_index: Tensor, num_nodes: int, motifs: tuple[tuple[int, ...], ...]) -> Tensor:
    """Return which edges of a graph are inside one of its motifs, [E]; none if the graph is not a tree with motifs.

    Args:
        edge_index: The edges, both directions of each, [2, E].
        num_nodes: Number of nodes.
        motifs: Degrees of the nodes of each motif, ascending.

    >>> house = torch.tensor([[0, 1, 1, 2, 2, 3, 1, 4, 4, 5, 4, 3], [1, 0, 2, 1, 3, 2, 4, 1, 5, 4, 3, 4]])
    >>> links = torch.tensor([[5, 2], [2, 5]])  # node 0 is the tree, nodes 1 to 5 are a house
    >>> motif_edges(torch.cat([house[:, 2:], links, house[:, :2]], dim=1), 6, (HOUSE,)).tolist()
    [True, True, True, True, True, True, True, True, True, True, True, True, False, False]
    """
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.long)
    adjacency[edge_index[0], edge_index[1]] = 1
    number, of_node = 0, torch.zeros(num_nodes, dtype=torch.long)
    end = num_nodes
    while (begin := _last_motif(adjacency[:end, :end], motifs)) is not None:
        number += 1
        of_node[begin:end] = number
        end = begin
    is_tree = int(adjacency[:end, :end].sum()) == 2 * (end - 1)
    source, destination = of_node[edge_index]
    is_inside: Tensor = (source == destination) & (source > 0) & is_tree
    return is_inside


def _last_motif(adjacency: Tensor, motifs: tuple[tuple[int, ...], ...]) -> int | None:
    """Return the first node of the motif that a graph ends with; None if it ends with none."""
    number = adjacency.shape[0]
    for degrees in motifs:
        begin = number - len(degrees)
        if begin < 1 or int(adjacency[:begin, begin:].sum()) != 1:
            continue
        if adjacency[begin:, begin:].sum(0).sort().values.tolist() == list(degrees):
            return begin
    return None
