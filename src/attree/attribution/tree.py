"""The computation tree of one target, built out in full: for teaching, drawing and checking.

The methods of this package never build it. It grows with the product of the degrees along its height, so building is
refused above a size limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import networkx as nx
import torch

from attree.attention.capture import Attention
from attree.attention.looped_graph import LoopedGraph
from attree.errors import expect
from attree.precision import exact_dtype


class TreeNode(NamedTuple):
    """One occurrence of a node in the tree, with the edge that leads from it towards the root.

    Attributes:
        node: The graph's node.
        depth: Steps to the root; the root has 0.
        parent: Position in `ComputationTree.nodes` of the node one step closer to the root; -1 for the root.
        edge: Id in `graph.edge_index` of the edge to the parent; -1 for the root.
        layer: The layer that uses this edge, 1 to L; L + 1 for the root.
        attention: The weight of this edge in this layer; 1 for the root.
    """

    node: int
    depth: int
    parent: int
    edge: int
    layer: int
    attention: float


class Flow(NamedTuple):
    """A path in the tree that ends in the root: its edges from the first on, and the attention on each."""

    edges: tuple[int, ...]
    attention: tuple[float, ...]


class ComputationTree:
    r"""Everything an L-layer network computes for one target, as a rooted tree of height L.

    The root is the target; the children of an occurrence of node j at depth d are the sources of all edges that enter
    j, self-loop included, weighted by layer L - d. A flow is a path from some edge up to the root, and GAtt is, by
    its definition (Shin et al., AAAI 2025), the sum over the flows :math:`\lambda` that start with an edge

    .. math:: \phi^v_{i,j} = \sum_{\lambda} \alpha[\lambda](1) \prod_{k \ge 2} \alpha[\lambda](k)

    Args:
        attention: What the network attended to.
        target: The node at the root.
        heads: The head to read in each layer; None averages all heads.
        max_nodes: Largest tree to build.

    The paper's worked example, with node 27 as 0 and node 40 as 1: edge (1 -> 0) starts two flows.

    >>> graph = LoopedGraph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> first_and_last = torch.tensor([[0.9, 0.1, 1.0], [0.25, 0.25, 1.0]], dtype=torch.float64)
    >>> tree = ComputationTree(Attention.from_weights(graph, list(first_and_last)), target=0)
    >>> tree.flows(edge=0)
    [Flow(edges=(0,), attention=(0.25,)), Flow(edges=(0, 1), attention=(0.9, 0.25))]
    >>> round(tree.gatt()[0], 6)  # 0.25 + 0.9 * 0.25
    0.475
    """

    def __init__(
        self, attention: Attention, target: int, heads: Sequence[int] | None = None, max_nodes: int = 100_000
    ) -> None:
        graph, num_layers = attention.graph, attention.num_layers
        expect(0 <= target < graph.num_nodes, "target", f"a node id in [0, {graph.num_nodes})", target)
        size = tree_size(attention, target)
        expect(size <= max_nodes, "target", f"a node whose tree has at most `max_nodes` = {max_nodes} nodes", size)
        self.graph = graph
        self.target = target
        self.num_layers = num_layers
        self.nodes = [TreeNode(target, 0, -1, -1, num_layers + 1, 1.0)]
        alphas = [alpha.tolist() for alpha in attention.per_edge(heads)]
        used = [None if present is None else present.tolist() for present in attention.present]
        source = graph.source.tolist()
        for position, occurrence in enumerate(self.nodes):  # grows while it is walked: breadth first
            layer = num_layers - occurrence.depth
            if layer == 0:
                break
            for edge in _entering(graph, occurrence.node):
                present = used[layer - 1]
                if present is None or present[edge]:
                    weight = alphas[layer - 1][edge]
                    self.nodes.append(TreeNode(source[edge], occurrence.depth + 1, position, edge, layer, weight))

    def __len__(self) -> int:
        return len(self.nodes)

    def levels(self) -> list[list[TreeNode]]:
        """The tree's nodes by depth, root first."""
        levels: list[list[TreeNode]] = [[] for _ in range(self.num_layers + 1)]
        for occurrence in self.nodes:
            levels[occurrence.depth].append(occurrence)
        return levels

    def flows(self, edge: int | None = None) -> list[Flow]:
        """All flows, shortest first, or those that start with one edge (an id in `graph.edge_index`)."""
        return [
            self._flow(position)
            for position in range(1, len(self.nodes))
            if edge is None or self.nodes[position].edge == edge
        ]

    def _flow(self, position: int) -> Flow:
        steps = []
        while position > 0:
            steps.append(self.nodes[position])
            position = self.nodes[position].parent
        return Flow(tuple(step.edge for step in steps), tuple(step.attention for step in steps))

    def gatt(self) -> dict[int, float]:
        """GAtt of every edge that starts a flow: the product of attention along each, added up."""
        return {edge: math.fsum(math.prod(flow.attention) for flow in own) for edge, own in self._by_first().items()}

    def gatt_sim(self) -> dict[int, float]:
        """GAtt without contribution adjustment: the first edge's attention, added up."""
        return {edge: math.fsum(flow.attention[0] for flow in own) for edge, own in self._by_first().items()}

    def gatt_avg(self) -> dict[int, float]:
        """GAtt without the proximity effect: the mean over the flows instead of their sum."""
        flows = self._by_first()
        return {edge: score / len(flows[edge]) for edge, score in self.gatt().items()}

    def _by_first(self) -> dict[int, list[Flow]]:
        flows: dict[int, list[Flow]] = {}
        for flow in self.flows():
            flows.setdefault(flow.edges[0], []).append(flow)
        return flows

    def to_networkx(self) -> nx.DiGraph:
        """The tree as a directed graph towards the root, to draw: node attributes `node` and `depth`, edge attributes
        `edge`, `layer` and `attention`.
        """
        drawn = nx.DiGraph()
        for position, occurrence in enumerate(self.nodes):
            drawn.add_node(position, node=occurrence.node, depth=occurrence.depth)
            if occurrence.parent >= 0:
                drawn.add_edge(
                    position,
                    occurrence.parent,
                    edge=occurrence.edge,
                    layer=occurrence.layer,
                    attention=occurrence.attention,
                )
        return drawn


def tree_size(attention: Attention, target: int) -> int:
    """Number of nodes of the target's computation tree, counted without building it."""
    graph = attention.graph
    count = torch.zeros(graph.num_nodes, dtype=exact_dtype(graph.device), device=graph.device)
    count[target] = 1.0
    size = 1.0
    for present in reversed(attention.present):
        of_edge = count[graph.destination]
        if present is not None:
            of_edge = of_edge * present
        count = torch.zeros_like(count).index_add_(0, graph.source, of_edge)
        size += float(count.sum())
    return int(size)


def _entering(graph: LoopedGraph, node: int) -> list[int]:
    begin, end = graph.entering.ptr[node : node + 2].tolist()
    return graph.entering.items[begin:end].tolist()
