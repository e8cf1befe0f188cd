"""Find the arguments of a model's call in a PyG `Data`: by name, or hand the model the data whole."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from attree.attention.capture import check_model
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.arguments import COUNT_NAMES
from attree.subject.conventions import Call, DataConvention, call_by_position, model_name
from attree.subject.hetero_binding import bind_hetero
from attree.subject.model_call import ModelCall
from attree.subject.wrapped import parameters

WHOLE = ("batch", "data")
"""Names of a single argument of `forward` that is a whole graph or batch, also if the graph has such an attribute."""


EDGE_NAMES = ("edge_index", "adj", "adj_t", "edges", "edge_list")
"""Names of parameters that are taken for the edge list where the data has nothing of that name."""


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
            f"Expected {model_name(model)}.forward to take features and edges, or one `data`, or argument `call` to "
            f"say how it is called, but it takes ({names})."
        )
    found.setdefault(edges, data.edge_index)
    features = _feature_parameter(own, found, edges, data)
    if features is not None and features not in found:
        found[features] = data.x
    for one in required:
        if one.name not in found:
            raise ArgumentError(
                f"Expected argument `data` to have `{one.name}`, which {model_name(model)}.forward takes, but it has "
                f"{', '.join(data.keys())}."
            )
    return call_by_position(model, own, found, edges, features, _num_nodes(data))


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
