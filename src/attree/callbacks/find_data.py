"""Find the graphs that a trainer's model is explained on: what was given, a data module's, or those of loaders."""

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
from torch_geometric.data import Batch, Data, HeteroData

from attree.callbacks.asked import PARTS, explained_type, is_heterogeneous, with_links
from attree.callbacks.explained_data import ExplainedData, Graphs, Subset
from attree.callbacks.random_state import seeded_apart
from attree.data import GraphDataModule, HeteroDataModule, LinkDataModule, NodeDataModule
from attree.errors import ArgumentError, UnsupportedModelError, expect

LINK_NAMES = ("no link", "a link")
"""What the classes of link predictors are called."""


def find_data(trainer: Trainer, given: Any = None, subset: Subset = "all", seed: int = 0) -> ExplainedData:
    """Find what is explained: what was given, or else the trainer's data module or the loaders of the running call.

    Args:
        trainer: Knows its data module, or the loaders that it was called with.
        given: A `Data`, or several (a list, a dataset, a `Batch`); None looks at the trainer.
        subset: Which nodes or graphs.
        seed: Seed of what datasets draw as they are read.

    Raises:
        ArgumentError: Nothing was found; the message says what was looked at.
    """
    expect(subset in ("all", *PARTS), "subset", "'all', 'train', 'val' or 'test'", subset)
    if given is not None:
        return _of_datasets({"all": [_as_dataset(given)]}, subset, seed)
    module = getattr(trainer, "datamodule", None)
    known = _of_data_module(module, subset, seed)
    if known is not None:
        return known
    loaders = dict(_loaders(trainer))
    parts = {part: list(_of_loader(loader, seed)) for part, loader in loaders.items()}
    if subset != "all" and not parts.get(subset) and trainer.state.fn != TrainerFn.FITTING:
        _say_other_part(parts, subset)
    if not any(parts.values()):
        raise ArgumentError(
            "Expected the trainer to have a data module or loaders of PyG graphs, or argument `data` of "
            f"ExplainCallback to be what is explained, but got {type(module).__name__} and no loader of graphs."
        )
    return _of_datasets(parts, subset, seed)


def find_module_data(module: LightningDataModule, seed: int = 0) -> ExplainedData:
    """Find what is explained in a data module without a trainer. Unknown data modules are set up as for a fit.

    Args:
        module: The data module.
        seed: Seed of what datasets draw as they are read.

    Raises:
        ArgumentError: It has no graphs.
    """
    known = _of_data_module(module, "all", seed)
    if known is None:
        module.prepare_data()
        module.setup("fit")
        known = _of_data_module(module, "all", seed)
    if known is not None:
        return known
    parts = {
        "train": list(_of_loader(module.train_dataloader(), seed)),
        "val": list(_of_loader(module.val_dataloader(), seed)),
    }
    if not any(parts.values()):
        raise ArgumentError(f"Expected {type(module).__name__} to have loaders of PyG graphs, but they have none.")
    return _of_datasets(parts, "all", seed)


def _of_data_module(module: Any, subset: Subset, seed: int) -> ExplainedData | None:
    """What is explained of a data module of attree or PyG; None for any other data module."""
    if isinstance(module, HeteroDataModule):
        graph, nodes = module.graph, _nodes(module.masked(module.graph), subset)
        kind = module.node_type
        return ExplainedData(
            [graph], nodes, module.truth, module.num_classes, module.class_names, name=module.name, node_type=kind
        )
    if isinstance(module, LinkDataModule):
        chosen = module.graph if subset == "all" else module.parts[subset]
        return ExplainedData([chosen], num_classes=2, class_names=LINK_NAMES, name=module.name, has_links=True)
    if isinstance(module, NodeDataModule):
        graph = module.graph
        names = module.class_names, module.node_types
        nodes = _nodes(graph, subset)
        return ExplainedData([graph], nodes, module.truth, module.num_classes, *names, name=module.name)
    if isinstance(module, GraphDataModule):
        chosen = None if subset == "all" else torch.as_tensor(module.split[subset])
        names = module.class_names, module.node_types
        return ExplainedData(module.graphs, chosen, None, module.num_classes, *names, name=module.name)
    if isinstance(graph := getattr(module, "data", None), Data | HeteroData):
        if hasattr(module, "input_train_edges"):  # PyG's LightningLinkData
            return _of_links(with_links(module, subset))
        nodes = None if subset == "all" else getattr(module, f"input_{subset}_nodes", None)  # PyG's LightningNodeData
        return _of_nodes(graph, subset, nodes, getattr(module, "input_train_nodes", None))
    datasets = {part: getattr(module, f"{part}_dataset", None) for part in PARTS}  # PyG's LightningDataset
    parts = {part: [_as_dataset(dataset)] for part, dataset in datasets.items() if dataset is not None}
    return _of_datasets(parts, subset, seed) if parts else None


def _of_links(graph: Data | HeteroData) -> ExplainedData:
    """A graph whose pairs are explained."""
    labels = [store.get("edge_label") for store in (graph.edge_stores if is_heterogeneous(graph) else [graph])]
    known = [label for label in labels if isinstance(label, Tensor)]
    plain = all(bool(((label == 0) | (label == 1)).all()) for label in known)
    names = LINK_NAMES if plain else None
    return ExplainedData([graph], num_classes=2 if plain else None, class_names=names, has_links=True, only_links=True)


def _of_nodes(graph: Data | HeteroData, subset: Subset, nodes: Any = None, named: Any = None) -> ExplainedData:
    """Explain the nodes of a graph (of one type, if it has several), or its pairs if it has `edge_label_index`.

    Args:
        graph: The graph.
        subset: Which nodes.
        nodes: The nodes, as a data module of PyG has them; None takes the graph's mask.
        named: What tells the type of the nodes, where the data module knows it.
    """
    if not isinstance(graph, HeteroData):
        links = "edge_label_index" in graph
        choice = _nodes(graph, subset) if nodes is None else _ids(nodes)
        return ExplainedData([graph], choice, has_links=links, only_links=links and "y" not in graph)
    kind = explained_type(graph, named)
    if kind is None:
        expect(subset == "all", "subset", "'all' where pairs of nodes are explained", subset)
        return _of_links(graph)
    nodes = nodes[1] if isinstance(nodes, tuple) else nodes
    every = nodes is None or isinstance(nodes, str)  # PyG's word for all nodes of a type
    return ExplainedData([graph], _nodes(graph[kind], subset) if every else _ids(nodes), node_type=kind)


def _say_other_part(parts: dict[str, list[Any]], subset: Subset) -> None:
    """In `test` and `validate` only one part has loaders: explain its graphs, and warn that they are another subset."""
    datasets = [dataset for part in parts.values() for dataset in part]
    if sum(len(dataset) for dataset in datasets) > 1:
        rank_zero_warn(f"The loaders of this call have no graphs of subset {subset!r}: all of theirs are explained.")
        parts[subset] = datasets


def _of_datasets(parts: dict[str, list[Any]], subset: Subset, seed: int) -> ExplainedData:
    """Join the datasets of several parts. A graph or dataset that occurs in two parts counts once."""
    datasets: list[Any] = []
    owners: list[set[str]] = []
    for part, own in parts.items():
        for dataset in own:
            known = next((place for place, one in enumerate(datasets) if _is_same(one, dataset)), None)
            if known is None:
                datasets.append(dataset)
                owners.append({part})
            else:
                owners[known].add(part)
    graphs = Graphs(datasets, seed)
    if len(graphs) == 1:
        return _of_nodes(graphs[0], subset)
    if is_heterogeneous(graphs[0]):
        raise UnsupportedModelError(
            f"Expected one heterogeneous graph, but got {len(graphs)}: argument `data` of ExplainCallback can be one "
            "of them."
        )
    links = "edge_label_index" in graphs[0]
    if subset == "all":
        return ExplainedData(graphs, has_links=links)
    ends = torch.tensor([len(dataset) for dataset in datasets]).cumsum(0).tolist()
    chosen = [
        torch.arange(end - len(dataset), end)
        for dataset, end, own in zip(datasets, ends, owners, strict=True)
        if subset in own
    ]
    expect(bool(chosen), "subset", "one that the data has graphs of", subset)
    return ExplainedData(graphs, torch.cat(chosen), has_links=links)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two datasets are one: the same object, or one and the same single graph."""
    if one is other:
        return True
    if len(one) != 1 or len(other) != 1:
        return False
    first, second = seeded_apart(0, lambda: one[0]), seeded_apart(0, lambda: other[0])
    return first is second or all(_is_equal(first, second, key) for key in ("x", "edge_index"))


def _is_equal(first: Data | HeteroData, second: Data | HeteroData, key: str) -> bool:
    """Whether two graphs have the same tensors under a key, in the same types."""
    if isinstance(first, HeteroData) != isinstance(second, HeteroData):
        return False
    if isinstance(first, HeteroData):
        ours, theirs = first.collect(key, allow_empty=True), second.collect(key, allow_empty=True)
        return ours.keys() == theirs.keys() and all(_are_equal(ours[kind], theirs[kind]) for kind in ours)
    return _are_equal(first.get(key), second.get(key))


def _are_equal(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one.cpu(), other.cpu())


def _as_dataset(given: Any) -> Any:
    """Turn what was given into a sequence of graphs."""
    if isinstance(given, Batch):
        return given.to_data_list()
    if isinstance(given, Data | HeteroData):
        return [given]
    sized = isinstance(given, Iterable) and hasattr(given, "__len__") and hasattr(given, "__getitem__")
    fits = sized and len(given) > 0 and isinstance(seeded_apart(0, lambda: given[0]), Data | HeteroData)
    expect(fits, "data", "a Data, a Batch, or a list or dataset of Data", type(given).__name__)
    return given


def _loaders(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """The loaders that the trainer has already opened, by part. No loader is opened again."""
    stage = trainer.state.fn
    if stage == TrainerFn.FITTING:
        yield "train", trainer.train_dataloader
    if stage in (TrainerFn.FITTING, TrainerFn.VALIDATING):
        yield "val", trainer.val_dataloaders
    if stage == TrainerFn.TESTING:
        yield "test", trainer.test_dataloaders


def _of_loader(loader: Any, seed: int) -> Iterator[Any]:
    """The datasets of graphs behind a loader: its one big graph, its dataset, or the graphs of its first batch."""
    whole = getattr(loader, "data", None)
    whole = getattr(loader, "graph", None) if whole is None else whole
    if isinstance(loader, Data | HeteroData):
        yield _as_dataset(loader)
    elif isinstance(loader, list | tuple):
        for one in loader:
            yield from _of_loader(one, seed)
    elif isinstance(loader, dict):
        for one in loader.values():
            yield from _of_loader(one, seed)
    elif isinstance(whole, Data | HeteroData):  # of neighbour loaders, and of loaders of one whole graph
        yield _as_dataset(_with_links(whole) if hasattr(loader, "edge_label_index") else whole)
    elif (dataset := _dataset_of(loader)) is not None:
        if len(dataset) and isinstance(seeded_apart(seed, lambda: dataset[0]), Data | HeteroData):
            yield dataset
    elif isinstance(loader, Iterable) and not isinstance(loader, Iterator):  # what an iterator gives is gone
        batches = seeded_apart(seed, lambda: list(islice(loader, 1)))
        yield from (_as_dataset(batch) for batch in batches if isinstance(batch, Data | HeteroData))


def _with_links(graph: Data | HeteroData) -> Data:
    """Mark the graph of a link loader: the loader, not the graph, holds the pairs."""
    if isinstance(graph, HeteroData):
        raise UnsupportedModelError(
            "Expected a loader of a whole heterogeneous graph, but got one that draws links: argument `data` of "
            "ExplainCallback can be the graph with `edge_label_index` in one type of edges."
        )
    graph = copy.copy(graph)
    graph.edge_label_index = graph.edge_index[:, :0]
    return graph


def _dataset_of(loader: Any) -> Any:
    """The dataset of a loader, if its items can be read one by one; else None."""
    dataset = getattr(loader, "dataset", None)
    return dataset if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else None


def _nodes(graph: Data, subset: Subset) -> Tensor | None:
    """Nodes of a part, by the graph's mask; None allows all."""
    if subset == "all":
        return None
    mask = graph.get(f"{subset}_mask")
    expect(mask is not None, "subset", f"'all' where the graph has no `{subset}_mask`", subset)
    return _ids(mask)


def _ids(nodes: Any) -> Tensor:
    ids = torch.as_tensor(nodes).cpu()
    return ids.nonzero().view(-1) if ids.dtype == torch.bool else ids.view(-1)
