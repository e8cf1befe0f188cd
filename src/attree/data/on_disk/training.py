"""Train on a graph on disk: a data module of sampled mini-batches, validated on exact neighbourhoods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from attree.data.checks import MASKS, Counts
from attree.data.dataset_module import DatasetModule
from attree.data.neighbor_sampling import check_num_neighbors, neighbor_loader
from attree.data.node_data import NodeDataModule, check_depth, stated_depth
from attree.data.on_disk.graph import DESCRIPTION, MEMORY, OnDiskGraph, write_graph
from attree.data.on_disk.surroundings import Room, TooLargeError, cut_out, probe_nodes, room_of
from attree.data.splits import epoch_of, process_of, random_parts
from attree.errors import ArgumentError, expect, expect_instance, expect_int
from attree.io.files import FolderLock

Part = Literal["train", "val", "test"]

NUM_NEIGHBORS = [15, 10]
"""Default numbers of edges to sample per node and hop, for a network of two layers."""

PROBES = 4
"""Number of nodes whose outputs show how far a network reads."""

WRITING_SECONDS = 3600.0
"""How long a process waits for another one that writes the graph."""


class OnDisk(DatasetModule):
    """A graph in a folder, which may be larger than memory: `attree fit --data OnDisk --data.folder FOLDER`.

    A training step takes a mini-batch of training nodes with sampled neighbourhoods. Validation and test take the exact
    neighbourhoods of their nodes, as many at once as fit into `memory`; so does `predict` for all nodes. Only the edges
    and features that a step needs are read. In a distributed run, each process has its share of the nodes.

    A network with more layers than `num_neighbors` has hops is refused, because its neighbourhoods would be cut off. A
    network that also reads degrees of neighbours (GCN) is validated on one hop more; this is found by an experiment.

    Args:
        folder: The folder, as `attree convert` or `attree.data.write_graph` write it: with features `x`, labels `y`
            and the masks `train_mask`, `val_mask` and `test_mask`.
        num_neighbors: Edges to sample per node in each hop, -1 for all; None for [15, 10].
        batch_size: Training nodes per step and process.
        val_num_neighbors: Edges to sample per node in each hop in validation and test; None takes exact neighbourhoods.
        num_workers: Number of processes that sample ahead of training.
        sampling_seed: Seed of the order of training nodes and of the sampled neighbours.
        num_classes: Number of classes; None for the highest label + 1.
        split_seed: Seed of a random split into 60 % training, 20 % validation and 20 % test nodes, for a graph without
            masks. Without a seed, such a graph is refused.
        memory: Bytes that neighbourhoods may take while a network runs on them.
        source: A data module whose graph is written to the folder first, if the folder has none.

    Attributes:
        graph: The graph on disk.
    """

    unrecorded: ClassVar[tuple[str, ...]] = ("source",)

    def __init__(
        self,
        folder: str,
        num_neighbors: list[int] | None = None,
        batch_size: int = 1024,
        val_num_neighbors: list[int] | None = None,
        num_workers: int = 0,
        sampling_seed: int = 0,
        num_classes: int | None = None,
        split_seed: int | None = None,
        memory: float = MEMORY,
        source: NodeDataModule | None = None,
    ) -> None:
        super().__init__()
        self.num_neighbors = NUM_NEIGHBORS if num_neighbors is None else num_neighbors
        self.val_num_neighbors = val_num_neighbors
        check_num_neighbors(self.num_neighbors)
        if val_num_neighbors is not None:
            check_num_neighbors(val_num_neighbors, "val_num_neighbors")
        self.batch_size = expect_int(batch_size, "batch_size", 1)
        self.num_workers = expect_int(num_workers, "num_workers")
        self.sampling_seed = expect_int(sampling_seed, "sampling_seed")
        expect_instance(source, "source", NodeDataModule, optional=True)
        self.graph = _opened(Path(folder), memory, source)
        self.name, self.class_names = self.graph.name, self.graph.class_names
        self.split_seed = split_seed
        highest = self._check_graph()
        classes = highest + 1 if num_classes is None else expect_int(num_classes, "num_classes", 1)
        expect(highest < classes, "num_classes", f"above the highest label, {highest}", num_classes)
        self.counts = Counts(self.graph.num_nodes, self.graph.num_edges, self.graph.num_features, classes)
        self._hops: int | None = None
        self._room: Room | None = None

    def _check_graph(self) -> int:
        """Raise unless the graph has features, labels and masks, or a seed for them; return the highest label."""
        graph, words = self.graph, f"a graph with {', '.join(self.graph.attributes) or 'no attributes'}"
        fits = all(graph.attributes.get(name) == "node" for name in ("x", "y"))
        expect(fits, "folder", "a graph with features `x` and labels `y` of nodes", words)
        expect(
            graph.array("x").dtype.kind == "f" and graph.array("x").ndim == 2, "folder", "features [N, width]", words
        )
        labels = graph.array("y")
        is_class = labels.dtype.kind in "iu" and labels.ndim == 1
        expect(is_class, "folder", "a graph with one class per node", f"labels {labels.dtype} {labels.shape}")
        masks = [name for name in MASKS if name in graph]
        if self.split_seed is None and len(masks) < len(MASKS):
            missing = ", ".join(name for name in MASKS if name not in masks)
            raise ArgumentError(
                f"Expected argument `folder` to have {', '.join(MASKS)}, but got a graph without {missing}: convert it "
                "with them, or pass `split_seed` for a random split."
            )
        if self.split_seed is not None:
            expect(not masks, "split_seed", "None for a graph that has masks", f"{self.split_seed} beside {masks}")
        return max((int(piece.max()) for piece in graph.file("y").pieces(2**22) if piece.size), default=0)

    def nodes(self, part: Part) -> Tensor:
        """Return the ids of the nodes for training, validation or testing, ascending."""
        return self._nodes[part]

    @cached_property
    def _nodes(self) -> dict[Part, Tensor]:
        parts: tuple[Part, ...] = ("train", "val", "test")
        if self.split_seed is None:
            nodes = [self.graph.mask(name) for name in MASKS]
        else:
            by_part = random_parts(self.graph.num_nodes, self.split_seed)
            nodes = [torch.from_numpy(np.sort(ids)) for ids in by_part]
        expect(nodes[0].numel() > 0, "folder", "a graph with training nodes", "none")
        return dict(zip(parts, nodes, strict=True))

    def labels(self) -> Tensor:
        """Return the labels that training, validation and test read."""
        return torch.cat([self.graph.rows("y", nodes) for nodes in self._nodes.values()])

    def setup(self, stage: str | None = None) -> None:
        """Refuse an unsuitable network, and find how far it reads."""
        module = None if self.trainer is None else self.trainer.lightning_module
        if module is not None:
            check_depth(module, self.num_neighbors)
            self._room = room_of(self.graph, module)
            self._hops = reach(module, self.graph, stated_depth(module) or len(self.num_neighbors))

    def train_dataloader(self) -> NodeLoader:
        """Return a loader of sampled mini-batches of this process's training nodes."""
        return self._sampled(self.nodes("train"), self.num_neighbors)

    def val_dataloader(self) -> Any:
        """Return a loader of this process's validation nodes."""
        return self._evaluated(self.nodes("val"))

    def test_dataloader(self) -> Any:
        """Return a loader of this process's test nodes."""
        return self._evaluated(self.nodes("test"))

    def predict_dataloader(self) -> Any:
        """Return a loader of all nodes, in their order."""
        return self._exact(torch.arange(self.graph.num_nodes))

    def _sampled(self, nodes: Tensor, num_neighbors: Sequence[int], shuffle: bool = True) -> NodeLoader:
        return neighbor_loader(
            self.graph,
            nodes,
            num_neighbors,
            self.batch_size,
            self.sampling_seed,
            *process_of(self.trainer),
            self.num_workers,
            epoch_of(self.trainer),
            shuffle,
        )

    def _evaluated(self, nodes: Tensor) -> NodeLoader | ExactBatches:
        if self.val_num_neighbors is not None:
            return self._sampled(nodes, self.val_num_neighbors, shuffle=False)
        rank, world_size = process_of(self.trainer)
        return self._exact(nodes[rank::world_size])

    def _exact(self, nodes: Tensor) -> ExactBatches:
        hops = len(self.num_neighbors) if self._hops is None else self._hops
        expect(hops > 0, "val_num_neighbors", "given, as the network's outputs depend on the whole graph", None)
        room = Room(self.graph.memory) if self._room is None else self._room
        return ExactBatches(self.graph, nodes, hops, self.batch_size, room)


class ExactBatches:
    """A loader of mini-batches with all that the outputs for their nodes depend on, as `neighbor_loader` lists them.

    A batch whose neighbourhoods do not fit into memory is split. While they take less than half of it, batches grow.

    Args:
        graph: The graph.
        nodes: Ids of the nodes.
        hops: Number of hops.
        batch_size: Number of nodes in the first batch.
        room: How much fits into memory.

    Raises:
        TooLargeError: The neighbourhood of a single node does not fit.
    """

    def __init__(self, graph: OnDiskGraph, nodes: Tensor, hops: int, batch_size: int, room: Room) -> None:
        self.graph, self.nodes, self.hops, self.batch_size, self.room = graph, nodes, hops, batch_size, room

    def __iter__(self) -> Iterator[Data]:
        begin, size = 0, self.batch_size
        while begin < self.nodes.numel():
            seeds = self.nodes[begin : begin + size]
            try:
                batch = exact_batch(self.graph, seeds, self.hops, self.room)
            except TooLargeError:
                if seeds.numel() == 1:
                    raise
                size = seeds.numel() // 2
                continue
            if self.room.bytes(int(batch.num_nodes or 0), batch.num_edges) <= self.room.memory / 2:
                size *= 2
            begin += seeds.numel()
            yield batch


def exact_batch(graph: OnDiskGraph, seeds: Tensor, hops: int, room: Room) -> Data:
    """Return a mini-batch of nodes with all nodes within some hops of them, and all edges that enter nearer nodes."""
    cut = cut_out(graph, np.sort(seeds.numpy()), hops, closed=False, room=room)
    is_other = ~np.isin(cut.nodes, seeds.numpy(), assume_unique=True)
    order = np.concatenate([np.searchsorted(cut.nodes, seeds.numpy()), np.flatnonzero(is_other)])
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    x = graph.rows("x", cut.nodes)
    return Data(
        x=(x.float() if x.dtype == torch.float16 else x)[torch.from_numpy(order)],
        edge_index=torch.from_numpy(place[cut.edge_index]),
        y=graph.rows("y", cut.nodes)[torch.from_numpy(order)].long(),
        n_id=torch.from_numpy(cut.nodes[order]),
        input_id=seeds,
        batch_size=seeds.numel(),
    )


def reach(module: nn.Module, graph: OnDiskGraph, layers: int) -> int:
    """Return how many hops the outputs of a network depend on: its layers, or one more if it reads degrees (GCN).

    The network runs on larger and larger neighbourhoods of a few nodes. The result is 0 if the outputs change even
    with the largest ones, as with a norm over all nodes.

    Args:
        module: The network.
        graph: The graph.
        layers: Number of hops of its layers.
    """
    seeds = torch.from_numpy(np.sort(probe_nodes(graph, layers + 2, PROBES)))
    outputs = []
    was_training, device = module.training, next((weight.device for weight in module.parameters()), None)
    module.eval()
    try:
        with torch.no_grad():
            for hops in (layers, layers + 1, layers + 2):
                batch = exact_batch(graph, seeds, hops, Room(np.inf)).to(device)
                outputs.append(module(batch.x, batch.edge_index)[: seeds.numel()])
    except (TypeError, AttributeError, IndexError, KeyError) as error:
        rank_zero_warn(
            f"{type(module).__name__} could not be called with `(x, edge_index)` ({error}), so nobody knows whether it "
            f"reads farther than {layers} hops, which validation takes. Longer `num_neighbors` take more."
        )
        return layers
    finally:
        module.train(was_training)
    for hops, output, last in zip((layers, layers + 1), outputs, outputs[1:], strict=False):
        if torch.allclose(output, last, rtol=1e-4, atol=1e-5):
            return hops
    return 0


def _opened(folder: Path, memory: float, source: NodeDataModule | None) -> OnDiskGraph:
    """Open a graph on disk. If there is none, write that of another data module first, in one process."""
    if source is not None and not (folder / DESCRIPTION).exists():
        with FolderLock(folder, WRITING_SECONDS):
            if not (folder / DESCRIPTION).exists():
                write_graph(source.graph, folder, source.name)
    return OnDiskGraph(folder, memory)
