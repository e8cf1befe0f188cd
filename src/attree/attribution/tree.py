"""The computation tree of one target, built in full, and the paths in it with the most attention.

The methods of this package never build it. Its size grows with the product of the degrees, so trees above a size limit
are refused; pruning keeps the part with the most attention.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attention.message_edges import MessageGraph
from attree.attribution.method import as_subject
from attree.errors import expect, expect_bool, expect_instance, expect_int, expect_ints
from attree.subject import Subject
from attree.subject.target_roots import Roots
from attree.tensors.arrays import expand, pointers
from attree.tensors.precision import exact_dtype

if TYPE_CHECKING:
    import networkx as nx


class TreeNode(NamedTuple):
    """One occurrence of a node in the tree, with the edge that leads from it towards the root.

    Attributes:
        node: The node of the graph.
        depth: Number of steps to the root; 0 for the root.
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
    """A path in the tree that ends in the root: its edges, first edge first, and the attention on each."""

    edges: tuple[int, ...]
    attention: tuple[float, ...]


class ComputationTree:
    r"""The computation of an L-layer network for one target, as a rooted tree of height L.

    The root is the target. The children of an occurrence of node j at depth d are the sources of all edges that enter
    j, including the self-loop, weighted by layer L - d. A flow is a path from some edge up to the root. By definition
    (Shin et al., AAAI 2025), GAtt is the sum over the flows :math:`\lambda` that start with an edge

    .. math:: \phi^v_{i,j} = \sum_{\lambda} \alpha[\lambda](1) \prod_{k \ge 2} \alpha[\lambda](k)

    Args:
        attention: The attention of the network.
        target: The node at the root.
        heads: The head to read in each layer; None averages all heads.
        max_nodes: Maximum size of the tree.
        prune: If the tree is larger, keep the `max_nodes` occurrences with the highest product of attention on their
            path to the root, instead of raising.

    Attributes:
        nodes: The occurrences, breadth first.
        size: Number of occurrences in the whole tree.

    The paper's worked example, with node 27 as 0 and node 40 as 1: edge (1 -> 0) starts two flows.

    >>> from attree.attention import Graph
    >>> graph = Graph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> first_and_last = torch.tensor([[0.9, 0.1, 1.0], [0.25, 0.25, 1.0]], dtype=torch.float64)
    >>> tree = ComputationTree(Attention.from_weights(graph, list(first_and_last)), target=0)
    >>> tree.flows(edge=0)
    [Flow(edges=(0,), attention=(0.25,)), Flow(edges=(0, 1), attention=(0.9, 0.25))]
    >>> round(tree.gatt()[0], 6)  # 0.25 + 0.9 * 0.25
    0.475
    """

    def __init__(
        self,
        attention: Attention,
        target: int,
        heads: Sequence[int] | None = None,
        max_nodes: int = 100_000,
        prune: bool = False,
    ) -> None:
        expect_instance(attention, "attention", Attention)
        expect_bool(prune, "prune")
        if heads is not None:
            heads = expect_ints(heads, "heads", "head numbers, one per layer, or None")
        attention.check_chain()
        attention = attention.walked
        graph, num_layers = attention.graph, attention.num_layers
        target = expect_int(target, "target", 0, graph.num_nodes - 1)
        expect_int(max_nodes, "max_nodes", 1)
        size = tree_size(attention, target)
        fits = prune or size <= max_nodes
        expect(fits, "target", f"a node whose tree has at most `max_nodes` = {max_nodes} nodes", size)
        self.graph = graph
        self.target = target
        self.num_layers = num_layers
        self.size = size
        self.nodes = _grow(attention, target, attention.per_edge(heads), max_nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def levels(self) -> list[list[TreeNode]]:
        """Return the tree's nodes by depth, root first."""
        levels: list[list[TreeNode]] = [[] for _ in range(self.num_layers + 1)]
        for occurrence in self.nodes:
            levels[occurrence.depth].append(occurrence)
        return levels

    def flows(self, edge: int | None = None) -> list[Flow]:
        """Return all flows, shortest first, or those that start with one edge (an id in `graph.edge_index`)."""
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
        """Return GAtt of every edge that starts a flow: the sum over its flows of the product of attention."""
        return {
            edge: math.fsum(math.prod(flow.attention) for flow in flows) for edge, flows in self._by_first().items()
        }

    def gatt_sim(self) -> dict[int, float]:
        """Return GAtt without contribution adjustment: the sum over the flows of the first edge's attention."""
        return {edge: math.fsum(flow.attention[0] for flow in flows) for edge, flows in self._by_first().items()}

    def gatt_avg(self) -> dict[int, float]:
        """Return GAtt without the proximity effect: the mean over the flows instead of the sum."""
        flows = self._by_first()
        return {edge: score / len(flows[edge]) for edge, score in self.gatt().items()}

    def _by_first(self) -> dict[int, list[Flow]]:
        expect(len(self) == self.size, "tree", f"whole, with all of its {self.size} nodes", f"{len(self)} of them")
        flows: dict[int, list[Flow]] = {}
        for flow in self.flows():
            flows.setdefault(flow.edges[0], []).append(flow)
        return flows

    def to_networkx(self) -> nx.DiGraph:
        """Return the tree as a directed graph towards the root, for drawing.

        Nodes have the attributes `node` and `depth`, edges have `edge`, `layer` and `attention`.
        """
        import networkx as nx

        tree = nx.DiGraph()
        for position, occurrence in enumerate(self.nodes):
            tree.add_node(position, node=occurrence.node, depth=occurrence.depth)
            if occurrence.parent >= 0:
                tree.add_edge(
                    position,
                    occurrence.parent,
                    edge=occurrence.edge,
                    layer=occurrence.layer,
                    attention=occurrence.attention,
                )
        return tree


def tree_size(attention: Attention, target: int) -> int:
    """Return the number of nodes of the target's computation tree, counted without building it."""
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


def _grow(attention: Attention, target: int, alphas: list[torch.Tensor], max_nodes: int) -> list[TreeNode]:
    """Return the occurrences with the highest products of attention up to the root, at most `max_nodes`, breadth first.

    No weight is above 1, so a product is at most that of its parent. So the parents of all kept occurrences are kept.
    """
    graph, num_layers = attention.graph, attention.num_layers
    occurrences: list[TreeNode] = []
    # Among equal products, nearer to the root goes first, then first listed.
    waiting = [(-1.0, 0, 0, TreeNode(target, 0, -1, -1, num_layers + 1, 1.0))]
    num_pushed = 1
    while waiting and len(occurrences) < max_nodes:
        product, depth, _, occurrence = heapq.heappop(waiting)
        position, layer = len(occurrences), num_layers - depth
        occurrences.append(occurrence)
        if layer == 0:
            continue
        begin, end = graph.entering.ptr[occurrence.node : occurrence.node + 2].tolist()
        edges = graph.entering.items[begin:end]
        present = attention.present[layer - 1]
        edges = edges if present is None else edges[present[edges]]
        columns = (edges.tolist(), graph.source[edges].tolist(), alphas[layer - 1][edges].tolist())
        for edge, source, weight in zip(*columns, strict=True):
            factor = 0.0 if math.isnan(weight) else min(max(weight, 0.0), 1.0)
            node = TreeNode(source, depth + 1, position, edge, layer, weight)
            heapq.heappush(waiting, (product * factor, depth + 1, num_pushed, node))
            num_pushed += 1
    return _breadth_first(occurrences)


def _breadth_first(nodes: list[TreeNode]) -> list[TreeNode]:
    """Return the occurrences level by level; children of one parent are in the order of their edges."""
    children: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes[1:], 1):
        children[node.parent].append(position)
    order, place = [0], {0: 0}
    for position in order:  # grows while it is walked
        for child in sorted(children[position], key=lambda child: nodes[child].edge):
            place[child] = len(order)
            order.append(child)
    return [nodes[0], *(nodes[position]._replace(parent=place[nodes[position].parent]) for position in order[1:])]


@dataclass(frozen=True)
class AttentionPath:
    """A path through the layers of a network into a target, from the last layer to a first one.

    Attributes:
        nodes: The nodes, from the one that the output reads to the one whose features enter a first layer; L + 1.
        edges: The edges between them, as ids in `graph.edge_index`, the last layer's first; L. Self-loops are included.
            If layers run on other edges than the data's: the edge that each message comes from, or -1.
        attention: The attention on each edge.
        weight: The product of attention along the path, times the factors of branches and of the readout.
        effects: Effect of reducing each edge alone on the prediction (dPC), by protocol, if measured; NaN for a message
            that comes from no edge.
        names: Names of the nodes, if any.
    """

    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    attention: tuple[float, ...]
    weight: float
    effects: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    names: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """Return the path as text: `17 <- 4 <- 9 (0.31)`."""
        names = self.names or tuple(str(node) for node in self.nodes)
        return f"{' <- '.join(names)} ({self.weight:.2g})"


class _Walks(NamedTuple):
    """Partial paths that end at the same layer: the node that each has reached, and its last step.

    Attributes:
        node: The node, [walks].
        weight: The product of attention so far, [walks].
        trace: Position of the last step of each among all stored steps, [walks].
    """

    node: Tensor
    weight: Tensor
    trace: Tensor

    def times(self, factor: float) -> _Walks:
        """Return the same walks with their weights multiplied by a factor."""
        return self._replace(weight=self.weight * factor)

    @classmethod
    def concat(cls, parts: Sequence[_Walks]) -> _Walks:
        """Return the walks of several lists as one."""
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


class _Step(NamedTuple):
    """A step of a walk: from the step before, along an edge of a layer, to a node."""

    before: int
    layer: int
    edge: int
    node: int


def strongest_paths(
    subject: Subject | Attention, target: int, k: int = 5, heads: Sequence[int] | None = None
) -> list[AttentionPath]:
    r"""Return the k paths into a target with the largest product of attention, strongest first.

    .. math:: \max_{v = i_L, i_{L-1}, \ldots, i_0} \; \prod_{m=1}^{L} [\mathbf{A}(m)]_{i_m, i_{m-1}}

    The result is exact, without listing all paths: from the last layer to the first, each node keeps the k best paths
    that reach it, because the rest of a path depends on the node alone. GAtt sums these products over all paths.
    Branches are followed as they feed one another; skips are not followed.

    Args:
        subject: The subject to explain, or its attention alone.
        target: A node, a link, or a graph; paths of the latter two start at any node that they read.
        k: Maximum number of paths; paths of weight 0 are not returned.
        heads: The head to read in each layer; None averages all heads.

    >>> from attree.attention import Graph
    >>> graph = Graph(torch.tensor([[1], [0]]), num_nodes=2)  # edges: 1 -> 0, then the loops of 0 and of 1
    >>> attention = Attention.from_weights(graph, [torch.tensor([0.8, 0.2, 1.0]), torch.tensor([0.25, 0.75, 1.0])])
    >>> for path in strongest_paths(attention, 0, k=2):
    ...     print(path)
    0 <- 0 <- 1 (0.6)
    0 <- 1 <- 1 (0.25)
    """
    subject = as_subject(subject)
    if heads is not None:
        heads = expect_ints(heads, "heads", "head numbers, one per layer, or None")
    return paths_from(subject.attention, subject.roots([expect_int(target, "target")]), k, heads)


def paths_from(
    attention: Attention, roots: Roots, k: int = 5, heads: Sequence[int] | None = None
) -> list[AttentionPath]:
    """Do the same as `strongest_paths`, from the roots of one target."""
    expect_instance(attention, "attention", Attention)
    attention = attention.walked
    expect(roots.targets.numel() == 1, "roots", "those of one target", f"{roots.targets.numel()} targets")
    expect_int(k, "k", 1)
    graph, wiring = attention.graph, attention.layout
    alphas = [alpha.to(roots.weight.dtype) for alpha in attention.per_edge(heads)]
    steps = [_Step(-1, -1, -1, node) for node in roots.node.tolist()]
    start = _Walks(roots.node, roots.weight, torch.arange(len(steps), device=graph.device))
    walks_into: dict[int, _Walks] = {}
    for layer in reversed(range(len(alphas))):
        # Walks that reach the layer's output: from the output of the model and from later layers that read it.
        parts = [walks_into[later].times(factor) for later, factor in wiring.feeds[layer]]
        parts += [start.times(wiring.shares[layer])] if wiring.shares[layer] else []
        walks = _Walks.concat(parts) if parts else start.times(0.0)
        before, place = expand(graph.entering.ptr, walks.node)
        edge = graph.entering.items[place]
        weight = walks.weight[before] * alphas[layer][edge]  # 0 on edges that the layer does not use
        strongest_steps = _best(graph.source[edge], weight, k)
        node, edge, last = (
            graph.source[edge[strongest_steps]],
            edge[strongest_steps],
            walks.trace[before[strongest_steps]],
        )
        trace = torch.arange(len(steps), len(steps) + strongest_steps.numel(), device=graph.device)
        columns = (last.tolist(), [layer] * strongest_steps.numel(), edge.tolist(), node.tolist())
        steps += [_Step(*step) for step in zip(*columns, strict=True)]
        walks_into[layer] = _Walks(node, weight[strongest_steps], trace)
    fed = {later for feeds in wiring.feeds for later, _ in feeds}
    ends = _Walks.concat([walks for layer, walks in sorted(walks_into.items()) if layer not in fed])
    strongest = ends.weight.abs().argsort(descending=True, stable=True)[:k]
    paths = [_trace(steps, alphas, int(ends.trace[walk]), float(ends.weight[walk])) for walk in strongest.tolist()]
    if not isinstance(graph, MessageGraph):
        return paths
    owner = graph.owner.tolist()
    return [replace(path, edges=tuple(owner[edge] for edge in path.edges)) for path in paths]


def _best(node: Tensor, weight: Tensor, k: int) -> Tensor:
    """Return the positions of each node's k strongest walks; ties keep their order."""
    strength = weight.abs()
    order = strength.argsort(descending=True, stable=True)
    order = order[strength[order] > 0]
    order = order[node[order].argsort(stable=True)]
    _, sizes = node[order].unique_consecutive(return_counts=True)
    begin = pointers(sizes)[:-1].repeat_interleave(sizes)
    rank = torch.arange(order.numel(), device=order.device) - begin
    return order[rank < k]


def _trace(steps: Sequence[_Step], alphas: Sequence[Tensor], last: int, weight: float) -> AttentionPath:
    """Follow a walk from its last step back to the node that the output reads."""
    steps_back = [steps[last]]
    while steps_back[-1].before >= 0:
        steps_back.append(steps[steps_back[-1].before])
    root, *walk = reversed(steps_back)
    return AttentionPath(
        (root.node, *(step.node for step in walk)),
        tuple(step.edge for step in walk),
        tuple(float(alphas[step.layer][step.edge]) for step in walk),
        weight,
    )
