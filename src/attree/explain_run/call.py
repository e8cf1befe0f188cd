"""The fingerprint of a call of `attree explain`: hashes of everything that the call's rows depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from attree import __version__
from attree.attribution import AttributionMethod
from attree.faithfulness import ReductionProtocol

GRAPH_FIELDS = ("x", "edge_index")
"""Fields of a graph that attree's networks read."""

UNREAD_FIELDS = ("y", "batch", "ptr", "train_mask", "val_mask", "test_mask")
"""Fields that no network reads for its predictions. Users' networks may read any other field."""


def call_fingerprint(
    module: nn.Module,
    graphs: Iterable[Data | HeteroData],
    targets: Tensor,
    methods: Mapping[str, AttributionMethod],
    protocols: Iterable[ReductionProtocol],
    bounds: list[tuple[int, int]],
    by_neighbourhood: bool,
    top: int | None = None,
) -> dict[str, str]:
    """Return hashes of everything that the written score rows of an `attree explain` call depend on, by name.

    Args:
        module: The network with its weights.
        graphs: The graphs that the network runs on.
        targets: Ids of the targets, in order.
        methods: The attribution methods; their settings include the seed.
        protocols: The reduction protocols.
        bounds: First target of each part, and the one after its last.
        by_neighbourhood: Whether the network runs on neighbourhoods instead of the whole graph.
        top: Number of edges to keep per target; None keeps all.
    """
    state = module.state_dict()
    way = "neighbourhoods" if by_neighbourhood else "whole"
    return {
        "version": __version__,
        "network": _hash(repr(module)),
        "weights": _hash(*(part for name in sorted(state) for part in (name, state[name]))),
        "data": _hash(*(part for graph in graphs for part in _fields_read(graph))),
        "targets": _hash(targets),
        "methods": _hash(json.dumps({name: method.settings() for name, method in methods.items()}, default=str)),
        "protocols": _hash(*map(repr, protocols)),
        "parts": _hash(json.dumps([way, bounds])),
    } | ({} if top is None else {"top": _hash(top)})


def _fields_read(graph: Data | HeteroData) -> Iterator[Any]:
    """Yield the tensors of a graph that a network may read. A heterogeneous graph is read type by type."""
    if isinstance(graph, HeteroData):
        for kind, store in (*graph.node_items(), *graph.edge_items()):
            yield kind
            yield from (store[field] for field in _fields(store))
        return
    yield from (graph[field] for field in _fields(graph))


def _fields(store: Data | BaseStorage) -> list[str]:
    graph_fields = [field for field in GRAPH_FIELDS if field in store]
    others = [field for field in sorted(store.keys()) if field not in (*GRAPH_FIELDS, *UNREAD_FIELDS)]
    return graph_fields + [field for field in others if isinstance(store[field], Tensor)]


def _hash(*contents: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 hash of tensors and other values."""
    digest = hashlib.sha256()
    for content in contents:
        if isinstance(content, Tensor):
            values = content.detach().cpu().contiguous()
            digest.update(f"{values.dtype} {tuple(values.shape)}\0".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(str(content).encode() + b"\0")
    return digest.hexdigest()[:16]
