"""One call of a model, the same call on a part of the graph, and the check that the part suffices.

Every engine runs the model through a `ModelCall`. Only this class knows how to call the model.

The check runs the model on the part between two decoys: copies with loud noise as features, one before and one after
the part. The order of targets is reversed, and one target occurs twice. If the outputs equal those on the whole graph,
the model reads neither other nodes nor the position of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from attree.attention.bypass_and_locality import with_noise
from attree.attention.capture import check_model, describe_arguments, graph_of
from attree.attention.graph import Graph, Types, plain, union_edges
from attree.attention.message_edges import MessageEdges, PartMessageEdges
from attree.attention.stand_ins import eval_mode, stand_in
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.arguments import Kind, LinkArguments, argument_kinds, model_name, parameters, typed_kind
from attree.subject.graph_part import Cut, Part, Take, TypedCut, take_index
from attree.tensors.precision import difference


class Convention(Protocol):
    """Calling convention of a model that takes a whole graph instead of separate arguments."""

    def without(self, name: str) -> Convention:
        """Return the same convention without one argument."""

    def __call__(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        """Call the model with arguments by name."""


@dataclass(frozen=True)
class ModelCall:
    """The arguments of one call of a model.

    Attributes:
        model: The model that runs.
        values: All arguments, positional arguments first.
        names: The name of each argument; an empty string if it is not known.
        num_positional: Number of positional arguments; the others are passed by name.
        edges_at: Position of the edge list [2, E], or of the dict of edge lists by type.
        features_at: Position of the main input, which has one row per node; None if there is none.
        num_nodes: Number of nodes of all types.
        convention: How to call the model; None passes the arguments.
        types: The node and edge types of a heterogeneous graph; None if all are of one type.
        node_type: The node type to explain, if the model returns a dict by node type.
        original: The user's model, if `model` is a stand-in of it.
        messages: The edges that messages come from, for layers that do not run on the given edges in their order; None
            if there are none, or if they were not traced.
        links: How the model takes the links to predict, if not as one tensor [2, P]; None if it does, or takes none.
        kinds: The kind of each argument, in the order of `values`; empty finds them out. A call on a part of the graph
            has those of the call on the whole graph, as they depend on its sizes.
    """

    model: nn.Module
    values: tuple[Any, ...]
    names: tuple[str, ...]
    num_positional: int
    edges_at: int
    features_at: int | None
    num_nodes: int
    convention: Convention | None = None
    types: Types | None = None
    node_type: str | None = None
    original: nn.Module | None = None
    messages: MessageEdges | PartMessageEdges | None = None
    links: LinkArguments | None = None
    kinds: tuple[Kind, ...] = ()

    def __post_init__(self) -> None:
        """Find out the kinds of the arguments, unless they are known."""
        if not self.kinds:
            object.__setattr__(self, "kinds", self._find_kinds())

    @classmethod
    def of(cls, model: nn.Module, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> ModelCall:
        """Return the call `model(x, edge_index, *args, **kwargs)`; for heterogeneous graphs, both are dicts by type."""
        check_model(model)
        types, num_nodes = None, 0
        if isinstance(x, Mapping) or isinstance(edge_index, Mapping):
            graph = graph_of(x, edge_index)
            types, num_nodes = graph.types, graph.num_nodes
        else:
            for name, value in (("x", x), ("edge_index", edge_index)):
                if not isinstance(value, Tensor):
                    kind = type(value).__name__
                    raise UnsupportedModelError(f"Expected argument `{name}` to be one tensor, but got {kind}.")
            expect(x.dim() >= 1, "x", "one row per node", f"a tensor of shape {tuple(x.shape)}")
            num_nodes = x.shape[0]
        parameter_names = [parameter.name for parameter in parameters(model)][: 2 + len(args)]
        names = parameter_names + [""] * (2 + len(args) - len(parameter_names))
        values = (x, edge_index, *args, *kwargs.values())
        return cls(model, values, (*names, *kwargs), 2 + len(args), 1, 0, num_nodes, types=types)

    @property
    def edge_index(self) -> Tensor:
        """The edge list, [2, E]; for a heterogeneous graph, the edge list of the union of its types."""
        edge_index: Tensor = self.values[self.edges_at] if self.types is None else self._union
        return edge_index

    @cached_property
    def _union(self) -> Tensor:
        assert self.types is not None
        return union_edges(self.values[self.edges_at], self.types)

    @property
    def graph(self) -> Graph:
        """The graph that the model is called on."""
        if self.types is None:
            graph = Graph(plain(self.edge_index), self.num_nodes)
            return graph if self.messages is None else graph.traced(self.messages, None)
        types = self.types
        edges = {kind: self.values[self.edges_at][kind] for kind in types.edge_types}
        return Graph.of_types(edges, {kind: len(types.nodes(kind)) for kind in types.node_types})

    @property
    def x(self) -> Tensor:
        """The main input, with one row per node."""
        if self.features_at is None or self.types is not None:
            got = "it takes none" if self.features_at is None else "it takes a dict by node type"
            raise UnsupportedModelError(
                f"Expected {self.name} to take features of nodes as one tensor, but {got}: methods that change "
                "features do not apply to it."
            )
        x: Tensor = self.values[self.features_at]
        return x

    @property
    def has_features(self) -> bool:
        """Whether the model takes one tensor with one row per node."""
        return self.features_at is not None and self.types is None

    @property
    def features(self) -> Any:
        """The main input: a tensor, or a dict by node type; None if there is none."""
        return None if self.features_at is None else self.values[self.features_at]

    @property
    def name(self) -> str:
        """Class name of the model, for messages."""
        return model_name(self.model)

    @property
    def described(self) -> str:
        """The names, shapes and types of the arguments, for messages."""
        return describe_arguments(zip(self.names, self.values, strict=True))

    def _find_kinds(self) -> tuple[Kind, ...]:
        """Return the kind of each argument, in the order of `values`."""
        if (types := self.types) is not None:
            return tuple(
                Kind.EDGES if position == self.edges_at else typed_kind(name, value, types)
                for position, (name, value) in enumerate(zip(self.names, self.values, strict=True))
            )
        others = [position for position in range(len(self.values)) if position not in (self.edges_at, self.features_at)]
        other_kinds = argument_kinds(
            [self.names[position] for position in others],
            [self.values[position] for position in others],
            self.num_nodes,
            self.edge_index.shape[-1],
            self.convention is not None,
        )
        kinds = dict(zip(others, other_kinds, strict=True)) | {self.edges_at: Kind.EDGES}
        if self.features_at is not None:
            kinds[self.features_at] = Kind.NODE
        return tuple(kinds[position] for position in range(len(self.values)))

    def of_kind(self, kind: Kind) -> list[Any]:
        """Return the arguments of one kind."""
        return [value for kind_of_value, value in zip(self.kinds, self.values, strict=True) if kind_of_value is kind]

    @property
    def batch(self) -> Tensor | None:
        """The graph of each node; None if no argument holds it for all nodes."""
        batches = self.of_kind(Kind.BATCH)
        if batches and self.types is not None:
            complete = all(kind in batches[0] for kind in self.types.node_types)
            return torch.cat([batches[0][kind] for kind in self.types.node_types]) if complete else None
        return batches[0] if batches else None

    @property
    def user_model(self) -> nn.Module:
        """The user's model, which is never changed; `model` may be a stand-in of it."""
        return self.model if self.original is None else self.original

    def private(self) -> ModelCall:
        """Return the same call of a new stand-in of the user's model, with its current weights and attributes."""
        user_model = self.user_model
        if any(isinstance(parameter, UninitializedParameter) for parameter in user_model.parameters()):
            # The weights get their shapes in the first call, which must be one of the model itself.
            with eval_mode(user_model), torch.no_grad():
                replace(self, model=user_model).run()
        return self._with_model(stand_in(user_model), user_model)

    def on_model(self, model: nn.Module) -> ModelCall:
        """Return the same call of another model, which is not a stand-in."""
        return self._with_model(model, None)

    def _with_model(self, model: nn.Module, original: nn.Module | None) -> ModelCall:
        return replace(self, model=model, original=original)

    def run(self) -> Any:
        """Call the model; if it returns a dict by node type, return the outputs of `node_type`."""
        names, values, count = self.names, self.values, self.num_positional
        if self.links is not None:
            names, values, count = self.links.apart(names, values, count)
        if self.convention is not None:
            output = self.convention(self.model, dict(zip(names, values, strict=True)))
        else:
            output = self.model(*values[:count], **dict(zip(names[count:], values[count:], strict=True)))
        return output if self.types is None else self._explained(output)

    def _explained(self, output: Any) -> Any:
        """Return the outputs of the explained node type."""
        if not isinstance(output, Mapping):
            return output
        returned = [kind for kind, rows in output.items() if isinstance(rows, Tensor)]
        node_type = returned[0] if self.node_type is None and len(returned) == 1 else self.node_type
        if node_type not in returned:
            raise ArgumentError(
                "Expected argument `node_type` to be the node type to explain, one of "
                f"{', '.join(map(str, returned))}, but got {node_type!r}."
            )
        return output[node_type]

    def with_node_type(self, node_type: str | None) -> ModelCall:
        """Return the same call, with the node type whose outputs are explained."""
        if node_type is None:
            return self
        expect(self.types is not None, "node_type", "None for a graph with one type of nodes", node_type)
        assert self.types is not None
        self.types.nodes(node_type)
        return replace(self, node_type=node_type)

    def changed(self, change: Callable[[Kind, Any], Any]) -> ModelCall:
        """Return the same call with each argument replaced by `change(kind, value)`."""
        values = tuple(change(kind, value) for kind, value in zip(self.kinds, self.values, strict=True))
        return self._with(values, self.num_nodes)

    def with_features(self, x: Any) -> ModelCall:
        """Return the same call with another main input; for a heterogeneous graph, a dict by node type."""
        if self.types is None:
            _ = self.x  # raises if there is no main input
        values = tuple(x if position == self.features_at else value for position, value in enumerate(self.values))
        return self._with(values, self.num_nodes)

    def with_argument(self, name: str, value: Any) -> ModelCall:
        """Return the same call with one more argument, passed by name."""
        return replace(self, values=(*self.values, value), names=(*self.names, name), kinds=())

    def without(self, position: int) -> ModelCall:
        """Return the same call without one argument; only for models that are called with a whole PyG graph."""
        assert self.convention is not None
        others = [number for number in range(len(self.values)) if number != position]
        return replace(
            self,
            values=tuple(self.values[number] for number in others),
            names=tuple(self.names[number] for number in others),
            edges_at=others.index(self.edges_at),
            features_at=None if self.features_at is None else others.index(self.features_at),
            convention=self.convention.without(self.names[position]),
            kinds=(),
        )

    def with_joined_links(self, rows: int) -> ModelCall | None:
        """Return the same call with its links as one argument, [2, rows]; None if it does not take them apart."""
        fixed = {self.edges_at, self.features_at}
        values = [None if position in fixed else value for position, value in enumerate(self.values)]
        links = None if self.types is not None else LinkArguments.join(self.names, values, rows, self.num_nodes)
        if links is None:
            return None
        arguments, place, ends = links
        after = place + len(arguments.names)
        if place < self.num_positional < after:
            return None
        fewer = len(arguments.names) - 1

        def moved(position: int) -> int:
            return position - fewer if position >= after else position

        return replace(
            self,
            values=(*self.values[:place], ends, *self.values[after:]),
            names=(*self.names[:place], arguments.joined, *self.names[after:]),
            num_positional=self.num_positional - (fewer if place < self.num_positional else 0),
            edges_at=moved(self.edges_at),
            features_at=None if self.features_at is None else moved(self.features_at),
            links=arguments,
            kinds=(),
        )

    def with_batch(self, batch: Tensor) -> ModelCall:
        """Return the same call; the argument `batch` is known to hold the graph of each node."""
        kinds = [Kind.BATCH if value is batch else kind for kind, value in zip(self.kinds, self.values, strict=True)]
        return replace(self, kinds=tuple(kinds))

    def on(self, part: Part, take: Take = take_index) -> ModelCall:
        """Return the same call on a part of the graph.

        Args:
            part: The part.
            take: Takes rows of arguments that have one row per node, edge or graph.
        """
        cut = Cut(part, take) if self.types is None else TypedCut(self.types, part, take)
        values = tuple(cut.cut(kind, value) for kind, value in zip(self.kinds, self.values, strict=True))
        call = self._with(values, part.node.numel(), cut.types)
        return call if self.messages is None else replace(call, messages=_on_part(self.messages, part))

    def without_edges(self, columns: Tensor) -> ModelCall:
        """Return the same call without some edges of the edge list, and without their rows of all other arguments.

        Args:
            columns: Positions of the edges in the given edge list; of several types, in their union.
        """
        if columns.numel() == 0:
            return self
        edge_index = plain(self.edge_index)
        stays = torch.ones(edge_index.shape[1], dtype=torch.bool, device=edge_index.device).index_fill(
            0, columns, False
        )
        edge = stays.nonzero().view(-1)
        nodes = torch.arange(self.num_nodes, device=edge_index.device)
        return self.on(Part(nodes, edge_index[:, edge], edge), _take_changed)

    def target_rows(self, part: Part) -> tuple[Tensor, int]:
        """Return the output rows of a part's targets, and the number of rows that the output must have.

        On a heterogeneous graph, the output has one row per node of one type.
        """
        if part.target is None:
            return torch.arange(part.count, device=part.node.device), part.count
        if self.types is None:
            return part.target, part.node.numel()
        cut = TypedCut(self.types, part)
        return cut.number[part.target], cut.count_like(part.target)

    def _with(self, values: tuple[Any, ...], num_nodes: int, types: Types | None = None) -> ModelCall:
        return replace(self, values=values, num_nodes=num_nodes, types=self.types if types is None else types)


def _on_part(messages: MessageEdges | PartMessageEdges, part: Part) -> PartMessageEdges | None:
    """Return the edges that messages come from, on a part; None if the part has edges of its own."""
    if part.edge is None:
        return None
    copies = part.edge if part.graph is None else part.edge_graph
    return messages.of_part(
        part.node, part.edge, part.graph, torch.zeros_like(copies) if part.graph is None else copies
    )


def _take_changed(value: Tensor, index: Tensor | None) -> Tensor:
    """Return rows of an argument; the argument itself if none is left out, as rows are in their order."""
    return value if index is None or index.numel() == value.shape[0] else value[index]


class EngineError(UnsupportedModelError):
    """Raised if an engine cannot run a model; another engine may.

    Args:
        expected: What the engine needs, as a noun phrase.
        reason: Why the model does not fit, as the end of a sentence.
    """

    def __init__(self, expected: str, reason: str) -> None:
        super().__init__(f"Expected {expected}, but {reason}.")
        self.reason = reason


class NotRowwiseError(EngineError):
    """Raised if a model cannot run on only the rows that a reduction changes."""

    def __init__(self, reason: str) -> None:
        super().__init__("a model that can be run on the rows that a reduction changes", reason)


class NotLocalError(EngineError):
    """Raised if a model cannot run on copies of the neighbourhoods of targets.

    Args:
        name: Class name of the model.
        reason: The reason, as the end of a sentence.
    """

    def __init__(self, name: str, reason: str) -> None:
        expected = (
            f"{name} to compute the class scores of a target from its own graph, or from the nodes within reach of its "
            "attention layers"
        )
        super().__init__(expected, reason)


def check_local(
    call: ModelCall, part: Part, expected: Tensor, run: Callable[[ModelCall], Any] = ModelCall.run, seed: int = 0
) -> None:
    """Raise unless a model computes the outputs of targets from a part of its graph.

    Args:
        call: The call of the model on the whole graph.
        part: A part with one graph per target.
        expected: One row of outputs per target, from a run on the whole graph or on a larger part.
        run: Runs a call.
        seed: Seed of the noise in decoys.

    Raises:
        NotLocalError: If outputs differ; the message has the difference.
    """
    if part.count == 0:
        return
    order = torch.arange(part.count, device=part.node.device).flip(0)
    which = torch.cat([order[-1:], order, order[:1], order[:1]])
    among = part.take(which, call.types)
    assert among.graph is not None
    decoy = (among.graph == 0) | (among.graph == which.numel() - 1)
    output = target_outputs(call, among, run(_with_decoys(call.on(among), decoy, seed)))
    if output.shape[1:] != expected.shape[1:]:
        raise NotLocalError(call.name, "on copies it returns rows of another length")
    change = difference(output[1:-1], expected[which[1:-1]], output.dtype)
    if change is not None:
        raise NotLocalError(
            call.name,
            f"on a part of the graph its outputs differ by {change:.2g}: it has paths that bypass attention, such as "
            "norms or pooling over nodes, features computed from all edges, or code that depends on the position of a "
            "node",
        )


def target_outputs(call: ModelCall, part: Part, output: Any) -> Tensor:
    """Return the outputs of the targets of a part, one row per target, from the output of the model on the part.

    Raises:
        NotLocalError: If the number of rows does not fit the part.
    """
    rows, count = call.target_rows(part)
    if not isinstance(output, Tensor) or output.dim() == 0 or output.shape[0] != count:
        raise NotLocalError(call.name, "on copies it returns other rows than those of the copies")
    return output[rows]


def _with_decoys(call: ModelCall, decoy: Tensor, seed: int) -> ModelCall:
    """Return the same call with loud noise as the features of the masked nodes."""

    features = call.features
    if features is None:
        return call
    if call.types is None:
        return call.with_features(with_noise(features, decoy.nonzero().view(-1), seed))
    nodes = {kind: call.types.nodes(kind) for kind in features}
    decoys = {kind: decoy[those.start : those.stop].nonzero().view(-1) for kind, those in nodes.items()}
    by_type = {kind: with_noise(rows, decoys[kind], seed) for kind, rows in features.items()}
    return call.changed(lambda _, value: by_type if value is features else value)
