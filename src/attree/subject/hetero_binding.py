"""Find the arguments of a model's forward in a heterogeneous graph."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from attree.attention.capture import check_model
from attree.attention.graph import EdgeType, Types
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.subject.conventions import Call, HeteroConvention, call_by_position, model_name
from attree.subject.model_call import ModelCall
from attree.subject.wrapped import parameters


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
            f"Expected {model_name(model)}.forward to take `x_dict` and `edge_index_dict`, or one `data`, or argument "
            f"`call` to say how it is called, but it takes ({names_of})."
        )
    found[at_edges] = edges
    missing = [one.name for one in required if one.name not in found]
    if missing:
        raise ArgumentError(
            f"Expected argument `data` to have `{missing[0]}`, which {model_name(model)}.forward takes, but it has "
            f"{', '.join(sorted({name for store in data.stores for name in store.keys()}))}."  # noqa: SIM118
        )
    features_name = next((name for name in ("x_dict", "x") if name in found), None)
    made = call_by_position(model, own, found, at_edges, features_name, types.node_ptr[-1])
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
