"""The edge list of all attention weights, and the ids in it of the edges that a convolution uses.

Every per-edge array in attree is aligned with `Graph.edge_index`. PyG's attention convolutions use the same order (they
drop self-loops, then append one per node), so their weights need no reordering.

A heterogeneous graph becomes one such graph, too: the *union* of its types. Nodes are numbered type by type, and so are
edges. `Graph.types` has the types.

A convolution may drop, add or move self-loops, and run on the edges of one type, or of several types in one list.
`edge_ids` finds these edges in `Graph.edge_index`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from attree.errors import expect
from attree.tensors.arrays import Rows, check_edge_index, group, is_same_view

EdgeType = tuple[str, str, str]
"""Source type, relation and destination type, as PyG names edges."""


@dataclass(frozen=True)
class Types:
    """Node and edge types of a union graph. Nodes of a type have consecutive ids, and so have edges.

    Attributes:
        node_types: Names of node types, in the order of their nodes.
        node_ptr: Type k has the nodes `node_ptr[k]` to `node_ptr[k + 1]`.
        edge_types: Names of edge types, in the order of their edges.
        edge_ptr: Type k has the given edges `edge_ptr[k]` to `edge_ptr[k + 1]`.

    >>> types = Types.of({"user": 3, "item": 2}, {("user", "buys", "item"): 4})
    >>> types.nodes("item"), types.node_type(3), types.edges(("user", "buys", "item"))
    (range(3, 5), 'item', range(0, 4))
    """

    node_types: tuple[str, ...]
    node_ptr: tuple[int, ...]
    edge_types: tuple[EdgeType, ...]
    edge_ptr: tuple[int, ...]

    @classmethod
    def of(cls, num_nodes: Mapping[str, int], num_edges: Mapping[EdgeType, int]) -> Types:
        """Number the nodes and edges of all types, given how many there are of each."""
        node_ptr, edge_ptr = (tuple(accumulate(sizes.values(), initial=0)) for sizes in (num_nodes, num_edges))
        return cls(tuple(num_nodes), node_ptr, tuple(num_edges), edge_ptr)

    def nodes(self, node_type: str) -> range:
        """Return the ids of the nodes of one type."""
        expect(node_type in self.node_types, "node_type", f"one of {', '.join(self.node_types)}", node_type)
        place = self.node_types.index(node_type)
        return range(self.node_ptr[place], self.node_ptr[place + 1])

    def edges(self, edge_type: EdgeType) -> range:
        """Return the positions of the edges of one type among all given edges."""
        expect(edge_type in self.edge_types, "edge_type", f"one of {list(self.edge_types)}", edge_type)
        place = self.edge_types.index(edge_type)
        return range(self.edge_ptr[place], self.edge_ptr[place + 1])

    def node_type(self, node: int) -> str:
        """Return the type of a node."""
        return next(kind for kind in self.node_types if node in self.nodes(kind))

    def type_of_nodes(self, nodes: Tensor) -> Tensor:
        """Return, for each node, the position of its type in `node_types`."""
        return _interval(self.node_ptr, nodes)

    def type_of_edges(self, edges: Tensor) -> Tensor:
        """Return, for each given edge, the position of its type in `edge_types`."""
        return _interval(self.edge_ptr, edges)

    def local(self, nodes: Tensor) -> Tensor:
        """Return the numbers of nodes within their types."""
        return nodes - torch.tensor(self.node_ptr, device=nodes.device)[self.type_of_nodes(nodes)]

    def names(self, nodes: Tensor) -> list[str]:
        """Return the names of nodes: type and number within the type, as in `paper 3`."""
        kinds, numbers = self.type_of_nodes(nodes).tolist(), self.local(nodes).tolist()
        return [f"{self.node_types[kind]} {number}" for kind, number in zip(kinds, numbers, strict=True)]

    def union(self, node_type: str, nodes: Tensor) -> Tensor:
        """Return the ids of nodes that are numbered within one type."""
        return nodes + self.nodes(node_type).start

    def split_edges(self, values: Tensor) -> dict[EdgeType, Tensor]:
        """Split values of all given edges, [..., E], by type."""
        bounds = pairwise(self.edge_ptr)
        return {kind: values[..., begin:end] for kind, (begin, end) in zip(self.edge_types, bounds, strict=True)}


def _interval(ptr: tuple[int, ...], items: Tensor) -> Tensor:
    return torch.searchsorted(torch.tensor(ptr[1:], device=items.device), items.contiguous(), right=True)


def union_edges(edge_index: Mapping[EdgeType, Tensor], types: Types) -> Tensor:
    """Return the edges of all types as one list with ids of the union, [2, E]."""
    parts = []
    for kind in types.edge_types:
        source, _, destination = kind
        sides = types.nodes(source), types.nodes(destination)
        edges = plain(edge_index[kind])
        check_edge_index(edges, max(len(side) for side in sides), f"edge_index[{kind}]")
        for side, ids in zip(sides, edges, strict=True):
            fits = ids.numel() == 0 or int(ids.max()) < len(side)
            expect(fits, f"edge_index[{kind}]", f"ids in [0, {len(side)})", "larger ones")
        parts.append(torch.stack([ids + side.start for side, ids in zip(sides, edges, strict=True)]))
    return torch.cat(parts, dim=1) if parts else torch.zeros(2, 0, dtype=torch.int64)


@dataclass(frozen=True)
class Origin:
    """The larger graph that a graph was cut from: the ids that nodes and edges have there.

    Attributes:
        nodes: Id of each node, ascending.
        edges: Id of each edge of `Graph.edge_index` in the larger graph's `edge_index`, ascending.
        num_nodes: Number of nodes of the larger graph.
    """

    nodes: Tensor
    edges: Tensor
    num_nodes: int


class Messages(Protocol):
    """The edges that the messages of a pass come from, see `attree.attention.message_edges`."""

    def owners(self, step: int, edge_index: Tensor) -> Tensor | None:
        """Return the position of each message's edge in the given edges, -1 for none; None for steps without trace."""


class Graph:
    """A graph with exactly one self-loop per node, and the positions of the given edges in it.

    In a union of types, given self-loops stay edges of their type. The self-loops at the end stand for those that a
    convolution may add. Results do not list self-loops that no layer uses.

    Args:
        edge_index: The given edges, [2, E]. Given self-loops are merged with the self-loop of their node; duplicate
            edges are kept.
        num_nodes: Number of nodes.
        types: Node and edge types of a heterogeneous graph; None if all are of one type.

    Attributes:
        origin: The larger graph that this graph was cut from; None if it is whole.
        messages: The edges that messages come from, for layers that do not run on the edges of this graph in their
            order; None if there are none, or if they were not traced.
        message_graph: The graph of all messages, if some have other ends than an edge of this graph; otherwise None.

    >>> graph = Graph(torch.tensor([[0, 1, 1], [1, 1, 2]]), num_nodes=3)
    >>> graph.edge_index.tolist()
    [[0, 1, 0, 1, 2], [1, 2, 0, 1, 2]]
    >>> graph.position.tolist()  # positions of the three given edges
    [0, 3, 1]
    """

    def __init__(self, edge_index: Tensor, num_nodes: int, types: Types | None = None) -> None:
        check_edge_index(edge_index, num_nodes)
        edge_index = plain(edge_index)
        self.num_nodes = num_nodes
        self.types = types
        self.origin: Origin | None = None
        self.messages: Messages | None = None
        self.message_graph: Graph | None = None
        self.original_edge_index = edge_index
        proper = edge_index[0] != edge_index[1] if types is None else torch.ones_like(edge_index[0], dtype=torch.bool)
        self.num_proper_edges = int(proper.sum())
        nodes = torch.arange(num_nodes, device=edge_index.device)
        self.edge_index = torch.cat([edge_index[:, proper], nodes.expand(2, -1)], dim=1)
        # Proper edges keep their order; the self-loop of node i is at position num_proper_edges + i.
        self.position = torch.where(proper, proper.cumsum(0) - 1, self.num_proper_edges + edge_index[0])

    @classmethod
    def of_types(cls, edge_index: Mapping[EdgeType, Tensor], num_nodes: Mapping[str, int]) -> Graph:
        """Return the union of a heterogeneous graph.

        Args:
            edge_index: The edges of each type; nodes are numbered within their types.
            num_nodes: The number of nodes of each type.

        >>> buys = {("user", "buys", "item"): torch.tensor([[0, 2], [1, 1]])}
        >>> Graph.of_types(buys, {"user": 3, "item": 2}).original_edge_index.tolist()
        [[0, 2], [4, 4]]
        """
        types = Types.of(num_nodes, {kind: edges.shape[1] for kind, edges in edge_index.items()})
        graph = cls(union_edges(edge_index, types), types.node_ptr[-1], types)
        # Keep the tensors themselves: the type of a convolution's edges is recognised by the same tensor.
        graph.__dict__["typed_edges"] = {kind: plain(edges) for kind, edges in edge_index.items()}
        return graph

    @cached_property
    def typed_edges(self) -> dict[EdgeType, Tensor]:
        """The given edges of each type, with nodes numbered within their types; empty for a graph of one type."""
        if self.types is None:
            return {}
        types, by_type = self.types, {}
        for kind, edges in types.split_edges(self.original_edge_index).items():
            first = torch.tensor([[types.nodes(kind[0]).start], [types.nodes(kind[2]).start]], device=self.device)
            by_type[kind] = edges - first
        return by_type

    def nodes(self, node_type: str | None) -> range:
        """Return the ids of the nodes of one type, or of all nodes in a graph of one type."""
        return range(self.num_nodes) if self.types is None or node_type is None else self.types.nodes(node_type)

    def whole_nodes(self, nodes: Tensor) -> Tensor:
        """Return the ids that nodes have in the graph that this graph was cut from; without one, their own."""
        return nodes if self.origin is None else self.origin.nodes[nodes]

    def whole_ids(self, nodes: Sequence[int]) -> list[int]:
        """Return `whole_nodes` of a list, for texts and pictures."""
        return list(nodes) if self.origin is None else self.origin.nodes[list(nodes)].tolist()

    def whole_edges(self, edges: Tensor) -> Tensor:
        """Return the ids that edges have in the graph that this graph was cut from; without one, their own."""
        return edges if self.origin is None else self.origin.edges[edges]

    @property
    def num_edges(self) -> int:
        """Number of edges, self-loops included."""
        return self.edge_index.shape[1]

    @property
    def source(self) -> Tensor:
        """Source of each edge, [num_edges]."""
        return self.edge_index[0]

    @property
    def destination(self) -> Tensor:
        """Destination of each edge, [num_edges]."""
        return self.edge_index[1]

    @property
    def device(self) -> torch.device:
        """Device of every tensor of this graph."""
        return self.edge_index.device

    @cached_property
    def entering(self) -> Rows:
        """Edges grouped by destination; attention is normalised over each group."""
        return group(self.destination, self.num_nodes)

    @cached_property
    def given_entering(self) -> Rows:
        """Given edges (positions in `original_edge_index`) grouped by destination."""
        return group(self.original_edge_index[1], self.num_nodes)

    @cached_property
    def entering_source(self) -> Tensor:
        """`source` in the order of `entering.items`."""
        return self.source[self.entering.items]

    @cached_property
    def entering_destination(self) -> Tensor:
        """`destination` in the order of `entering.items`, ascending."""
        return self.destination[self.entering.items]

    @cached_property
    def entering_rank(self) -> Tensor:
        """For each edge, its position in its row of `entering`."""
        ptr, edges = self.entering
        rank = torch.empty_like(edges)
        rank[edges] = torch.arange(self.num_edges, device=self.device) - ptr[self.destination[edges]]
        return rank

    def to_original(self, values: Tensor) -> Tensor:
        """Return the values of the given edges: [..., num_edges] to [..., E]."""
        return values[..., self.position]

    @property
    def walked(self) -> Graph:
        """The graph that flows follow: that of all messages."""
        return self if self.message_graph is None else self.message_graph

    def traced(self, messages: Messages | None, message_graph: Graph | None) -> Graph:
        """Return this graph, with the edges that messages come from."""
        graph = copy.copy(self)
        graph.messages, graph.message_graph = messages, message_graph
        return graph

    def owner_ids(self, edge_index: Tensor, owner: Tensor) -> Tensor:
        """Return the ids of the edges that messages come from; a self-loop comes from that of its node, or from none.

        Args:
            edge_index: The edges along which messages are passed; nodes that are not in this graph come last.
            owner: Their positions among the given edges, -1 for none.
        """
        position = self.position if self.position.numel() else edge_index.new_full((1,), -1)
        ids = torch.where(owner >= 0, position[owner.clamp(min=0)], -1)
        is_loop = (edge_index[0] == edge_index[1]) & (edge_index[0] < self.num_nodes)
        return torch.where(is_loop, self.num_proper_edges + edge_index[0], ids)

    def matches(self, edge_index: Tensor, num_nodes: int) -> bool:
        """Whether this is the graph of `edge_index`; compares values, which is cheaper than building a graph."""
        return (
            self.num_nodes == num_nodes
            and self.device == edge_index.device
            and torch.equal(self.original_edge_index, plain(edge_index))
        )


def plain(edge_index: Any) -> Any:
    """Return the plain tensor of PyG's `EdgeIndex`, without its metadata; any other value is returned unchanged."""

    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index


def owner_ids(graph: Graph, given_edges: Any, edge_index: Any, step: int) -> Tensor | None:
    """Return the id in `graph.edge_index` of the edge that each message comes from, -1 for none; None if not known.

    Args:
        graph: The graph that the model runs on.
        given_edges: The edges that the convolution was called with: a tensor, or a dict by edge type.
        edge_index: The edges that the convolution passes to `propagate` or `edge_updater`, [2, edges].
        step: The number of the step in its pass.
    """
    edge_index = plain(edge_index)
    owner = None
    if graph.messages is not None and isinstance(edge_index, Tensor) and edge_index.layout == torch.strided:
        owner = graph.messages.owners(step, edge_index)
    return edge_ids(graph, given_edges, edge_index) if owner is None else graph.owner_ids(edge_index, owner)


def edge_ids(graph: Graph, given_edges: Any, edge_index: Any, step: int | None = None) -> Tensor | None:
    """Return the id of each edge of a convolution in `graph.edge_index`; None if it uses edges that are not there.

    Args:
        graph: The graph that the model runs on.
        given_edges: The edges that the convolution was called with: a tensor, or a dict by edge type.
        edge_index: The edges that the convolution passes to `propagate` or `edge_updater`, [2, edges].
        step: The number of the step in its pass; None for edges in the order of the graph only.
    """
    if step is not None and graph.messages is not None:
        ids = owner_ids(graph, given_edges, edge_index, step)
        is_there = ids is not None and bool((ids >= 0).all()) and torch.equal(graph.edge_index[:, ids], edge_index)
        return ids if is_there else None
    edge_index = plain(edge_index)
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        return None
    if graph.types is None:
        return _ids_with_loops(edge_index, graph.edge_index[:, : graph.num_proper_edges])
    if isinstance(given_edges, Mapping):
        kind = find_type(graph, edge_index)
        return (
            _ids_of_several_types(graph, given_edges, edge_index)
            if kind is None
            else _ids_of_one_type(graph, kind, edge_index)
        )
    kind = find_type(graph, given_edges)
    return None if kind is None else _ids_of_one_type(graph, kind, edge_index)


def find_type(graph: Graph, edge_index: Any) -> EdgeType | None:
    """Return the edge type with these edges: the same tensor, memory or values; None if no or several types match."""
    same_object, types = edge_index, graph.types
    edge_index = plain(edge_index)
    if types is None or not isinstance(edge_index, Tensor) or edge_index.dim() != 2:
        return None
    typed_edges = graph.typed_edges
    matching = [kind for kind, edges in typed_edges.items() if edges is edge_index or edges is same_object]
    matching = matching or [
        kind for kind, edges in typed_edges.items() if edges.numel() and is_same_view(edges, edge_index)
    ]
    matching = matching or [kind for kind, edges in typed_edges.items() if torch.equal(edges, edge_index)]
    return matching[0] if len(matching) == 1 else None


def _ids_of_one_type(graph: Graph, kind: EdgeType, edge_index: Tensor) -> Tensor | None:
    """Return the ids of the edges of one type; the convolution may have dropped or added self-loops."""
    types = graph.types
    assert types is not None
    typed_edges, first = graph.typed_edges[kind], types.edges(kind).start
    if edge_index.shape == typed_edges.shape and torch.equal(edge_index, typed_edges):
        return torch.arange(first, first + typed_edges.shape[1], device=graph.device)
    if kind[0] != kind[2]:
        return None
    proper = typed_edges[0] != typed_edges[1]
    start = types.nodes(kind[0]).start
    loops = torch.arange(len(types.nodes(kind[0])), device=graph.device) + graph.num_proper_edges + start
    # A given self-loop is an edge of its type, even if the convolution moves it to the end.
    loops[typed_edges[0, ~proper]] = (~proper).nonzero().view(-1) + first
    numbers = _ids_with_loops(edge_index, typed_edges[:, proper])
    return None if numbers is None else torch.cat([proper.nonzero().view(-1) + first, loops])[numbers]


def _ids_with_loops(edge_index: Tensor, proper: Tensor) -> Tensor | None:
    """Return edge numbers in which self-loops come last, in the order of nodes; other edges keep their order."""
    is_proper = edge_index[0] != edge_index[1]
    if not torch.equal(edge_index[:, is_proper], proper):
        return None
    return torch.where(is_proper, is_proper.cumsum(0) - 1, proper.shape[1] + edge_index[0])


def _ids_of_several_types(graph: Graph, given_edges: Mapping[Any, Any], edge_index: Tensor) -> Tensor | None:
    """Return the ids in `Graph.edge_index` of the edges of several types in one list, as in HGT; None for others.

    Each type has its own offset of node numbers.
    """
    types = graph.types
    assert types is not None
    parts, begin = [], 0
    for kind, edges in given_edges.items():
        edges = plain(edges)
        if kind not in types.edge_types or not isinstance(edges, Tensor):
            return None
        moved = edge_index[:, begin : begin + edges.shape[1]]
        typed_edges = graph.typed_edges[kind]
        if moved.shape != typed_edges.shape or edges.shape != typed_edges.shape:
            return None
        offset = moved - typed_edges
        if typed_edges.numel() and not (torch.equal(edges, typed_edges) and bool((offset == offset[:, :1]).all())):
            return None
        parts.append(torch.arange(types.edges(kind).start, types.edges(kind).stop, device=graph.device))
        begin += edges.shape[1]
    return torch.cat(parts) if parts and begin == edge_index.shape[1] else None
