"""Planetoid's citation graphs: Cora, CiteSeer and PubMed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch_geometric import datasets
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from attree.data.checks import Counts
from attree.data.datasets.third_party import open_dataset
from attree.data.ground_truth import GroundTruth
from attree.data.link_data import LinkDataModule
from attree.data.node_data import NodeDataModule
from attree.data.splits import check_split_arguments, paper_masks, random_per_class
from attree.errors import expect, expect_bool

COUNTS = {
    "Cora": Counts(2708, 10556, 1433, 7),
    "CiteSeer": Counts(3327, 9104, 3703, 6),
    "PubMed": Counts(19717, 88648, 500, 3),
}

CLASS_NAMES = {
    "Cora": (
        *("theory", "reinforcement learning", "genetic algorithms", "neural networks", "probabilistic methods"),
        *("case based", "rule learning"),
    ),
    "CiteSeer": ("AI", "machine learning", "information retrieval", "databases", "agents", "HCI"),
}
"""Topic names. The files only number them; the names follow from the number of papers of each topic in the original
data. PubMed's could not be identified with certainty."""


class Planetoid(NodeDataModule):
    """Citation graphs of "Revisiting Semi-Supervised Learning with Graph Embeddings" (ICML 2016).

    Nodes are papers, edges are citations in both directions, features are bags of words, and classes are topics.
    `torch_geometric.datasets.Planetoid` reads the graphs, and downloads them if they are missing. No ground truth.

    Args:
        name: `Cora`, `CiteSeer` or `PubMed`.
        split: `paper` draws 100 training nodes of each class and tests on all others. Its validation nodes are a sample
            of the test nodes, for monitoring only (see `paper_masks`): selecting on them leaks test labels. `public` is
            Planetoid's split: 20 training nodes of each class, 500 validation and 1,000 test nodes, disjoint.
        seed: Seed of the `paper` split.
        num_val: Number of test nodes to use as validation nodes of the `paper` split, for monitoring.
        normalize_features: Scale every node's features to a sum of 1 with PyG's `NormalizeFeatures`, as the paper's
            authors do.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the files are in `<root>/planetoid/<name>/raw`.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    def __init__(
        self,
        name: Literal["Cora", "CiteSeer", "PubMed"] = "Cora",
        split: Literal["paper", "public"] = "paper",
        seed: int = 0,
        num_val: int = 500,
        normalize_features: bool = True,
        root: str | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        expect(isinstance(name, str) and name in COUNTS, "name", f"one of {', '.join(COUNTS)}", name)
        expect(split in ("paper", "public"), "split", "`paper` or `public`", split)
        check_split_arguments(seed, num_val)
        expect_bool(normalize_features, "normalize_features")
        self.name = name
        self.counts = COUNTS[name]
        self.class_names = CLASS_NAMES.get(name)

    def load(self) -> tuple[Data, GroundTruth | None]:
        """Read the graph with PyG and set the masks of the split."""
        graph = _read(self.name, self.root, self.hparams["normalize_features"])
        if self.hparams["split"] == "paper":
            rng = np.random.default_rng(self.hparams["seed"])
            paper_masks(graph, random_per_class(graph.y, rng), self.hparams["num_val"], rng)
        return graph, None


class PlanetoidLinks(LinkDataModule):
    """Link prediction on `Planetoid`'s graphs, as in "Variational Graph Auto-Encoders" (Kipf and Welling, 2016).

    By default, 5 % of the edges are for validation and 10 % for testing, each with as many negative links.

    Args:
        name: `Cora`, `CiteSeer` or `PubMed`.
        val_fraction: Fraction of the edges for validation.
        test_fraction: Fraction of the edges for testing.
        seed: Seed of the split.
        normalize_features: Scale every node's features to a sum of 1 with PyG's `NormalizeFeatures`.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the files are in `<root>/planetoid/<name>/raw`.
    """

    def __init__(
        self,
        name: Literal["Cora", "CiteSeer", "PubMed"] = "Cora",
        val_fraction: float = 0.05,
        test_fraction: float = 0.1,
        seed: int = 0,
        normalize_features: bool = True,
        root: str | None = None,
    ) -> None:
        super().__init__(val_fraction, test_fraction, seed=seed)
        expect(isinstance(name, str) and name in COUNTS, "name", f"one of {', '.join(COUNTS)}", name)
        expect_bool(normalize_features, "normalize_features")
        self.name = f"{name} links"
        self.counts = COUNTS[name]

    def load(self) -> Data:
        """Read the graph with PyG."""
        return _read(self.hparams["name"], self.root, self.hparams["normalize_features"])


def _read(name: str, folder: Path, normalize_features: bool) -> Data:
    """Read a graph with PyG, which downloads it if it is missing."""
    root = folder / "planetoid"
    files = f"raw/ind.{name.lower()}.{{x,tx,allx,y,ty,ally,graph,test.index}}"
    dataset = open_dataset(name, root / name, files, lambda: datasets.Planetoid(str(root), name))
    graph: Data = dataset[0]
    return NormalizeFeatures()(graph) if normalize_features else graph
