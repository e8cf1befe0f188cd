"""Graph-level datasets: many small graphs, each with one label, read by a subclass or in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from sklearn.model_selection import train_test_split
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from attree.data.checks import Counts, check_graph, check_graph_labels
from attree.data.dataset_module import DatasetModule
from attree.data.splits import EvaluationShard, TrainingShard, check_fractions, epoch_of, process_of
from attree.errors import expect, expect_instance, expect_int, expect_list


class GraphDataModule(DatasetModule):
    """Many small graphs in mini-batches, with a random stratified split.

    Training, validation and test graphs are disjoint. In a distributed run, each process gets its share. All processes
    get equally many training graphs, shuffled (see `TrainingShard`); each validation and test graph goes to exactly one
    process.

    `GraphDataModule.from_graphs` makes a data module from graphs in memory. A subclass sets `name` and `counts` and
    implements `load`, which is called once when the graphs are first needed.

    Args:
        val_fraction: Fraction of the graphs for validation.
        test_fraction: Fraction of the graphs for testing; the rest is for training.
        batch_size: Number of graphs in a step.
        seed: Seed of the split and of the order of training graphs.
    """

    counts: Counts

    def __init__(self, val_fraction: float, test_fraction: float, batch_size: int, seed: int) -> None:
        super().__init__()
        check_fractions(val_fraction, test_fraction, "graphs")
        expect_int(batch_size, "batch_size", 1)
        expect_int(seed, "seed")
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.batch_size = batch_size
        self.seed = seed

    @staticmethod
    def from_graphs(
        graphs: Sequence[Data], num_classes: int | None = None, name: str = "Graphs", **split: Any
    ) -> GraphDataModule:
        """Make a data module from graphs in memory: see `InMemoryGraphs`."""
        return InMemoryGraphs(graphs, num_classes, name, **split)

    @abstractmethod
    def load(self) -> list[Data]:
        """Read the graphs, each with x, edge_index and y of shape [1]."""

    @cached_property
    def graphs(self) -> list[Data]:
        """All graphs, in the order of the dataset."""
        graphs = self.load()
        for position, graph in enumerate(graphs):
            check_graph(graph, f"graphs[{position}]")
        self.counts.check(self.name, graphs)
        check_graph_labels(graphs, self.num_classes)
        return graphs

    @cached_property
    def split(self) -> dict[str, list[int]]:
        """Positions of the `train`, `val` and `test` graphs, ascending."""
        labels = [int(graph.y) for graph in self.graphs]
        num_val, num_test = round(self.val_fraction * len(labels)), round(self.test_fraction * len(labels))
        for argument, count in (("val_fraction", num_val), ("test_fraction", num_test)):
            expect(count >= self.num_classes, argument, "enough for one graph of each class", f"{count} graphs")
        not_test, test = _stratified(range(len(labels)), labels, num_test, self.seed)
        train, val = _stratified(not_test, labels, num_val, self.seed)
        return {"train": train, "val": val, "test": test}

    def prepare_data(self) -> None:
        """Download or process the data in one process of each machine, before the others read it."""
        _ = self.graphs

    def setup(self, stage: str | None = None) -> None:
        """Load the graphs in every process."""
        _ = self.graphs

    def train_dataloader(self) -> DataLoader:
        """Return a loader of the training graphs, reshuffled every epoch."""
        graphs = self._part("train")
        shard = TrainingShard(graphs, *process_of(self.trainer), self.seed, epoch=epoch_of(self.trainer))
        return DataLoader(graphs, self.batch_size, sampler=shard, generator=shard.generator)

    def val_dataloader(self) -> DataLoader:
        """Return a loader of the validation graphs, in order."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader:
        """Return a loader of the test graphs, in order."""
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader:
        """Return a loader of all graphs, in order."""
        return DataLoader(self.graphs, self.batch_size, generator=torch.Generator())

    def _evaluation_loader(self, part: str) -> DataLoader:
        graphs = self._part(part)
        shard = EvaluationShard(graphs, *process_of(self.trainer))
        # The loader has its own generator: otherwise every validation would draw a number from the training generator.
        return DataLoader(graphs, self.batch_size, sampler=shard, generator=torch.Generator())

    def _part(self, part: str) -> list[Data]:
        return [self.graphs[position] for position in self.split[part]]


class InMemoryGraphs(GraphDataModule):
    """Data module of graphs in memory with one label each. The graphs are checked at once and split at random.

    Args:
        graphs: The graphs, each with `x`, `edge_index` and `y` [1].
        num_classes: Number of classes; None for the highest label + 1.
        name: Name of the data in messages and tables.
        val_fraction: Fraction of the graphs for validation.
        test_fraction: Fraction of the graphs for testing; the rest is for training.
        batch_size: Number of graphs in a step.
        seed: Seed of the split and of the order of training graphs.
    """

    unrecorded: ClassVar[tuple[str, ...]] = ("graphs",)

    def __init__(
        self,
        graphs: Sequence[Data],
        num_classes: int | None = None,
        name: str = "Graphs",
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)
        graph_list = expect_list(graphs, "graphs", Data, "a list of torch_geometric.data.Data")
        expect(len(graph_list) > 0, "graphs", "at least one graph", "none")
        for position, graph in enumerate(graph_list):
            check_graph(graph, f"graphs[{position}]")
            width, expected = graph.x.size(1), graph_list[0].x.size(1)
            expect(width == expected, f"graphs[{position}].x", f"{expected} wide, like the first graph's", width)
        highest = max((int(graph.y.max()) for graph in graph_list if graph.y.numel()), default=0)
        num_classes = highest + 1 if num_classes is None else num_classes
        check_graph_labels(graph_list, expect_int(num_classes, "num_classes", 1))
        expect_instance(name, "name", str)
        self.name = name
        self.counts = Counts(None, None, graph_list[0].x.size(1), num_classes, graphs=len(graph_list))
        self._in_memory = graph_list

    def load(self) -> list[Data]:
        """Return the graphs in memory."""
        return self._in_memory


def _stratified(
    positions: Sequence[int], labels: Sequence[int], num_held_out: int, seed: int
) -> tuple[list[int], list[int]]:
    """Hold out `num_held_out` positions, stratified by class; return (kept, held out)."""
    strata = [labels[position] for position in positions]
    remaining, held_out = train_test_split(list(positions), test_size=num_held_out, stratify=strata, random_state=seed)
    return sorted(remaining), sorted(held_out)
