"""What explanations depend on, as short hashes by name: parts of two calls belong together only if all are equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree import __version__
from attree.attribution import AttributionMethod
from attree.faithfulness import ReductionProtocol

GRAPH_FIELDS = ("x", "edge_index")
"""What attree's networks read of a graph."""

UNREAD_FIELDS = ("y", "batch", "ptr", "train_mask", "val_mask", "test_mask")
"""What no network reads to predict; others' networks may read all else."""


def call_fingerprint(
    module: nn.Module,
    graphs: Iterable[Data],
    targets: Tensor,
    methods: Mapping[str, AttributionMethod],
    protocols: Iterable[ReductionProtocol],
    bounds: list[tuple[int, int]],
    by_neighbourhood: bool,
    top: int | None = None,
) -> dict[str, str]:
    """Hashes of all that the rows of a call depend on.

    Args:
        module: The network with its weights.
        graphs: What it runs on.
        targets: Ids of what is explained, in order.
        methods: The attribution methods; a seed is among their settings.
        protocols: The reduction protocols.
        bounds: Which targets make each part.
        by_neighbourhood: Whether the network runs on neighbourhoods instead of the whole graph.
        top: How many edges of each target are kept; None keeps all.
    """
    state = module.state_dict()
    way = "neighbourhoods" if by_neighbourhood else "whole"
    return {
        "version": __version__,
        "network": _hash(repr(module)),
        "weights": _hash(*(part for name in sorted(state) for part in (name, state[name]))),
        "data": _hash(*(graph[field] for graph in graphs for field in _fields(graph))),
        "targets": _hash(targets),
        "methods": _hash(json.dumps({name: one.settings() for name, one in methods.items()}, default=str)),
        "protocols": _hash(*map(repr, protocols)),
        "parts": _hash(json.dumps([way, bounds])),
    } | ({} if top is None else {"top": _hash(top)})


def _fields(graph: Data) -> list[str]:
    own = [field for field in GRAPH_FIELDS if field in graph]
    others = [field for field in sorted(graph.keys()) if field not in (*GRAPH_FIELDS, *UNREAD_FIELDS)]
    return own + [field for field in others if isinstance(graph[field], Tensor)]


def _hash(*contents: Any) -> str:
    digest = hashlib.sha256()
    for content in contents:
        if isinstance(content, Tensor):
            values = content.detach().cpu().contiguous()
            digest.update(f"{values.dtype} {tuple(values.shape)}\0".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(str(content).encode() + b"\0")
    return digest.hexdigest()[:16]
