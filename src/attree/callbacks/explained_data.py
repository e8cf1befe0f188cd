"""The graphs that a trainer's model is explained on, wherever they come from."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from attree.data import GraphDataModule, GroundTruth, NodeDataModule
from attree.errors import ArgumentError, UnsupportedModelError, expect

Subset = Literal["all", "train", "val", "test"]
"""Which nodes or graphs are explained."""

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class ExplainedData:
    """One graph whose nodes are explained, or many graphs that are explained each.

    Attributes:
        graphs: The graph, alone; or the graphs.
        choice: Ids of what may be explained: nodes of the one graph, or positions in `graphs`; None allows all.
        truth: True edges of the nodes that have some.
        num_classes: Number of classes, where it is known.
        class_names: What classes are called, where the data module says so.
        node_types: What the columns of one-hot node features mean, where the data module says so.
    """

    graphs: Sequence[Data]
    choice: Tensor | None = None
    truth: GroundTruth | None = None
    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None

    @property
    def is_one_graph(self) -> bool:
        """Whether there is one graph only."""
        return len(self.graphs) == 1

    def count_classes(self) -> int | None:
        """Number of classes: as known, or one more than the highest label of all graphs; None if labels are none."""
        if self.num_classes is not None:
            return self.num_classes
        labels = [graph.get("y") for graph in self.graphs]
        known = [y for y in labels if isinstance(y, Tensor) and y.numel() and not y.is_floating_point() and y.dim() < 2]
        return max(int(y.max()) for y in known) + 1 if known and len(known) == len(labels) else None

    def on(self, positions: Sequence[int], device: torch.device) -> Data:
        """The one graph, or a batch of some of the graphs, on a device; what was given stays where it is."""
        if self.is_one_graph:
            return copy.copy(self.graphs[0]).to(device)
        return Batch.from_data_list([self.graphs[position] for position in positions]).to(device)


def find_data(trainer: Trainer, given: Any = None, subset: Subset = "all") -> ExplainedData:
    """Find what is explained: what was given, or else the trainer's data module or loaders.

    Args:
        trainer: Knows its data module, or the loaders that it was called with.
        given: A `Data`, or several (a list, a dataset, a `Batch`); None looks at the trainer.
        subset: Which nodes or graphs.

    Raises:
        ArgumentError: Nothing was found; the message says what was looked at.
    """
    expect(subset in ("all", *PARTS), "subset", "'all', 'train', 'val' or 'test'", subset)
    if given is not None:
        return _of_graphs({"all": _as_graphs(given)}, subset)
    module = getattr(trainer, "datamodule", None)
    if isinstance(module, NodeDataModule):
        graph = module.graph
        names = module.class_names, module.node_types
        return ExplainedData([graph], _nodes(graph, subset), module.truth, module.num_classes, *names)
    if isinstance(module, GraphDataModule):
        chosen = None if subset == "all" else torch.as_tensor(module.split[subset])
        return ExplainedData(module.graphs, chosen, None, module.num_classes, module.class_names, module.node_types)
    if isinstance(graph := getattr(module, "data", None), Data):  # PyG's LightningNodeData
        nodes = None if subset == "all" else getattr(module, f"input_{subset}_nodes", None)
        return ExplainedData([graph], _nodes(graph, subset) if nodes is None else _ids(nodes))
    datasets = {part: getattr(module, f"{part}_dataset", None) for part in PARTS}  # PyG's LightningDataset
    parts: dict[str, list[Data]] = {
        part: _as_graphs(dataset) for part, dataset in datasets.items() if dataset is not None
    }
    if not parts:
        parts = {part: list(_of_loader(loader)) for part, loader in _loaders(trainer)}
    if not any(parts.values()):
        raise ArgumentError(
            "Expected the trainer to have a data module or loaders of PyG graphs, or argument `data` of "
            f"ExplainCallback to be what is explained, but got {type(module).__name__} and no loader of graphs."
        )
    return _of_graphs(parts, subset)


def _of_graphs(parts: dict[str, list[Data]], subset: Subset) -> ExplainedData:
    """Graphs of several parts as one list; the same graph in two parts counts once."""
    graphs: dict[int, Data] = {id(graph): graph for part in parts.values() for graph in part}
    if len(graphs) == 1:
        (graph,) = graphs.values()
        return ExplainedData([graph], _nodes(graph, subset))
    if subset == "all":
        return ExplainedData(list(graphs.values()))
    expect(bool(parts.get(subset)), "subset", "one that the data has graphs of", subset)
    wanted = {id(graph) for graph in parts[subset]}
    chosen = [position for position, key in enumerate(graphs) if key in wanted]
    return ExplainedData(list(graphs.values()), torch.tensor(chosen))


def _as_graphs(given: Any) -> list[Data]:
    if isinstance(given, HeteroData):
        raise UnsupportedModelError("Expected a graph with one kind of node and edge, but got a heterogeneous one.")
    if isinstance(given, Batch):
        return list(given.to_data_list())
    if isinstance(given, Data):
        return [given]
    sized = isinstance(given, Iterable) and hasattr(given, "__len__")
    expect(sized, "data", "a Data, a Batch, or a list or dataset of Data", type(given).__name__)
    graphs = list(given)
    fits = len(graphs) > 0 and all(isinstance(graph, Data) for graph in graphs)
    expect(fits, "data", "a Data, a Batch, or a list or dataset of Data", type(given).__name__)
    return graphs


def _loaders(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """The loaders that the running call has or makes, by part."""
    loops: dict[str, Any] = {
        "train": trainer.fit_loop,
        "val": trainer.fit_loop.epoch_loop.val_loop if trainer.state.fn == "fit" else trainer.validate_loop,
        "test": trainer.test_loop,
    }
    for part, loop in loops.items():
        source = loop._data_source
        if source.instance is not None and source.is_defined():
            yield part, source.dataloader()


def _of_loader(loader: Any) -> Iterator[Data]:
    """The graphs behind a loader: its one big graph, its dataset, or its first batch."""
    if isinstance(loader, Data):
        yield loader
    elif isinstance(graph := getattr(loader, "data", None) or getattr(loader, "graph", None), Data):
        yield graph  # of neighbour loaders, and of loaders of one whole graph
    elif isinstance(loader, list | tuple):
        for one in loader:
            yield from _of_loader(one)
    elif isinstance(loader, dict):
        for one in loader.values():
            yield from _of_loader(one)
    elif hasattr(loader, "dataset") and hasattr(loader.dataset, "__len__"):
        every = (loader.dataset[position] for position in range(len(loader.dataset)))
        yield from (graph for graph in every if isinstance(graph, Data))
    elif isinstance(loader, Iterable):
        for batch in islice(loader, 1):
            if isinstance(batch, Data):
                yield from _as_graphs(batch)


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
