"""Any dataset of PyG, by the name of its class: its graph, or its graphs, as a data module."""

from __future__ import annotations

import hashlib
import inspect
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric import datasets
from torch_geometric.data import Data, Dataset, HeteroData
from torch_geometric.utils import degree

from attree.data.checks import MASKS
from attree.data.dataset_module import data_folder
from attree.data.datasets.motifs import MOTIFS, motif_edges
from attree.data.datasets.third_party import open_dataset
from attree.data.graph_data import InMemoryGraphs
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import InMemoryGraph
from attree.data.random_state import seeded_apart
from attree.errors import ArgumentError, did_you_mean, expect, expect_instance, expect_int

MAX_DEGREE = 49
"""Higher degrees share the last column of one-hot degrees."""


class PyG(InMemoryGraph):
    """The graph of a PyG dataset whose nodes are classified: `PyG("Amazon", {"name": "Photo"})`.

    The dataset's own masks are used if it has all three; otherwise nodes are split at random: 60 % for training, 20 %
    for validation, 20 % for testing. A graph without features gets one-hot degrees. A generated dataset with an edge
    mask and a node mask (`ExplainerDataset`) has a ground truth: its edges, for all nodes of the node mask.

    Args:
        dataset: Name of a class in `torch_geometric.datasets`.
        options: Arguments of that class, such as `{"name": "Photo"}`.
        split: Number of the split, if the dataset has several.
        split_seed: Seed of a random split, and of a generated dataset.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the files are in `<root>/pyg/<dataset>`, unless
            `options` has a `root`.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    runs_other_loaders = True

    def __init__(
        self,
        dataset: str,
        options: dict[str, Any] | None = None,
        split: int = 0,
        split_seed: int = 0,
        root: str | None = None,
        **sampling: Any,
    ) -> None:
        expect_int(split, "split")
        loaded = _load(dataset, options, root, split_seed)
        if len(loaded) != 1:
            raise ArgumentError(
                f"Expected argument `dataset` to have one graph, but {dataset} has {len(loaded):,}: use "
                "`attree.data.PyGGraphs`, which classifies graphs."
            )
        graph = _checked(loaded[0], dataset)
        has_masks = all(graph.get(mask) is not None for mask in MASKS)
        for mask in MASKS:
            if has_masks:
                graph[mask] = _column(graph[mask], split)
            elif mask in graph:
                del graph[mask]
        truth = _truth(graph)
        super().__init__(
            graph,
            truth,
            int(loaded.num_classes),
            _title(dataset, options),
            split_seed=None if has_masks else split_seed,
            **sampling,
        )


class PyGGraphs(InMemoryGraphs):
    """The graphs of a PyG dataset, each with one label: `PyGGraphs("TUDataset", {"name": "PROTEINS"})`.

    The graphs are split at random, stratified. Graphs without features get one-hot degrees. Graphs of
    `BA2MotifDataset` and `BAMultiShapesDataset` have a ground truth: the edges of their motifs, and the self-loops of
    the motifs' nodes.

    Args:
        dataset: Name of a class in `torch_geometric.datasets`.
        options: Arguments of that class, such as `{"name": "PROTEINS"}`.
        val_fraction: Fraction of the graphs for validation.
        test_fraction: Fraction of the graphs for testing; the rest is for training.
        batch_size: Number of graphs in a step.
        seed: Seed of the split, of the order of training graphs, and of a generated dataset.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the files are in `<root>/pyg/<dataset>`, unless
            `options` has a `root`.
    """

    runs_other_loaders = True

    def __init__(
        self,
        dataset: str,
        options: dict[str, Any] | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        batch_size: int = 32,
        seed: int = 0,
        root: str | None = None,
    ) -> None:
        loaded = _load(dataset, options, root, seed)
        if len(loaded) == 1:
            raise ArgumentError(
                f"Expected argument `dataset` to have several graphs, but {dataset} has one: use `attree.data.PyG`, "
                "which classifies nodes."
            )
        graphs = [_checked(graph, dataset) for graph in loaded]
        for graph in graphs:
            graph.y = graph.y.view(-1)
            if dataset in MOTIFS:
                graph.true_edge_mask = motif_edges(graph.edge_index, int(graph.num_nodes or 0), MOTIFS[dataset])
        name, classes = _title(dataset, options), int(loaded.num_classes)
        super().__init__(graphs, classes, name, val_fraction, test_fraction, batch_size, seed)


def _load(dataset: str, options: Mapping[str, Any] | None, root: str | None, seed: int) -> Any:
    """Return a PyG dataset, read, downloaded or generated with a seed, by one process at a time."""
    expect_instance(dataset, "dataset", str)
    expect_int(seed, "seed")
    kind = getattr(datasets, dataset, None)
    if not (isinstance(kind, type) and issubclass(kind, Dataset)):
        hint = did_you_mean(dataset, datasets.__all__)
        raise ArgumentError(
            f"Expected argument `dataset` to name a class of torch_geometric.datasets, but got {dataset!r}.{hint}"
        )
    arguments = dict(options or {})
    folder = (data_folder() if root is None else Path(root)) / "pyg" / dataset
    signature = inspect.signature(kind)
    if "root" in signature.parameters:
        folder = Path(arguments.setdefault("root", str(folder)))
    try:
        signature.bind(**arguments)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise ArgumentError(
            f"Expected argument `options` to be arguments of {dataset} ({names}), but got {dict(options or {})}: "
            f"{error}."
        ) from None
    # Not in the folder, which may be read-only.
    name = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    with FileLock(Path(tempfile.gettempdir()) / f"attree-{name}.lock"):
        # Some datasets draw from the global generators of torch, NumPy and Python.
        return seeded_apart(seed, lambda: open_dataset(dataset, folder, "its raw files", lambda: kind(**arguments)))


def _checked(graph: Any, dataset: str) -> Data:
    """Return a graph with features and only what a node or graph classifier needs."""
    if isinstance(graph, HeteroData) or not isinstance(graph, Data):
        raise ArgumentError(
            f"Expected argument `dataset` to have graphs of one node type, but {dataset} has {type(graph).__name__}: "
            "pass it as `data` to `attree.evaluate` or `ExplainCallback`, which take any graph."
        )
    expect(isinstance(graph.get("y"), Tensor), "dataset", "a dataset with labels", f"{dataset}, which has none")
    values = {name: graph[name] for name in graph.keys() if graph[name] is not None}  # noqa: SIM118
    copied = Data(**values)
    if "x" not in copied:
        degrees = degree(graph.edge_index[1], graph.num_nodes, torch.long).clamp_(max=MAX_DEGREE)
        copied.x = one_hot(degrees, MAX_DEGREE + 1).float()
    return copied


def _column(mask: Tensor, split: int) -> Tensor:
    """Return the mask of one split."""
    if mask.dim() == 1:
        expect(split == 0, "split", "0, because the dataset has one split", split)
        return mask
    expect(split < mask.size(1), "split", f"below {mask.size(1)}, the number of splits of the dataset", split)
    return mask[:, split].contiguous()


def _truth(graph: Data) -> GroundTruth | None:
    """Return the ground truth of a generated graph: its masked edges, and the self-loops of the masked nodes."""
    edge_mask, node_mask = graph.get("edge_mask"), graph.get("node_mask")
    if not isinstance(edge_mask, Tensor) or not isinstance(node_mask, Tensor):
        return None
    nodes = (node_mask > 0).nonzero().view(-1)
    edges = torch.cat([graph.edge_index[:, edge_mask > 0], nodes.expand(2, -1)], dim=1)
    del graph.edge_mask, graph.node_mask
    return GroundTruth(nodes, edges)


def _title(dataset: str, options: Mapping[str, Any] | None) -> str:
    """Return the name of a dataset in tables: that of its options if they have one."""
    name = (options or {}).get("name")
    return f"{dataset} {name}" if isinstance(name, str) else dataset
