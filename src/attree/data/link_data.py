"""Base of link datasets: one graph some of whose edges are held out, to be told from pairs that are none."""

from __future__ import annotations

import copy
import random
from abc import abstractmethod
from functools import cached_property

import torch
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

from attree.data.base import DatasetModule
from attree.data.checks import check_graph
from attree.data.counts import Counts
from attree.data.loading.sharding import process_of
from attree.data.whole_graph import WholeGraph
from attree.errors import expect, expect_bool, expect_number, expect_seed

PARTS = ("train", "val", "test")


class LinkDataModule(DatasetModule):
    """One graph whose links are predicted, split by PyG's `RandomLinkSplit`, trained full-batch.

    Each part is a graph (`x`, `edge_index`) with `edge_label_index` [2, P], the pairs to tell, and `edge_label` [P], 1
    for edges. Networks see the training edges when they train and validate, and the validation edges too when they are
    tested. Training pairs are edges alone: a model draws other pairs beside them, anew in every step. In a distributed
    run each process gets its share of the validation and test pairs, each pair exactly once.

    A subclass sets `name` and `counts` and implements `load`, which is called once, when the graph is first needed.

    Args:
        val_fraction: Share of the edges that validate.
        test_fraction: Share of the edges that test.
        undirected: Whether each edge is there both ways, and both are held out together.
        seed: Seed of the split and of the pairs that are no edges.
    """

    counts: Counts

    def __init__(
        self, val_fraction: float = 0.05, test_fraction: float = 0.1, undirected: bool = True, seed: int = 0
    ) -> None:
        super().__init__()
        expect_number(val_fraction, "val_fraction", above=0, below=1)
        expect_number(test_fraction, "test_fraction", above=0, below=1)
        both = val_fraction + test_fraction
        expect(both < 1, "val_fraction + test_fraction", "below 1, so that edges are left to train on", both)
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
        """The graphs of `train`, `val` and `test`, each with the pairs that are told."""
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
        # PyG splits by the global random states of torch and Python: they are set for the split, and left as they were.
        state = random.getstate()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                random.seed(self.seed)
                parts = split(plain)
        finally:
            random.setstate(state)
        return dict(zip(PARTS, parts, strict=True))

    @property
    def graph(self) -> Data:
        """What is explained: the test pairs, in the graph that tests see."""
        return self.parts["test"]

    def prepare_data(self) -> None:
        """Download or process in one process of the machine, before the others read."""
        _ = self.parts

    def setup(self, stage: str | None = None) -> None:
        """Load the graph in every process."""
        _ = self.parts

    def train_dataloader(self) -> WholeGraph[Data]:
        """One step an epoch over the training graph and its edges."""
        return WholeGraph(self.parts["train"])

    def val_dataloader(self) -> WholeGraph[Data]:
        """The validation pairs of this process."""
        return WholeGraph(self._share("val"))

    def test_dataloader(self) -> WholeGraph[Data]:
        """The test pairs of this process."""
        return WholeGraph(self._share("test"))

    def predict_dataloader(self) -> WholeGraph[Data]:
        """The test pairs, all of them in every process."""
        return WholeGraph(self.parts["test"])

    def _share(self, part: str) -> Data:
        rank, world_size = process_of(self.trainer)
        graph = self.parts[part]
        if world_size == 1:
            return graph
        share = copy.copy(graph)
        share.edge_label_index = graph.edge_label_index[:, rank::world_size]
        share.edge_label = graph.edge_label[rank::world_size]
        return share
