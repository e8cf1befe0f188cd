"""OGB's ogbn-arxiv: a citation graph of 169,343 papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from attree.data.checks import Counts
from attree.data.datasets.third_party import open_dataset
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import NodeDataModule
from attree.data.splits import check_split_arguments, index_mask, paper_masks, random_per_class
from attree.errors import expect, expect_bool


class Arxiv(NodeDataModule):
    """ogbn-arxiv of "Open Graph Benchmark: Datasets for Machine Learning on Graphs" (NeurIPS 2020).

    Nodes are papers. Edges point from a paper to a paper that it cites. Features are averaged word embeddings, and
    classes are the 40 subject areas of arXiv's computer science. `ogb.nodeproppred` reads the graph, downloads it if it
    is missing, and keeps the processed graph. No ground truth.

    Args:
        split: `paper` draws 100 training nodes of each class (all 29 of the smallest) and tests on all others. Its
            validation nodes are a sample of the test nodes, for monitoring only (see `paper_masks`): selecting on them
            leaks test labels. `public` is OGB's split by year: train until 2017, validate on 2018, test on 2019 and
            later.
        symmetrize: Whether to add the reverse of every edge, so that information also flows from the citing paper to
            the cited one.
        seed: Seed of the `paper` split.
        num_val: Number of test nodes to use as validation nodes of the `paper` split, for monitoring.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the files are in `<root>/ogb/ogbn_arxiv`.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    name = "Arxiv"

    def __init__(
        self,
        split: Literal["paper", "public"] = "paper",
        symmetrize: bool = True,
        seed: int = 0,
        num_val: int = 500,
        root: str | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        expect(split in ("paper", "public"), "split", "`paper` or `public`", split)
        check_split_arguments(seed, num_val)
        expect_bool(symmetrize, "symmetrize")
        self.counts = Counts(169_343, 2_315_598 if symmetrize else 1_166_243, 128, 40)

    def load(self) -> tuple[Data, GroundTruth | None]:
        """Read the graph with OGB and set the masks of the split."""
        root = self.root / "ogb"
        files = "the contents of OGB's arxiv.zip (RELEASE_v1.txt and the folders raw, split and mapping)"
        dataset = open_dataset(self.name, root / "ogbn_arxiv", files, lambda: _read(root), show_progress=False)
        stored = dataset[0]
        edge_index = stored.edge_index
        if self.hparams["symmetrize"]:
            edge_index = to_undirected(edge_index, num_nodes=stored.num_nodes)
        # OGB's CSV reader returns integers if all features are whole numbers.
        graph = Data(x=stored.x.float(), edge_index=edge_index, y=stored.y.view(-1))
        if self.hparams["split"] == "paper":
            rng = np.random.default_rng(self.hparams["seed"])
            paper_masks(graph, random_per_class(graph.y, rng), self.hparams["num_val"], rng)
        else:
            parts = open_dataset(self.name, root / "ogbn_arxiv", files, dataset.get_idx_split, show_progress=False)
            for mask, part in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
                graph[mask] = index_mask(parts[part].numpy(), graph.y.numel())
        return graph, None


def _read(root: Path) -> Any:
    """Call OGB's loader."""
    # Imported here, because the import takes a second and checks online for the latest version of OGB.
    from ogb.nodeproppred import PygNodePropPredDataset

    return PygNodePropPredDataset("ogbn-arxiv", root=str(root))
