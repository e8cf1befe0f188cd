"""Find the arguments of a model's call in a PyG `Data`: by name, or hand the model the data whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from attree.attention.capture import check_model
from attree.attention.graph import EdgeType, Types
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.arguments import COUNT_NAMES
from attree.subject.model_call import ModelCall
from attree.subject.wrapped import parameters, unwrapped

Call = Callable[[Any, Any], Tensor]
"""How a user says that a model predicts: `call(model, data)` returns one row of outputs per node, pair or graph."""

WHOLE = ("batch", "data")
"""Names of a single argument of `forward` that is a whole graph or batch, also if the graph has such an attribute."""

EDGE_NAMES = ("edge_index", "adj", "adj_t", "edges", "edge_list")
"""Names of parameters that are taken for the edge list where the data has nothing of that name."""


@dataclass(frozen=True)
class DataConvention:
    """Calls a model with a copy of a PyG graph that holds the tensors of the call.

    Attributes:
        data: The graph that gives all other attributes.
        call: How the model is called with a graph; None calls `model(data)`.
    """

    data: Data
    call: Call | None = None

    def without(self, name: str) -> DataConvention:
        """The same convention on a graph without one of its attributes."""
        data = copy.copy(self.data)
        del data[name]
        return DataConvention(data, self.call)

    def __call__(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        """The model's output on the graph with these tensors."""
        data = copy.copy(self.data)
        for name, value in arguments.items():
            data[name] = value
        if isinstance(data, Batch) and isinstance(batch := arguments.get("batch"), Tensor):
            data._num_graphs = int(batch.max()) + 1 if batch.numel() else 0
        if "num_nodes" in self.data and isinstance(x := arguments.get("x"), Tensor):
            data.num_nodes = x.shape[0]
        return model(data) if self.call is None else self.call(model, data)


@dataclass(frozen=True)
class HeteroConvention:
    """Calls a model with a copy of a heterogeneous PyG graph that holds the tensors of the call.

    Attributes:
        data: The graph that gives all other attributes.
        call: How the model is called with a graph; None calls `model(data)`.
    """

    data: HeteroData
    call: Call | None = None

    def without(self, name: str) -> HeteroConvention:
        """The same convention on a graph without one of its attributes."""
        data = copy.copy(self.data)
        for store in data.stores:
            if name in store:
                del store[name]
        return HeteroConvention(data, self.call)

    def __call__(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        """The model's output on the graph with these tensors."""
        data = copy.copy(self.data)
        for name, by_type in arguments.items():
            for kind, value in by_type.items():
                data[kind][name] = value
        for store in data.node_stores:
            if "num_nodes" in store and isinstance(x := store.get("x"), Tensor):
                store.num_nodes = x.shape[0]
        return model(data) if self.call is None else self.call(model, data)


def bind_hetero(model: nn.Module, data: HeteroData, call: Call | None = None) -> ModelCall:
    """Find a model's arguments in a heterogeneous graph: `x_dict` or `x` are the features of all types, and so on.

    Args:
        model: The model.
        data: The graph.
        call: How the model is called with a graph, if not by its forward.
    """
    check_model(model)
    types = _types_of(data)
    edges = {kind: data[kind].edge_index for kind in types.edge_types}
    own = parameters(model)
    required = [one for one in own if one.default is Parameter.empty]
    found = {one.name: value for one in own if (value := _look_up_typed(data, one.name)) is not None}
    if call is not None or (len(required) == 1 and required[0].name not in found):
        if call is not None:
            expect(callable(call), "call", "a function of the model and a graph", type(call).__name__)
        names = sorted({name for store in data.stores for name, value in store.items() if isinstance(value, Tensor)})
        names.sort(key=lambda name: (name != "x", name != "edge_index"))
        values = [edges if name == "edge_index" else data.collect(name, allow_empty=True) for name in names]
        convention = HeteroConvention(data, call)
        features = names.index("x") if "x" in names else None
        at, num_nodes = names.index("edge_index"), types.node_ptr[-1]
        return ModelCall(model, tuple(values), tuple(names), 0, at, features, num_nodes, convention, types)
    at_edges = next(
        (name for name in ("edge_index_dict", "edge_index", "adj_t_dict", "adj_dict") if name in found), None
    )
    if at_edges is None:
        names_of = ", ".join(one.name for one in own)
        raise UnsupportedModelError(
            f"Expected {_name(model)}.forward to take `x_dict` and `edge_index_dict`, or one `data`, or argument "
            f"`call` to say how it is called, but it takes ({names_of})."
        )
    found[at_edges] = edges
    missing = [one.name for one in required if one.name not in found]
    if missing:
        raise ArgumentError(
            f"Expected argument `data` to have `{missing[0]}`, which {_name(model)}.forward takes, but it has "
            f"{', '.join(sorted({name for store in data.stores for name in store.keys()}))}."  # noqa: SIM118
        )
    features_name = next((name for name in ("x_dict", "x") if name in found), None)
    made = _by_position(model, own, found, at_edges, features_name, types.node_ptr[-1])
    return replace(made, types=types)


def _types_of(data: HeteroData) -> Types:
    """The types of a heterogeneous graph, checked."""
    nodes: dict[str, int] = {}
    for kind in data.node_types:
        count = data[kind].num_nodes
        expect(count is not None, "data", f"a graph with `x` or `num_nodes` of {kind!r}", sorted(data[kind].keys()))
        nodes[kind] = int(count)
        x = data[kind].get("x")
        if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided:
            finite = bool(x.isfinite().all())
            expect(finite, "data", f"a graph with finite features of {kind!r}", "some that are NaN or infinite")
    expect(sum(nodes.values()) > 0, "data", "a graph with nodes", "one without")
    edges: dict[EdgeType, int] = {}
    for kind in data.edge_types:
        given = data[kind].get("edge_index")
        expect(isinstance(given, Tensor), "data", f"a graph with a tensor `edge_index` of {kind}", sorted(data[kind]))
        edges[kind] = given.shape[1]
    expect(len(edges) > 0, "data", "a graph with edges", "one without")
    return Types.of(nodes, edges)


def _look_up_typed(data: HeteroData, name: str) -> Any:
    """What a heterogeneous graph has under a parameter's name: tensors by type, or one where a single type has it."""
    by_type = data.collect(name.removesuffix("_dict"), allow_empty=True)
    if not by_type:
        return data.get(name) if not name.endswith("_dict") and hasattr(data, "get") else None
    only = next(iter(by_type.values()))
    return only if name.startswith("edge_label") and not name.endswith("_dict") and len(by_type) == 1 else by_type


def bind_data(model: nn.Module, data: Data | HeteroData, call: Call | None = None) -> ModelCall:
    """Find a model's arguments in a graph.

    The parameters of the model's forward are looked up among the data's attributes, whatever their order. If none of
    them is the features or the edges, the first ones that the data lacks are. A model whose forward needs one argument
    that the data does not have is called with the data itself.

    Args:
        model: The model.
        data: One graph, or a batch of graphs.
        call: How the model is called with a graph, if not by its forward.
    """
    if isinstance(data, HeteroData):
        return bind_hetero(model, data, call)
    check_model(model)
    check_data(data)
    if call is not None:
        expect(callable(call), "call", "a function of the model and a graph", type(call).__name__)
        return _whole_data(model, data, call)
    own = parameters(model)
    required = [one for one in own if one.default is Parameter.empty]
    if len(required) == 1 and (required[0].name not in data or required[0].name in WHOLE):
        return _whole_data(model, data)
    found = {one.name: value for one in own if (value := _look_up(data, one.name)) is not None}
    edges = _edge_parameter(own, found)
    if edges is None:
        names = ", ".join(one.name for one in own)
        raise UnsupportedModelError(
            f"Expected {_name(model)}.forward to take features and edges, or one `data`, or argument `call` to say how "
            f"it is called, but it takes ({names})."
        )
    found.setdefault(edges, data.edge_index)
    features = _feature_parameter(own, found, edges, data)
    if features is not None and features not in found:
        found[features] = data.x
    for one in required:
        if one.name not in found:
            raise ArgumentError(
                f"Expected argument `data` to have `{one.name}`, which {_name(model)}.forward takes, but it has "
                f"{', '.join(data.keys())}."
            )
    return _by_position(model, own, found, edges, features, _num_nodes(data))


def _by_position(
    model: nn.Module, own: list[Parameter], found: dict[str, Any], edges: str, features: str | None, num_nodes: int
) -> ModelCall:
    """A call that passes the first arguments by position, as people call models, and the others by name."""
    leading = 0
    while leading < len(own) and own[leading].name in found and own[leading].kind is not Parameter.KEYWORD_ONLY:
        leading += 1
    names = [one.name for one in own if one.name in found]
    at = names.index
    return ModelCall(
        model,
        tuple(found[name] for name in names),
        tuple(names),
        leading,
        at(edges),
        None if features is None else at(features),
        num_nodes,
    )


def _whole_data(model: nn.Module, data: Data, call: Call | None = None) -> ModelCall:
    """A call with the whole graph; all its tensors are arguments."""
    names = [name for name in data.keys() if isinstance(data[name], Tensor)]  # noqa: SIM118
    names.sort(key=lambda name: (name != "x", name != "edge_index"))
    features = names.index("x") if "x" in names else None
    values = tuple(data[name] for name in names)
    at = names.index("edge_index")
    return ModelCall(model, values, tuple(names), 0, at, features, _num_nodes(data), DataConvention(data, call))


def _edge_parameter(own: list[Parameter], found: dict[str, Any]) -> str | None:
    """The parameter that takes the edge list: the one of that name, or else the second that the data lacks."""
    if "edge_index" in found:
        return "edge_index"
    missing = [one.name for one in own if one.name not in found and one.default is Parameter.empty]
    named = [name for name in missing if name in EDGE_NAMES]
    if named:
        return named[0]
    if "x" in found:
        return missing[0] if missing else None
    return missing[1] if len(missing) > 1 else None


def _feature_parameter(own: list[Parameter], found: dict[str, Any], edges: str, data: Data) -> str | None:
    """The parameter that takes one row per node: `x`, or the first that the data lacks, or the first with such rows."""
    if "x" in found:
        return "x"
    missing = [one.name for one in own if one.name not in found and one.default is Parameter.empty]
    if missing and isinstance(data.get("x"), Tensor):
        return missing[0]
    num_nodes = _num_nodes(data)
    rows = (
        name
        for name, value in found.items()
        if name != edges and isinstance(value, Tensor) and value.dim() and value.shape[0] == num_nodes
    )
    return next((name for name in rows if "batch" not in name and "edge" not in name), None)


def _look_up(data: Data, name: str) -> Any:
    """What a graph has under a parameter's name; None if nothing."""
    if name in COUNT_NAMES and isinstance(data, Batch):
        batch = data.get("batch", None)  # without graphs behind the last node: they have no computation tree
        return int(batch.max()) + 1 if isinstance(batch, Tensor) and batch.numel() else data.num_graphs
    if name == "num_nodes":
        return data.num_nodes
    value = data.get(name, None)
    if value is None and "batch" in name and isinstance(data, Batch):
        return data.batch
    return value


def check_data(data: Any) -> None:
    """Raise unless `data` is a graph with one kind of node and a list of edges."""
    expect(isinstance(data, Data), "data", "a torch_geometric.data.Data or a Batch of them", type(data).__name__)
    given = data.get("edge_index", None)
    expect(isinstance(given, torch.Tensor), "data", "a graph with a tensor `edge_index`", sorted(data.keys()))
    x = data.get("x", None)
    expect(x is None or isinstance(x, Tensor), "data", "a graph with a tensor `x`", type(x).__name__)
    expect(data.num_nodes != 0, "data", "a graph with nodes", "one without")
    if isinstance(x, Tensor):
        if x.is_floating_point() and x.layout == torch.strided and not bool(x.isfinite().all()):
            raise ArgumentError("Expected argument `data` to have finite features `x`, but some are NaN or infinite.")
        return
    expect(data.num_nodes is not None, "data", "a graph with `x` or `num_nodes`", sorted(data.keys()))


def _num_nodes(data: Data) -> int:
    x = data.get("x", None)
    return int(x.shape[0]) if isinstance(x, Tensor) else int(data.num_nodes or 0)


def _name(model: nn.Module) -> str:
    return type(unwrapped(model)).__name__
