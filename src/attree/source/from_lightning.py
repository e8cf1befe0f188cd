"""Sources that Lightning knows of: data modules, trainers and their loaders, and finished runs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import get_edge_label_index
from torch_geometric.sampler import NegativeSampling

from attree.data import GraphDataModule, HeteroDataModule, LinkDataModule, NodeDataModule
from attree.data.random_state import seeded_apart
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.source.source import (
    PARTS,
    Source,
    Subset,
    as_dataset,
    nodes_of,
    of_datasets,
    of_graph,
    of_links,
    pairs_to_predict,
)
from attree.source.target_labels import LINK_NAMES


def of_lightning(data: Any, seed: int = 0) -> Source:
    """Return the source of a data module, a trainer, or a finished run.

    Raises:
        ArgumentError: The data is none of these, or has no graphs.
    """
    # By attributes: `pytorch_lightning` has other classes of the same names.
    if hasattr(data, "train_dataloader") and hasattr(data, "setup"):
        return of_module(data, seed=seed)
    if hasattr(data, "fit") and hasattr(data, "callback_metrics"):
        return of_trainer(data, seed=seed)
    module: Any = getattr(data, "data", None)
    fits = hasattr(module, "train_dataloader") and hasattr(module, "setup")
    expect(
        fits,
        "data",
        "a Data, a HeteroData, a Batch, a list or dataset of Data, a data module, a trainer, a finished run or a "
        "Subject",
        type(data).__name__,
    )
    return of_module(module, seed=seed)


def of_trainer(trainer: Trainer, data: Any = None, subset: Subset = "all", seed: int = 0) -> Source:
    """Return the data to explain: the user's, or else that of the trainer's data module or loaders.

    Args:
        trainer: The trainer.
        data: A `Data`, or several (a list, a dataset, a `Batch`); None takes the trainer's.
        subset: The subset of nodes or graphs to choose targets from.
        seed: Seed for datasets that draw random numbers when they are read.

    Raises:
        ArgumentError: No graphs were found.
    """
    expect(subset in ("all", *PARTS), "subset", "'all', 'train', 'val' or 'test'", subset)
    if data is not None:
        return of_datasets({"all": [as_dataset(data)]}, subset, seed)
    module = getattr(trainer, "datamodule", None)
    module_source = _of_known_module(module, subset, seed)
    if module_source is not None:
        return module_source
    loaders = dict(trainer_loaders(trainer))
    parts = {part: list(loader_datasets(loader, seed)) for part, loader in loaders.items()}
    if subset != "all" and not parts.get(subset) and trainer.state.fn != TrainerFn.FITTING:
        _say_other_part(parts, subset)
    if not any(parts.values()):
        raise ArgumentError(
            "Expected the trainer to have a data module or loaders of PyG graphs, or argument `data` of "
            f"ExplainCallback to be the graphs, but got {type(module).__name__} and no loader of graphs."
        )
    return of_datasets(parts, subset, seed)


def of_module(module: LightningDataModule, seed: int = 0) -> Source:
    """Return the source of a data module without a trainer. Users' data modules are set up as for a fit.

    Args:
        module: The data module.
        seed: Seed for datasets that draw random numbers when they are read.

    Raises:
        ArgumentError: The data module has no graphs.
    """
    source = _of_known_module(module, "all", seed)
    if source is None:
        module.prepare_data()
        module.setup("fit")
        source = _of_known_module(module, "all", seed)
    if source is not None:
        return source
    parts = {
        "train": list(loader_datasets(module.train_dataloader(), seed)),
        "val": list(loader_datasets(module.val_dataloader(), seed)),
    }
    if not any(parts.values()):
        raise ArgumentError(f"Expected {type(module).__name__} to have loaders of PyG graphs, but they have none.")
    return of_datasets(parts, "all", seed)


def _of_known_module(module: Any, subset: Subset, seed: int) -> Source | None:
    """Return the source of a data module of attree or PyG; None for any other data module."""
    if isinstance(module, LinkDataModule):
        linked_graph = module.graph if subset == "all" else module.parts[subset]
        return Source([linked_graph], num_classes=2, class_names=LINK_NAMES, only_links=True, name=module.name)
    if isinstance(module, HeteroDataModule | NodeDataModule):
        is_plain = isinstance(module, NodeDataModule)
        return Source(
            [module.graph],
            nodes_of(module.graph if is_plain else module.masked(module.graph), subset),
            module.truth,
            module.num_classes,
            module.class_names,
            module.node_types if isinstance(module, NodeDataModule) else None,
            name=module.name,
            node_type=module.node_type if isinstance(module, HeteroDataModule) else None,
            subset=subset,
        )
    if isinstance(module, GraphDataModule):
        positions = None if subset == "all" else torch.as_tensor(module.split[subset])
        names = module.class_names, module.node_types
        return Source(module.graphs, positions, None, module.num_classes, *names, name=module.name, subset=subset)
    if isinstance(graph := getattr(module, "data", None), Data | HeteroData):
        if hasattr(module, "input_train_edges"):  # PyG's LightningLinkData
            return of_links(with_links(module, subset))
        nodes = None if subset == "all" else getattr(module, f"input_{subset}_nodes", None)  # PyG's LightningNodeData
        return of_graph(graph, subset, nodes, getattr(module, "input_train_nodes", None))
    datasets = {part: getattr(module, f"{part}_dataset", None) for part in PARTS}  # PyG's LightningDataset
    parts = {part: [as_dataset(dataset)] for part, dataset in datasets.items() if dataset is not None}
    return of_datasets(parts, subset, seed) if parts else None


def _say_other_part(parts: dict[str, list[Any]], subset: Subset) -> None:
    """Explain the graphs of the only split that `validate` and `test` load, and warn that it is another subset."""
    datasets = [dataset for part in parts.values() for dataset in part]
    if sum(len(dataset) for dataset in datasets) > 1:
        rank_zero_warn(f"The loaders of this call have no graphs of subset {subset!r}: all their graphs are explained.")
        parts[subset] = datasets


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
            "Expected a loader of a whole heterogeneous graph, but got one that draws links: argument `data` "
            "can be the graph with `edge_label_index` in one type of edges."
        )
    graph = copy.copy(graph)
    graph.edge_label_index = graph.edge_index[:, :0]
    return graph


def _dataset_of(loader: Any) -> Any:
    """Return the dataset of a loader if its items can be read by index; else None."""
    dataset = getattr(loader, "dataset", None)
    return dataset if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else None


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
    types_and_links = [get_edge_label_index(graph, requested[part]) for part in parts]
    edge_types = {edge_type for edge_type, _ in types_and_links}
    if len(edge_types) > 1:
        names = ", ".join(str(edge_type) for edge_type in sorted(edge_types))
        raise UnsupportedModelError(f"Expected pairs of one type of edges, but LightningLinkData has those of {names}.")
    labels = []
    for part, (_, links) in zip(parts, types_and_links, strict=True):
        of_part = getattr(module, f"input_{part}_labels", None)
        is_edge = torch.ones(links.shape[1])
        labels.append(is_edge if of_part is None else _loaded(module, part, torch.as_tensor(of_part).float().cpu()))
    graph = copy.copy(graph)
    for store in graph.edge_stores if isinstance(graph, HeteroData) else []:
        for key in ("edge_label_index", "edge_label"):
            store.pop(key, None)
    store = graph[edge_types.pop()] if isinstance(graph, HeteroData) else graph
    store["edge_label_index"] = torch.cat([links.cpu() for _, links in types_and_links], dim=1)
    store["edge_label"] = torch.cat(labels)
    return graph


def _loaded(module: Any, part: str, labels: Tensor) -> Tensor:
    """Return the labels of a split's pairs as PyG's loader returns them."""
    options = getattr(module, "loader_kwargs" if part == "train" else "eval_loader_kwargs", None) or {}
    sampling = NegativeSampling.cast(options.get("neg_sampling"))
    is_binary = options.get("neg_sampling_ratio") or (sampling is not None and sampling.is_binary())
    return labels + 1 if is_binary and labels.numel() and float(labels.min()) == 0 else labels
