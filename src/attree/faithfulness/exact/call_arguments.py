"""Arguments of calls of a convolution and of its `propagate`: what belongs to nodes, to edges, and to neither.

A layer without attention is run by its own `forward`, on rows too. Only its `propagate`, which reads edges, is
replaced. Everything before and after it (linear layers, root weights, norms) works node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing

from attree.attention.graph import Graph, edge_ids, find_type, plain
from attree.attention.instruments import is_edge_index
from attree.faithfulness.exact.convolution_algebra import LayerAlgebra
from attree.faithfulness.exact.layer_graph import LayerGraph, all_relations, one_relation
from attree.subject.model_call import NotRowwiseError
from attree.tensors.arrays import take_rows

ABOUT_EDGES = frozenset({"edge_index", "index", "ptr", "size", "dim_size", "adj_t"})
"""Names of arguments of `message` that PyG derives from the edges and the numbers of nodes."""


def message_arguments(conv: MessagePassing) -> list[str]:
    """Return the names of the arguments of a layer's `message`, `aggregate` and `update`."""
    names = dict.fromkeys(_parameters(_function(conv.message))[1:])
    for method in (conv.aggregate, conv.update):
        names |= dict.fromkeys(_parameters(_function(method))[2:])
    return list(names)


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


@lru_cache(maxsize=1024)
def _parameters(function: Any) -> list[str]:
    return list(signature(function).parameters)


def node_arguments(conv: MessagePassing) -> set[str]:
    """Return the names of arguments of `propagate` that hold node features: those that are read as `_i` or `_j`."""
    return {name[:-2] for name in message_arguments(conv) if name[-2:] in ("_i", "_j")} - ABOUT_EDGES


@dataclass(frozen=True)
class MessageArguments:
    """Arguments of one call of `propagate`.

    Attributes:
        edge_index: The edges.
        nodes: Node features by name, at sources and at destinations; None on a side where there are none.
        edges: Tensors with one row per edge, by name.
        others: All other arguments, by name.
        has_types: Whether sources and destinations are nodes of one edge type, numbered separately.
    """

    edge_index: Any
    nodes: dict[str, tuple[Tensor | None, Tensor | None]]
    edges: dict[str, Tensor]
    others: dict[str, Any]
    has_types: bool = False

    @classmethod
    def read(
        cls, conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any], has_types: bool
    ) -> MessageArguments:
        """Read the arguments of a call; raise if they are not those of a layer on a list of edges."""
        name = type(conv).__name__
        arguments = dict(kwargs)
        edge_index = plain(args[0] if args else arguments.pop("edge_index", None))
        if len(args) < 2:
            arguments.pop("size", None)
        if len(args) > 2 or not is_edge_index(edge_index):
            raise NotRowwiseError(f"{name} does not pass messages along edges that are a tensor")
        if conv.flow != "source_to_target":
            raise NotRowwiseError(f"{name} has flow {conv.flow!r}")
        names, of_nodes, nodes, edges, others = message_arguments(conv), node_arguments(conv), {}, {}, {}
        for key, value in arguments.items():
            if key in of_nodes and value is not None:
                sides = tuple(value) if isinstance(value, list | tuple) else _sides_of(value, key, names)
                if len(sides) != 2 or not all(
                    side is None or (isinstance(side, Tensor) and side.dim()) for side in sides
                ):
                    raise NotRowwiseError(f"{name} does not pass on features of nodes that are tensors")
                if any(side is not None and conv.node_dim not in (0, -side.dim()) for side in sides):
                    raise NotRowwiseError(f"{name} has its nodes in dimension {conv.node_dim}")
                nodes[key] = sides
            elif isinstance(value, Tensor) and value.dim() and value.shape[0] == edge_index.shape[1]:
                edges[key] = value
            else:
                others[key] = value
        if not any(source is not None for source, _ in nodes.values()):
            raise NotRowwiseError(f"{name} sends messages that read no features of their sources")
        return cls(edge_index, nodes, edges, others, has_types)

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors with one row per node, each once."""
        return [tensor for tensor, _ in self._by_side]

    @property
    def sides(self) -> list[int]:
        """For each of `inputs`: 1 if it belongs to destinations of another numbering than the sources, else 0."""
        return [side for _, side in self._by_side]

    @property
    def num_sides(self) -> int:
        """2 if sources and destinations are numbered separately, else 1."""
        return 2 if self.has_types else 1

    @property
    def _by_side(self) -> list[tuple[Tensor, int]]:
        seen: dict[tuple[int, int], tuple[Tensor, int]] = {}
        for pair in self.nodes.values():
            for side, tensor in enumerate(pair):
                if tensor is not None:
                    place = side if self.has_types else 0
                    seen.setdefault((id(tensor), place), (tensor, place))
        return list(seen.values())

    def answer(self, outputs: Sequence[Tensor], weights: Tensor | None, graph: Graph) -> Tensor:
        """Return what `propagate` would return."""
        return outputs[0]


def _sides_of(value: Any, name: str, names: list[str]) -> tuple[Any, Any]:
    """Return one argument for both sides, or only for the one at which messages read it."""
    at_source, at_target = (f"{name}{end}" in names for end in ("_j", "_i"))
    return value if at_source else None, value if at_target else None


def given_edges(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the edges that a layer was called with: its first [2, E] id tensor; None if there is none."""
    return next((plain(value) for value in (*args, *kwargs.values()) if is_edge_index(plain(value))), None)


def given_weights(conv: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the edge weights that a layer was called with, if its `forward` takes an `edge_weight`."""
    try:
        arguments = signature(type(conv).forward).bind(conv, *args, **kwargs).arguments
    except TypeError:
        return None
    weight = arguments.get("edge_weight")
    return weight if isinstance(weight, Tensor) and weight.dim() == 1 else None


def as_columns(values: Tensor, like: Tensor) -> Tensor:
    """Return one number per row as a tensor that multiplies rows of another tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))


_signature = cache(signature)


@dataclass(frozen=True)
class ConvArguments:
    """Arguments of one call of a convolution.

    Attributes:
        inputs: Node features: one tensor; for a heterogeneous graph, those of sources and destinations, or one per
            type.
        edge_index: Edges; a dict if the call has several relations.
        features: Edge features, if any.
        wants_weights: Whether the caller also wants the attention weights.
        types: The node type of each input, if the call gets a dict.
        returned: The node types whose rows the call returns, if it gets a dict.
    """

    inputs: tuple[Tensor, ...]
    edge_index: Any
    features: Tensor | None = None
    wants_weights: bool = False
    types: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def x(self) -> Tensor:
        """Node features, if they are one tensor."""
        return self.inputs[0]

    @property
    def sides(self) -> range:
        """For each of `inputs`, the number of the nodes that it belongs to: each has its own."""
        return range(len(self.inputs))

    @property
    def num_sides(self) -> int:
        """Number of inputs."""
        return len(self.inputs)

    @classmethod
    def read(cls, algebra: LayerAlgebra, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ConvArguments:
        """Read the arguments of a call; raise if the algebra does not know one of them."""
        name = type(algebra.conv).__name__
        by_name = _signature(type(algebra.conv).forward).bind(algebra.conv, *args, **kwargs).arguments
        by_name.pop("self", None)
        if "x_dict" in by_name and "edge_index_dict" in by_name:
            rows, edges = by_name["x_dict"], by_name["edge_index_dict"]
            if not all(isinstance(features_of_type, Tensor) for features_of_type in rows.values()):
                raise NotRowwiseError(f"{name} is called with a node type that has no features")
            returned = tuple(kind for kind in rows if kind in algebra.conv.dst_node_types)
            return cls(tuple(rows.values()), edges, types=tuple(rows), returned=returned)
        x, edge_index = by_name.pop("x", None), by_name.pop("edge_index", None)
        features = None if algebra.edge_argument is None else by_name.pop(algebra.edge_argument, None)
        wants_weights = isinstance(by_name.pop("return_attention_weights", None), bool)
        others = [key for key, value in by_name.items() if value is not None and key not in algebra.ignored_arguments]
        if others:
            raise NotRowwiseError(f"{name} is called with `{others[0]}`")
        inputs = tuple(x) if isinstance(x, list | tuple) else (x,)
        if len(inputs) == 2 and inputs[0] is inputs[1]:
            inputs = inputs[:1]
        fit = all(isinstance(features_of_type, Tensor) for features_of_type in inputs) and len(inputs) in (1, 2)
        if not fit or not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            raise NotRowwiseError(f"{name} is not called with features and edges that are tensors")
        if isinstance(edge_index, EdgeIndex):
            edge_index = edge_index.as_tensor()
        return cls(inputs, edge_index, features, wants_weights)

    def answer(self, outputs: Sequence[Tensor], weights: Tensor | None, graph: Graph) -> Any:
        """Return what the convolution would return: its output, and edges with attention if requested.

        Args:
            outputs: The output, or one per destination type.
            weights: The attention, [num_edges, heads].
            graph: The graph with self-loops.
        """
        if self.types:
            return {kind: out for kind, out in zip(self.types, outputs, strict=True) if kind in self.returned}
        if not self.wants_weights:
            return outputs[0]
        assert weights is not None
        return outputs[0], (graph.edge_index, weights.clone())


@dataclass(frozen=True)
class LayerEdges:
    """Edges that one layer runs on.

    Attributes:
        graph: The edges in the call's numbering.
        shift: Term added to each edge's score, [num_edges, 1]: the log of how often the layer has the edge, -inf if
            never; None if it has each edge once. Any edge can be missing, but only self-loops can be repeated.
        features: Edge features, [num_edges, channels]; None if the layer has none.
        refilled: For each edge that is no self-loop, the features of the self-loop at its destination when the edge is
            deleted; None if self-loops keep theirs.
    """

    graph: LayerGraph
    shift: Tensor | None = None
    features: Tensor | None = None
    refilled: Tensor | None = None

    @property
    def present(self) -> Tensor | None:
        """Mask of the graph's edges that the layer has, [num_edges]; None if it has all."""
        if self.graph.edge is not None:
            return self.graph.present
        if self.shift is None or not bool(self.shift.isneginf().any()):
            return None
        return ~self.shift.isneginf().view(-1)

    @classmethod
    def of(cls, algebra: LayerAlgebra, call: ConvArguments, whole: LayerGraph, step: int) -> LayerEdges:
        """Match the edges that a convolution uses with the edges of the graph.

        Args:
            algebra: The convolution's arithmetic.
            call: The arguments of the call.
            whole: All edges of the graph.
            step: The number of this step in the pass.
        """
        graph, name = whole.graph, type(algebra.conv).__name__
        if algebra.conv.flow != "source_to_target":
            raise NotRowwiseError(f"{name} has flow {algebra.conv.flow!r}")
        if graph.types is not None:
            return cls._of_types(algebra, call, graph)
        if len(call.inputs) != 1 or call.x.shape[0] != graph.num_nodes or call.x.dim() != 2:
            raise NotRowwiseError(f"{name} does not run on the nodes of the model's graph")
        adds_loops = getattr(algebra.conv, "add_self_loops", False)
        if adds_loops and call.features is None and call.edge_index is graph.original_edge_index:
            return cls(whole)
        edge_index, features = algebra.edges_used(call.edge_index, _columns(call, algebra), graph.num_nodes)
        ids = edge_ids(graph, call.edge_index, edge_index, step)
        if ids is None:
            raise NotRowwiseError(f"{name} does not run on the edges of the model's graph")
        if torch.equal(edge_index, graph.edge_index):
            return cls(whole, None, features, _refilled(features, ids, graph, algebra))
        count = torch.zeros(graph.num_edges, dtype=algebra.dtype, device=graph.device)
        count.index_add_(0, ids, torch.ones_like(ids, dtype=algebra.dtype))
        shift = None if bool((count == 1).all()) else count.log().unsqueeze(-1)
        on_graph = None if features is None else _on_graph(features, ids, graph, algebra)
        return cls(whole, shift, on_graph, _refilled(on_graph, ids, graph, algebra))

    @classmethod
    def _of_types(cls, algebra: LayerAlgebra, call: ConvArguments, graph: Graph) -> LayerEdges:
        """Match the edges of one relation, or of several relations in one call."""
        types, name = graph.types, type(algebra.conv).__name__
        assert types is not None
        if call.wants_weights:
            raise NotRowwiseError(f"{name} is called to return its attention, too")
        if call.types:
            kinds = {kind: find_type(graph, edges) for kind, edges in call.edge_index.items()}
            are_the_graphs = call.types == types.node_types and all(
                kind == edge_type for kind, edge_type in kinds.items()
            )
            if not are_the_graphs or any(
                x.dim() != 2 or x.shape[0] != len(types.nodes(kind))
                for kind, x in zip(call.types, call.inputs, strict=True)
            ):
                raise NotRowwiseError(f"{name} does not run on the nodes and edges of the model's graph")
            return cls(all_relations(graph, tuple(kinds), call.types))
        kind = find_type(graph, call.edge_index)
        if kind is None:
            raise NotRowwiseError(f"{name} does not run on the edges of one relation")
        ends = (kind[0], kind[2])[-len(call.inputs) :]
        sizes = [len(types.nodes(end)) for end in ends]
        if len(call.inputs) == 1 and kind[0] != kind[2]:
            raise NotRowwiseError(f"{name} gets features of one node type for a relation between two types")
        if any(x.dim() != 2 or x.shape[0] != size for x, size in zip(call.inputs, sizes, strict=True)):
            raise NotRowwiseError(f"{name} does not run on the nodes of the model's graph")
        used, features = algebra.edges_used(call.edge_index, _columns(call, algebra), min(sizes))
        ids = edge_ids(graph, call.edge_index, used)
        if ids is None or ids.unique().numel() != ids.numel():
            raise NotRowwiseError(f"{name} does not run on each edge of one relation once")
        return cls(one_relation(graph, kind, ids, ends), None, features)


def _columns(call: ConvArguments, algebra: LayerAlgebra) -> Tensor | None:
    """Return edge features as a matrix with one row per edge."""
    features = call.features
    if features is None:
        return None
    return (features.unsqueeze(-1) if features.dim() == 1 else features).to(algebra.dtype)


def _refilled(features: Tensor | None, ids: Tensor, graph: Graph, algebra: LayerAlgebra) -> Tensor | None:
    """Return the features of the self-loop at the end of each edge without this edge, if they are means or sums.

    Args:
        features: The features of the graph's edges; 0 for edges that the layer does not have.
        ids: The edges that the layer has.
        graph: The graph.
        algebra: The convolution's arithmetic.
    """
    fill = getattr(algebra.conv, "fill_value", None)
    if features is None or not getattr(algebra.conv, "add_self_loops", False) or fill not in ("mean", "add", "sum"):
        return None
    features, end = features[: graph.num_proper_edges], graph.destination[: graph.num_proper_edges]
    left = take_rows(features.new_zeros(graph.num_nodes, features.shape[1]).index_add_(0, end, features), end)
    left -= features
    if fill == "mean":
        is_present = torch.zeros_like(end).index_fill_(0, ids[ids < graph.num_proper_edges], 1)
        count = end.new_zeros(graph.num_nodes).index_add_(0, end, is_present)
        left /= (take_rows(count, end) - is_present).clamp(min=1).unsqueeze(1)
    return left


def _on_graph(features: Tensor, ids: Tensor, graph: Graph, algebra: LayerAlgebra) -> Tensor:
    """Return edge features in the graph's order; raise if the self-loops of a node have different features."""
    out = features.new_zeros(graph.num_edges, features.shape[1])
    out[ids] = features
    if not torch.equal(out[ids], features):
        raise NotRowwiseError(
            f"{type(algebra.conv).__name__} has several self-loops at one node, of different edge features"
        )
    return out
