"""Base class of link datasets: one graph whose held-out edges are predicted."""

from __future__ import annotations

import copy
from abc import abstractmethod
from functools import cached_property

from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

from attree.data.checks import Counts, check_graph
from attree.data.dataset_module import DatasetModule, WholeGraph
from attree.data.random_state import seeded_apart
from attree.data.splits import check_fractions, process_of
from attree.errors import expect_bool, expect_seed

PARTS = ("train", "val", "test")


class LinkDataModule(DatasetModule):
    """One graph whose links are predicted, split by PyG's `RandomLinkSplit` and trained full-batch.

    Each split is a graph (`x`, `edge_index`) with `edge_label_index` [2, P], the links to predict, and `edge_label`
    [P], which is 1 for edges. Networks see the training edges in training and validation, and also the validation edges
    in testing. Training links are edges only: the model draws negative links in every step. In a distributed run, each
    validation and test link goes to exactly one process.

    A subclass sets `name` and `counts` and implements `load`, which is called once when the graph is first needed.

    Args:
        val_fraction: Fraction of the edges for validation.
        test_fraction: Fraction of the edges for testing.
        undirected: Whether the graph has each edge in both directions. Both are then held out together.
        seed: Seed of the split and of the negative links.
    """

    counts: Counts

    def __init__(
        self, val_fraction: float = 0.05, test_fraction: float = 0.1, undirected: bool = True, seed: int = 0
    ) -> None:
        super().__init__()
        check_fractions(val_fraction, test_fraction, "edges")
        expect_bool(undirected, "undirected")
        expect_seed(seed)
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.undirected = undirected
        self.seed = seed

    @abstractmethod
    def load(self) -> Data:
        """Read the graph with all its edges."""

    @cached_property
    def parts(self) -> dict[str, Data]:
        """The graphs of `train`, `val` and `test`, each with its links to predict."""
        graph = self.load()
        check_graph(graph)
        self.counts.check(self.name, [graph])
        plain = Data(x=graph.x, edge_index=graph.edge_index)
        split = RandomLinkSplit(
            num_val=self.val_fraction,
            num_test=self.test_fraction,
            is_undirected=self.undirected,
            add_negative_train_samples=False,
        )
        parts = seeded_apart(self.seed, lambda: split(plain))  # PyG draws from the global generators
        return dict(zip(PARTS, parts, strict=True))

    @property
    def graph(self) -> Data:
        """The graph to explain: the test split, with its links."""
        return self.parts["test"]

    def prepare_data(self) -> None:
        """Download or process the data in one process of each machine, before the others read it."""
        _ = self.parts

    def setup(self, stage: str | None = None) -> None:
        """Load the graph in every process."""
        _ = self.parts

    def train_dataloader(self) -> WholeGraph[Data]:
        """Return a loader with one step per epoch over the training graph and its edges."""
        return WholeGraph(self.parts["train"])

    def val_dataloader(self) -> WholeGraph[Data]:
        """Return a loader of this process's validation links."""
        return WholeGraph(self._share("val"))

    def test_dataloader(self) -> WholeGraph[Data]:
        """Return a loader of this process's test links."""
        return WholeGraph(self._share("test"))

    def predict_dataloader(self) -> WholeGraph[Data]:
        """Return a loader of all test links, in every process."""
        return WholeGraph(self.parts["test"])

    def _share(self, part: str) -> Data:
        """Return the graph of one split, with only those links to predict that belong to this process."""
        rank, world_size = process_of(self.trainer)
        graph = self.parts[part]
        if world_size == 1:
            return graph
        share = copy.copy(graph)
        share.edge_label_index = graph.edge_label_index[:, rank::world_size]
        share.edge_label = graph.edge_label[rank::world_size]
        return share
