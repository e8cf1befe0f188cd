"""Find the arguments of a model in a PyG graph by name, or pass the whole graph to the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import sort_edge_index, to_edge_index

from attree.attention.capture import check_model
from attree.attention.graph import EdgeType, Types
from attree.attention.stand_ins import eval_mode
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.arguments import COUNT_NAMES, model_name, parameters
from attree.subject.model_call import ModelCall
from attree.tensors.arrays import EDGES_OF_ADJACENCY, is_sparse
from attree.tensors.precision import same

Call = Callable[[Any, Any], Tensor]
"""A user's function `call(model, data)` that returns one row of outputs per node, pair or graph."""

WHOLE = ("batch", "data")
"""Names of a single parameter that takes the whole graph, even if the graph has an attribute of that name."""

EDGE_NAMES = ("edge_index", "adj", "adj_t", "edges", "edge_list")
"""Names of parameters that take the edge list if the graph has no attribute of that name."""

TYPED_EDGE_NAMES = ("edge_index_dict", "edge_index", "adj_t_dict", "adj_dict")
"""Names of parameters that take the edge lists of all edge types."""


@dataclass(frozen=True)
class DataConvention:
    """Calls a model with a copy of a PyG graph in which the tensors are replaced by those of the call.

    Attributes:
        data: The graph, whose other attributes are kept.
        call: Function that calls the model with a graph; None calls `model(data)`.
    """

    data: Data | HeteroData
    call: Call | None = None

    def without(self, name: str) -> DataConvention:
        """Return the same convention on a graph without one of its attributes."""
        data = copy.copy(self.data)
        for store in data.stores:
            if name in store:
                del store[name]
        return DataConvention(data, self.call)

    def __call__(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        """Return the output of the model on the graph with these tensors."""
        data = copy.copy(self.data)
        for name, value in arguments.items():
            if isinstance(data, HeteroData):
                for kind, rows in value.items():
                    data[kind][name] = rows
            else:
                data[name] = value
        if isinstance(data, Batch) and isinstance(batch := arguments.get("batch"), Tensor):
            data._num_graphs = int(batch.max()) + 1 if batch.numel() else 0
        for store in data.node_stores:
            if "num_nodes" in store and isinstance(x := store.get("x"), Tensor):
                store.num_nodes = x.shape[0]
        return model(data) if self.call is None else self.call(model, data)


def bind_data(model: nn.Module, data: Data | HeteroData, call: Call | None = None) -> ModelCall:
    """Find the arguments of a model in a graph.

    Each parameter of the model's forward takes the attribute of the same name, in any order. If no parameter has the
    name of the features or the edges, the first parameters that the graph has no attribute for take them. A model that
    requires one argument, for which the graph has no attribute, is called with the graph itself.

    Args:
        model: The model.
        data: A graph, or a batch of graphs.
        call: Function that calls the model with a graph; None uses the model's forward.
    """
    check_model(model)
    if call is not None:
        expect(callable(call), "call", "a function of the model and a graph", type(call).__name__)
    if isinstance(data, HeteroData):
        return _bind_hetero(model, data, call)
    declared = parameters(model) if call is None else []
    adjacency = next((parameter.name for parameter in declared if is_sparse(data.get(parameter.name, None))), None)
    if adjacency is not None:
        data, matrix = _with_edge_list(data, adjacency), data[adjacency]
    check_data(data)
    required = [parameter.name for parameter in declared if parameter.default is Parameter.empty]
    if call is not None or (len(required) == 1 and (required[0] not in data or required[0] in WHOLE)):
        tensors = {name: data[name] for name in data.keys() if isinstance(data[name], Tensor)}  # noqa: SIM118
        return _call_with_data(model, data, tensors, _num_nodes(data), call)
    arguments = {
        parameter.name: value for parameter in declared if (value := _look_up(data, parameter.name)) is not None
    }
    if "batch" in required and "batch" not in arguments:  # one graph, for a model that asks for batches
        arguments["batch"] = torch.zeros(_num_nodes(data), dtype=torch.long, device=data.edge_index.device)
    edges = adjacency if adjacency in arguments else _edge_parameter(required, arguments)
    if edges is None:
        raise _without_edges(model, declared, "features and edges", _sparse_hint(data))
    arguments.setdefault(edges, data.edge_index)
    features = _feature_parameter(required, arguments, edges, data)
    if features is not None and features not in arguments:
        arguments[features] = data.x
    _check_found(model, required, arguments, data.keys())
    bound = _call_by_position(model, declared, arguments, edges, features, _num_nodes(data))
    if adjacency is not None and not _takes_list(bound, matrix):
        raise _without_edges(model, declared, "features and edges", SPARSE_HINT.format(adjacency))
    return bound


SPARSE_HINT = (
    ". `{0}` is a sparse matrix, in which no edge can be reduced, and the model returns something else if it is given "
    "the list of its edges instead, as PyG's layers can be: set `data.edge_index`, and let the model make the matrix"
)
"""What to do if a model needs a sparse matrix."""


def _with_edge_list(data: Data, name: str) -> Data:
    """Return the data with the list of edges in place of a sparse adjacency matrix; unchanged if there is no such list.

    PyG's layers take either. The list is `data.edge_index`, if this has the edges of the matrix.
    """
    matrix = data[name]
    square = isinstance(matrix, Tensor) and matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1] == data.num_nodes
    if not square:
        return data
    edges, values = to_edge_index(matrix)
    edges, listed_edges = edges.flip(0), data.get("edge_index", None)
    if listed_edges is not None:
        if not isinstance(listed_edges, Tensor) or not torch.equal(
            sort_edge_index(listed_edges), sort_edge_index(edges)
        ):
            return data
        edges = listed_edges
    if bool((values != 1).any()):
        return data
    data = copy.copy(data)
    data[name] = data.edge_index = edges
    return data


@torch.no_grad()
def _takes_list(call: ModelCall, matrix: Tensor) -> bool:
    """Whether a model returns the same for the list of edges as for the matrix."""
    private = call.private()
    values = (matrix if at == call.edges_at else value for at, value in enumerate(call.values))
    try:
        with eval_mode(private.model):
            with_list, with_matrix = private.run(), replace(private, values=tuple(values)).run()
    except Exception:
        return False
    return isinstance(with_list, Tensor) and isinstance(with_matrix, Tensor) and same(with_list, with_matrix)


def _bind_hetero(model: nn.Module, data: HeteroData, call: Call | None = None) -> ModelCall:
    """Find the arguments of a model in a heterogeneous graph: `x_dict` or `x` are the features of all types, etc."""
    types = _types_of(data)
    edges = {kind: data[kind].edge_index for kind in types.edge_types}
    declared = parameters(model)
    required = [parameter.name for parameter in declared if parameter.default is Parameter.empty]
    arguments = {
        parameter.name: value for parameter in declared if (value := _look_up_typed(data, parameter.name)) is not None
    }
    if call is not None or (len(required) == 1 and required[0] not in arguments):
        names = sorted({name for store in data.stores for name, value in store.items() if isinstance(value, Tensor)})
        tensors = {name: data.collect(name, allow_empty=True) for name in names if name != "edge_index"}
        return _call_with_data(model, data, {**tensors, "edge_index": edges}, types.node_ptr[-1], call, types)
    edges_name = next((name for name in TYPED_EDGE_NAMES if name in arguments), None)
    if edges_name is None:
        raise _without_edges(model, declared, "`x_dict` and `edge_index_dict`")
    arguments[edges_name] = edges
    _check_found(model, required, arguments, sorted({name for store in data.stores for name in store.keys()}))  # noqa: SIM118
    features = next((name for name in ("x_dict", "x") if name in arguments), None)
    return _call_by_position(model, declared, arguments, edges_name, features, types.node_ptr[-1], types)


def _call_with_data(
    model: nn.Module,
    data: Data | HeteroData,
    tensors: dict[str, Any],
    num_nodes: int,
    call: Call | None,
    types: Types | None = None,
) -> ModelCall:
    """Return a call that passes the whole graph; all its tensors are arguments."""
    names = sorted(tensors, key=lambda name: (name != "x", name != "edge_index"))
    features = names.index("x") if "x" in names else None
    values, edges_at = tuple(tensors[name] for name in names), names.index("edge_index")
    return ModelCall(model, values, tuple(names), 0, edges_at, features, num_nodes, DataConvention(data, call), types)


def _call_by_position(
    model: nn.Module,
    declared: list[Parameter],
    arguments: dict[str, Any],
    edges: str,
    features: str | None,
    num_nodes: int,
    types: Types | None = None,
) -> ModelCall:
    """Return a call that passes the leading arguments by position, as users do, and the others by name."""
    leading = 0
    while (
        leading < len(declared)
        and declared[leading].name in arguments
        and declared[leading].kind is not Parameter.KEYWORD_ONLY
    ):
        leading += 1
    names = [parameter.name for parameter in declared if parameter.name in arguments]
    features_at = None if features is None else names.index(features)
    values = tuple(arguments[name] for name in names)
    return ModelCall(model, values, tuple(names), leading, names.index(edges), features_at, num_nodes, types=types)


def _sparse_hint(data: Data) -> str:
    """Return how to replace a sparse adjacency matrix of the data by its edges; empty if there is none."""
    name = next((name for name in data.keys() if is_sparse(data[name])), None)  # noqa: SIM118
    if name is None:
        return ""
    edges = EDGES_OF_ADJACENCY.strip("`").replace("adj_t", f"data.{name}")
    start = f". `{name}` is a sparse matrix, in which no edge can be reduced: set `data.edge_index = {edges}`"
    matrix = data[name]
    if isinstance(matrix, Tensor) and bool((to_edge_index(matrix)[1] != 1).any()):
        values = edges.replace("[0].flip(0)", "[1]")
        return (
            f"{start} and `data.edge_weight = {values}`, let the model take the weights of edges too, and pass "
            "`call=lambda model, data: model(data.x, data.edge_index, data.edge_weight)`"
        )
    return f"{start} and pass `call=lambda model, data: model(data.x, data.edge_index)`, as PyG's layers take either"


def _without_edges(
    model: nn.Module, declared: list[Parameter], expected: str, way_out: str = ""
) -> UnsupportedModelError:
    names = ", ".join(parameter.name for parameter in declared)
    return UnsupportedModelError(
        f"Expected {model_name(model)}.forward to take {expected}, or one `data`, or argument `call` to say how it is "
        f"called, but it takes ({names}){way_out}."
    )


def _check_found(model: nn.Module, required: list[str], arguments: dict[str, Any], data_names: Iterable[str]) -> None:
    """Raise if the graph has no value for a required parameter."""
    for name in required:
        if name not in arguments:
            raise ArgumentError(
                f"Expected argument `data` to have `{name}`, which {model_name(model)}.forward takes, but it has "
                f"{', '.join(data_names)}."
            )


def _edge_parameter(required: list[str], arguments: dict[str, Any]) -> str | None:
    """Return the parameter that takes the edge list: by name, or else the second that the graph has no value for."""
    if "edge_index" in arguments:
        return "edge_index"
    missing = [name for name in required if name not in arguments]
    named = [name for name in missing if name in EDGE_NAMES]
    if named:
        return named[0]
    if "x" in arguments:
        return missing[0] if missing else None
    return missing[1] if len(missing) > 1 else None


def _feature_parameter(required: list[str], arguments: dict[str, Any], edges: str, data: Data) -> str | None:
    """Return the parameter that takes the features: `x`, or the first without a value, or one with a row per node."""
    if "x" in arguments:
        return "x"
    missing = [name for name in required if name not in arguments]
    if missing and isinstance(data.get("x"), Tensor):
        return missing[0]
    num_nodes = _num_nodes(data)
    rows = (
        name
        for name, value in arguments.items()
        if name != edges and isinstance(value, Tensor) and value.dim() and value.shape[0] == num_nodes
    )
    return next((name for name in rows if "batch" not in name and "edge" not in name), None)


def _look_up(data: Data, name: str) -> Any:
    """Return the value of a graph for a parameter; None if there is none."""
    if name in COUNT_NAMES and isinstance(data, Batch):
        # Graphs after the graph of the last node have no nodes, and so no computation tree.
        batch = data.get("batch", None)
        return int(batch.max()) + 1 if isinstance(batch, Tensor) and batch.numel() else data.num_graphs
    if name == "num_nodes":
        return data.num_nodes
    value = data.get(name, None)
    if value is None and "batch" in name and isinstance(data, Batch):
        return data.batch
    return value


def _look_up_typed(data: HeteroData, name: str) -> Any:
    """Return the tensors of a heterogeneous graph for a parameter, by type; one tensor for the labels of one type."""
    by_type = data.collect(name.removesuffix("_dict"), allow_empty=True)
    if not by_type:
        return data.get(name) if not name.endswith("_dict") and hasattr(data, "get") else None
    only = next(iter(by_type.values()))
    return only if name.startswith("edge_label") and not name.endswith("_dict") and len(by_type) == 1 else by_type


def check_data(data: Any) -> None:
    """Raise unless `data` is a graph with one type of nodes and a list of edges."""
    expect(isinstance(data, Data), "data", "a torch_geometric.data.Data or a Batch of them", type(data).__name__)
    edge_index = data.get("edge_index", None)
    if not isinstance(edge_index, Tensor):
        names = ", ".join(sorted(data.keys())) or "nothing"
        raise ArgumentError(
            f"Expected argument `data` to have a tensor `edge_index`, but it has {names}{_sparse_hint(data)}."
        )
    x = data.get("x", None)
    expect(x is None or isinstance(x, Tensor), "data", "a graph with a tensor `x`", type(x).__name__)
    expect(data.num_nodes != 0, "data", "a graph with nodes", "one without")
    if isinstance(x, Tensor):
        if _has_odd_numbers(x):
            raise ArgumentError("Expected argument `data` to have finite features `x`, but some are NaN or infinite.")
        return
    expect(data.num_nodes is not None, "data", "a graph with `x` or `num_nodes`", sorted(data.keys()))


def _types_of(data: HeteroData) -> Types:
    """Check a heterogeneous graph and return its types."""
    nodes: dict[str, int] = {}
    for kind in data.node_types:
        count = data[kind].num_nodes
        expect(count is not None, "data", f"a graph with `x` or `num_nodes` of {kind!r}", sorted(data[kind].keys()))
        nodes[kind] = int(count)
        x = data[kind].get("x")
        finite = not isinstance(x, Tensor) or not _has_odd_numbers(x)
        expect(finite, "data", f"a graph with finite features of {kind!r}", "some that are NaN or infinite")
    expect(sum(nodes.values()) > 0, "data", "a graph with nodes", "one without")
    edges: dict[EdgeType, int] = {}
    for kind in data.edge_types:
        edge_index = data[kind].get("edge_index")
        expect(
            isinstance(edge_index, Tensor), "data", f"a graph with a tensor `edge_index` of {kind}", sorted(data[kind])
        )
        edges[kind] = edge_index.shape[1]
    expect(len(edges) > 0, "data", "a graph with edges", "one without")
    return Types.of(nodes, edges)


def _has_odd_numbers(x: Tensor) -> bool:
    return x.is_floating_point() and x.layout == torch.strided and not bool(x.isfinite().all())


def _num_nodes(data: Data) -> int:
    x = data.get("x", None)
    return int(x.shape[0]) if isinstance(x, Tensor) else int(data.num_nodes or 0)
