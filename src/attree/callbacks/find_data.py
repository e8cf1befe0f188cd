"""Find the graphs to explain a model on: the user's, the data module's, or those of the trainer's loaders."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from attree.callbacks.explained_data import ExplainedData, Graphs, Subset
from attree.callbacks.user_graphs import (
    PARTS,
    as_dataset,
    explained_type,
    is_same_dataset,
    loader_datasets,
    trainer_loaders,
    with_links,
    without_repeats,
)
from attree.data import GraphDataModule, HeteroDataModule, LinkDataModule, NodeDataModule
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.evaluation.target_labels import LINK_NAMES


def find_data(trainer: Trainer, given: Any = None, subset: Subset = "all", seed: int = 0) -> ExplainedData:
    """Return the data to explain: the user's, or else that of the trainer's data module or loaders.

    Args:
        trainer: The trainer.
        given: A `Data`, or several (a list, a dataset, a `Batch`); None takes the trainer's.
        subset: The subset of nodes or graphs to choose targets from.
        seed: Seed for datasets that draw random numbers when they are read.

    Raises:
        ArgumentError: No graphs were found.
    """
    expect(subset in ("all", *PARTS), "subset", "'all', 'train', 'val' or 'test'", subset)
    if given is not None:
        return _of_datasets({"all": [as_dataset(given)]}, subset, seed)
    module = getattr(trainer, "datamodule", None)
    module_data = _of_data_module(module, subset, seed)
    if module_data is not None:
        return module_data
    loaders = dict(trainer_loaders(trainer))
    parts = {part: list(loader_datasets(loader, seed)) for part, loader in loaders.items()}
    if subset != "all" and not parts.get(subset) and trainer.state.fn != TrainerFn.FITTING:
        _say_other_part(parts, subset)
    if not any(parts.values()):
        raise ArgumentError(
            "Expected the trainer to have a data module or loaders of PyG graphs, or argument `data` of "
            f"ExplainCallback to be the graphs, but got {type(module).__name__} and no loader of graphs."
        )
    return _of_datasets(parts, subset, seed)


def find_module_data(module: LightningDataModule, seed: int = 0) -> ExplainedData:
    """Return the data of a data module without a trainer. Users' data modules are set up as for a fit.

    Args:
        module: The data module.
        seed: Seed for datasets that draw random numbers when they are read.

    Raises:
        ArgumentError: The data module has no graphs.
    """
    module_data = _of_data_module(module, "all", seed)
    if module_data is None:
        module.prepare_data()
        module.setup("fit")
        module_data = _of_data_module(module, "all", seed)
    if module_data is not None:
        return module_data
    parts = {
        "train": list(loader_datasets(module.train_dataloader(), seed)),
        "val": list(loader_datasets(module.val_dataloader(), seed)),
    }
    if not any(parts.values()):
        raise ArgumentError(f"Expected {type(module).__name__} to have loaders of PyG graphs, but they have none.")
    return _of_datasets(parts, "all", seed)


def _of_data_module(module: Any, subset: Subset, seed: int) -> ExplainedData | None:
    """Return the data of a data module of attree or PyG; None for any other data module."""
    if isinstance(module, HeteroDataModule):
        graph, nodes = module.graph, _nodes(module.masked(module.graph), subset)
        kind = module.node_type
        return ExplainedData(
            [graph], nodes, module.truth, module.num_classes, module.class_names, name=module.name, node_type=kind
        )
    if isinstance(module, LinkDataModule):
        linked_graph = module.graph if subset == "all" else module.parts[subset]
        return ExplainedData([linked_graph], num_classes=2, class_names=LINK_NAMES, name=module.name, has_links=True)
    if isinstance(module, NodeDataModule):
        graph = module.graph
        names = module.class_names, module.node_types
        nodes = _nodes(graph, subset)
        return ExplainedData([graph], nodes, module.truth, module.num_classes, *names, name=module.name)
    if isinstance(module, GraphDataModule):
        positions = None if subset == "all" else torch.as_tensor(module.split[subset])
        names = module.class_names, module.node_types
        return ExplainedData(module.graphs, positions, None, module.num_classes, *names, name=module.name)
    if isinstance(graph := getattr(module, "data", None), Data | HeteroData):
        if hasattr(module, "input_train_edges"):  # PyG's LightningLinkData
            return _of_links(with_links(module, subset))
        nodes = None if subset == "all" else getattr(module, f"input_{subset}_nodes", None)  # PyG's LightningNodeData
        return _of_nodes(graph, subset, nodes, getattr(module, "input_train_nodes", None))
    datasets = {part: getattr(module, f"{part}_dataset", None) for part in PARTS}  # PyG's LightningDataset
    parts = {part: [as_dataset(dataset)] for part, dataset in datasets.items() if dataset is not None}
    return _of_datasets(parts, subset, seed) if parts else None


def _of_links(graph: Data | HeteroData) -> ExplainedData:
    """Return the data of a graph whose pairs of nodes are explained."""
    labels = [store.get("edge_label") for store in (graph.edge_stores if isinstance(graph, HeteroData) else [graph])]
    given_labels = [label for label in labels if isinstance(label, Tensor)]
    plain = all(bool(((label == 0) | (label == 1)).all()) for label in given_labels)
    names = LINK_NAMES if plain else None
    return ExplainedData([graph], num_classes=2 if plain else None, class_names=names, has_links=True, only_links=True)


def _of_nodes(graph: Data | HeteroData, subset: Subset, nodes: Any = None, named: Any = None) -> ExplainedData:
    """Explain the nodes of a graph (of one type, if it has several), or its pairs if it has `edge_label_index`.

    Args:
        graph: The graph.
        subset: The subset of nodes to choose targets from.
        nodes: The nodes as given to PyG's data module; None takes the graph's mask.
        named: The type of the nodes, if the data module knows it: a type, or a pair of type and nodes.
    """
    if not isinstance(graph, HeteroData):
        links = "edge_label_index" in graph
        choice = _nodes(graph, subset) if nodes is None else _ids(nodes)
        return ExplainedData([graph], choice, has_links=links, only_links=links and "y" not in graph)
    kind = explained_type(graph, named)
    if kind is None:
        expect(subset == "all", "subset", "'all' if pairs of nodes are explained", subset)
        return _of_links(graph)
    nodes = nodes[1] if isinstance(nodes, tuple) else nodes
    every = nodes is None or isinstance(nodes, str)  # in PyG, a type alone means all its nodes
    return ExplainedData([graph], _nodes(graph[kind], subset) if every else _ids(nodes), node_type=kind)


def _say_other_part(parts: dict[str, list[Any]], subset: Subset) -> None:
    """Explain the graphs of the only split that `validate` and `test` load, and warn that it is another subset."""
    datasets = [dataset for part in parts.values() for dataset in part]
    if sum(len(dataset) for dataset in datasets) > 1:
        rank_zero_warn(f"The loaders of this call have no graphs of subset {subset!r}: all their graphs are explained.")
        parts[subset] = datasets


def _of_datasets(parts: dict[str, list[Any]], subset: Subset, seed: int) -> ExplainedData:
    """Join the datasets of several splits. A graph or dataset that occurs twice counts once."""
    datasets: list[Any] = []
    owners: list[set[str]] = []
    for part, of_part in parts.items():
        for dataset in map(without_repeats, of_part):
            place = next((place for place, other in enumerate(datasets) if is_same_dataset(other, dataset)), None)
            if place is None:
                datasets.append(dataset)
                owners.append({part})
            else:
                owners[place].add(part)
    graphs = Graphs(datasets, seed)
    if len(graphs) == 1:
        return _of_nodes(graphs[0], subset)
    if isinstance(graphs[0], HeteroData):
        raise UnsupportedModelError(
            f"Expected one heterogeneous graph, but got {len(graphs)}: argument `data` of ExplainCallback can be one "
            "of them."
        )
    links = "edge_label_index" in graphs[0]
    if subset == "all":
        return ExplainedData(graphs, has_links=links)
    ends = torch.tensor([len(dataset) for dataset in datasets]).cumsum(0).tolist()
    positions = [
        torch.arange(end - len(dataset), end)
        for dataset, end, of_parts in zip(datasets, ends, owners, strict=True)
        if subset in of_parts
    ]
    expect(bool(positions), "subset", "one that the data has graphs of", subset)
    return ExplainedData(graphs, torch.cat(positions), has_links=links)


def _nodes(graph: Data, subset: Subset) -> Tensor | None:
    """Return the nodes of a subset, by the graph's mask; None for all."""
    if subset == "all":
        return None
    mask = graph.get(f"{subset}_mask")
    expect(mask is not None, "subset", f"'all' if the graph has no `{subset}_mask`", subset)
    return _ids(mask)


def _ids(nodes: Any) -> Tensor:
    ids = torch.as_tensor(nodes).cpu()
    return ids.nonzero().view(-1) if ids.dtype == torch.bool else ids.view(-1)
