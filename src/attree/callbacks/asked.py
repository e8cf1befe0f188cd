"""What is predicted on a graph that attree's data modules do not provide: nodes of which type, or which pairs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import get_edge_label_index
from torch_geometric.sampler import NegativeSampling

from attree.errors import ArgumentError, UnsupportedModelError, expect

PARTS = ("train", "val", "test")

SAMPLED = ("n_id", "e_id", "input_id", "batch_size")
"""What PyG's samplers leave in the stores of a graph that they drew."""


def is_heterogeneous(graph: Any) -> bool:
    """Whether a graph has types of nodes and edges."""
    return isinstance(graph, HeteroData)


def explained_type(graph: HeteroData, given: Any = None) -> str | None:
    """The type of nodes whose outputs are explained; None if the model predicts pairs of nodes.

    Args:
        graph: A heterogeneous graph.
        given: What the data says of it: a type, or a pair of a type and its nodes, as PyG's `input_train_nodes`.

    Raises:
        ArgumentError: It cannot be told.
        UnsupportedModelError: The graph is a part that a sampler drew.
    """
    sampled = [key for key in SAMPLED for store in graph.stores if key in store]
    if sampled:
        raise UnsupportedModelError(
            f"Expected a whole heterogeneous graph, but got a part that a sampler drew (it has `{sampled[0]}`): "
            "argument `data` of ExplainCallback can be the whole one."
        )
    given = given[0] if isinstance(given, tuple) else given
    if isinstance(given, str):
        expect(given in graph.node_types, "data", f"of one of the types {', '.join(graph.node_types)}", given)
        return given
    labelled = [kind for kind in graph.node_types if isinstance(graph[kind].get("y"), Tensor)]
    split = [kind for kind in labelled if any(f"{part}_mask" in graph[kind] for part in PARTS)]
    for kinds in (labelled, split):
        if len(kinds) == 1:
            return kinds[0]
    if not labelled and asked_pairs(graph) is not None:
        return None
    raise ArgumentError(
        "Expected one type of nodes of the heterogeneous graph to have labels `y` (of several, one to have masks), or "
        "one type of edges to have `edge_label_index`, so that it is plain whose outputs are explained, but got labels "
        f"of {', '.join(labelled) or 'no type'}."
    )


def asked_pairs(graph: Data | HeteroData) -> Tensor | None:
    """The pairs of nodes to predict, `edge_label_index` [2, P]; None without any, or if several types have some."""
    stores = graph.edge_stores if isinstance(graph, HeteroData) else [graph]
    found = [store["edge_label_index"] for store in stores if "edge_label_index" in store]
    return found[0] if len(found) == 1 and isinstance(found[0], Tensor) else None


def with_links(module: Any, subset: str) -> Data | HeteroData:
    """The graph of PyG's `LightningLinkData` with the pairs of one part as `edge_label_index`; `all` joins the parts.

    Labels are those that were given for these pairs, as PyG's loader hands them on: with binary negative sampling, 0
    means a sampled pair, and given labels that begin at 0 are counted from 1. Pairs of parts without labels are edges,
    whose label is 1.

    Raises:
        ArgumentError: The module has no pairs of that part.
        UnsupportedModelError: The parts ask for pairs of different types of edges.
    """
    graph = module.data
    asked = {part: getattr(module, f"input_{part}_edges", None) for part in PARTS}
    parts = [part for part in PARTS if asked[part] is not None and subset in ("all", part)]
    if not parts and subset == "all" and asked_pairs(graph) is not None:
        return graph
    expect(bool(parts), "subset", "one that the LightningLinkData has `input_..._edges` of", subset)
    found = [get_edge_label_index(graph, asked[part]) for part in parts]
    kinds = {kind for kind, _ in found}
    if len(kinds) > 1:
        names = ", ".join(str(kind) for kind in sorted(kinds))
        raise UnsupportedModelError(f"Expected pairs of one type of edges, but LightningLinkData has those of {names}.")
    given = [getattr(module, f"input_{part}_labels", None) for part in parts]
    labels = [
        torch.ones(pairs.shape[1]) if own is None else _loaded(module, part, torch.as_tensor(own).float().cpu())
        for part, own, (_, pairs) in zip(parts, given, found, strict=True)
    ]
    graph = copy.copy(graph)
    for store in graph.edge_stores if isinstance(graph, HeteroData) else []:
        for key in ("edge_label_index", "edge_label"):
            store.pop(key, None)
    store = graph[kinds.pop()] if isinstance(graph, HeteroData) else graph
    store["edge_label_index"] = torch.cat([pairs.cpu() for _, pairs in found], dim=1)
    store["edge_label"] = torch.cat(labels)
    return graph


def _loaded(module: Any, part: str, labels: Tensor) -> Tensor:
    """The labels of a part's pairs as PyG's loader hands them on."""
    options = getattr(module, "loader_kwargs" if part == "train" else "eval_loader_kwargs", None) or {}
    sampling = NegativeSampling.cast(options.get("neg_sampling"))
    is_binary = options.get("neg_sampling_ratio") or (sampling is not None and sampling.is_binary())
    return labels + 1 if is_binary and labels.numel() and float(labels.min()) == 0 else labels
