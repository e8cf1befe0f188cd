"""The user's graphs: datasets, the datasets behind a trainer's loaders, and what a model predicts on a graph."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader.utils import get_edge_label_index
from torch_geometric.sampler import NegativeSampling

from attree.data.random_state import seeded_apart
from attree.errors import ArgumentError, UnsupportedModelError, expect

PARTS = ("train", "val", "test")

SAMPLED = ("n_id", "e_id", "input_id", "batch_size")
"""Keys that PyG's samplers add to the stores of a sampled subgraph."""


def as_dataset(given: Any) -> Any:
    """Return the user's data as a sequence of graphs."""
    if isinstance(given, Batch):
        return given.to_data_list()
    if isinstance(given, Data | HeteroData):
        return [given]
    sized = isinstance(given, Iterable) and hasattr(given, "__len__") and hasattr(given, "__getitem__")
    fits = sized and len(given) > 0 and isinstance(seeded_apart(0, lambda: given[0]), Data | HeteroData)
    expect(fits, "data", "a Data, a Batch, or a list or dataset of Data", type(given).__name__)
    return given


def without_repeats(dataset: Any) -> Any:
    """Return a dataset without the repeats of its graphs: `[graph] * 10` is one graph, read ten times an epoch.

    A dataset that is no list is one graph if its first two items and its last one are the same object.
    """
    if isinstance(dataset, list | tuple):
        return list({id(graph): graph for graph in dataset}.values())
    if len(dataset) < 2:
        return dataset
    first, *others = seeded_apart(0, lambda: [dataset[position] for position in (0, 1, len(dataset) - 1)])
    return [first] if all(graph is first for graph in others) else dataset


def is_same_dataset(one: Any, other: Any) -> bool:
    """Whether two datasets are the same object, or hold the same single graph."""
    if one is other:
        return True
    if len(one) != 1 or len(other) != 1:
        return False
    first, second = seeded_apart(0, lambda: one[0]), seeded_apart(0, lambda: other[0])
    return first is second or all(_is_equal(first, second, key) for key in ("x", "edge_index"))


def _is_equal(first: Data | HeteroData, second: Data | HeteroData, key: str) -> bool:
    """Whether two graphs have equal tensors under a key, for all types of a heterogeneous graph."""
    if isinstance(first, HeteroData) != isinstance(second, HeteroData):
        return False
    if isinstance(first, HeteroData):
        ours, theirs = first.collect(key, allow_empty=True), second.collect(key, allow_empty=True)
        return ours.keys() == theirs.keys() and all(_are_equal(ours[kind], theirs[kind]) for kind in ours)
    return _are_equal(first.get(key), second.get(key))


def _are_equal(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one.cpu(), other.cpu())


def trainer_loaders(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """Yield the loaders that the trainer has already opened, by split. No loader is opened again."""
    stage = trainer.state.fn
    if stage == TrainerFn.FITTING:
        yield "train", trainer.train_dataloader
    if stage in (TrainerFn.FITTING, TrainerFn.VALIDATING):
        yield "val", trainer.val_dataloaders
    if stage == TrainerFn.TESTING:
        yield "test", trainer.test_dataloaders


def loader_datasets(loader: Any, seed: int) -> Iterator[Any]:
    """Yield the datasets of graphs behind a loader: its whole graph, its dataset, or the graphs of its first batch."""
    whole = getattr(loader, "data", None)
    whole = getattr(loader, "graph", None) if whole is None else whole
    if isinstance(loader, Data | HeteroData):
        yield as_dataset(loader)
    elif isinstance(loader, list | tuple):
        for inner in loader:
            yield from loader_datasets(inner, seed)
    elif isinstance(loader, dict):
        for inner in loader.values():
            yield from loader_datasets(inner, seed)
    elif isinstance(whole, Data | HeteroData):  # of neighbour loaders and loaders of one whole graph
        yield as_dataset(_marked_as_links(whole) if hasattr(loader, "edge_label_index") else whole)
    elif (dataset := _dataset_of(loader)) is not None:
        if len(dataset) and isinstance(seeded_apart(seed, lambda: dataset[0]), Data | HeteroData):
            yield dataset
    elif isinstance(loader, Iterable) and not isinstance(loader, Iterator):  # to read an iterator would consume it
        batches = seeded_apart(seed, lambda: list(islice(loader, 1)))
        yield from (as_dataset(batch) for batch in batches if isinstance(batch, Data | HeteroData))


def _marked_as_links(graph: Data | HeteroData) -> Data:
    """Return the graph of a link loader, marked as a graph of links. The loader, not the graph, holds the pairs."""
    if isinstance(graph, HeteroData):
        raise UnsupportedModelError(
            "Expected a loader of a whole heterogeneous graph, but got one that draws links: argument `data` of "
            "ExplainCallback can be the graph with `edge_label_index` in one type of edges."
        )
    graph = copy.copy(graph)
    graph.edge_label_index = graph.edge_index[:, :0]
    return graph


def _dataset_of(loader: Any) -> Any:
    """Return the dataset of a loader if its items can be read by index; else None."""
    dataset = getattr(loader, "dataset", None)
    return dataset if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else None


def explained_type(graph: HeteroData, given: Any = None) -> str | None:
    """Return the type of nodes whose outputs are explained; None if the model predicts pairs of nodes.

    Args:
        graph: A heterogeneous graph.
        given: The type, or a pair of the type and its nodes, as PyG's `input_train_nodes`; None looks for labels.

    Raises:
        ArgumentError: No type has labels, or several have.
        UnsupportedModelError: The graph is a sampled subgraph.
    """
    sampled = [key for key in SAMPLED for store in graph.stores if key in store]
    if sampled:
        raise UnsupportedModelError(
            f"Expected a whole heterogeneous graph, but got a sampled subgraph (it has `{sampled[0]}`): argument "
            "`data` of ExplainCallback can be the whole graph."
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
    if not labelled and pairs_to_predict(graph) is not None:
        return None
    raise ArgumentError(
        "Expected exactly one type of nodes of the heterogeneous graph to have labels `y` (or labels and masks), or "
        f"one type of edges to have `edge_label_index`, but got labels of {', '.join(labelled) or 'no type'}."
    )


def pairs_to_predict(graph: Data | HeteroData) -> Tensor | None:
    """Return the pairs of nodes to predict, `edge_label_index` [2, P]; None if no type of edges has it, or several."""
    stores = graph.edge_stores if isinstance(graph, HeteroData) else [graph]
    indices = [store["edge_label_index"] for store in stores if "edge_label_index" in store]
    return indices[0] if len(indices) == 1 and isinstance(indices[0], Tensor) else None


def with_links(module: Any, subset: str) -> Data | HeteroData:
    """Return the graph of PyG's `LightningLinkData` with the pairs of a split (or `all`) as `edge_label_index`.

    Labels are those that PyG's loader returns for the pairs: with binary negative sampling, 0 means a sampled pair, so
    labels that begin at 0 are shifted by 1. Without labels, the pairs are edges, and their label is 1.

    Raises:
        ArgumentError: The module has no pairs of that split.
        UnsupportedModelError: The splits have pairs of different types of edges.
    """
    graph = module.data
    requested = {part: getattr(module, f"input_{part}_edges", None) for part in PARTS}
    parts = [part for part in PARTS if requested[part] is not None and subset in ("all", part)]
    if not parts and subset == "all" and pairs_to_predict(graph) is not None:
        return graph
    expect(bool(parts), "subset", "one that the LightningLinkData has `input_..._edges` of", subset)
    found = [get_edge_label_index(graph, requested[part]) for part in parts]
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
    """Return the labels of a split's pairs as PyG's loader returns them."""
    options = getattr(module, "loader_kwargs" if part == "train" else "eval_loader_kwargs", None) or {}
    sampling = NegativeSampling.cast(options.get("neg_sampling"))
    is_binary = options.get("neg_sampling_ratio") or (sampling is not None and sampling.is_binary())
    return labels + 1 if is_binary and labels.numel() and float(labels.min()) == 0 else labels
