"""WebKB's web page graphs: Cornell, Texas and Wisconsin."""

from __future__ import annotations

from typing import Any, Literal

from torch_geometric import datasets
from torch_geometric.data import Data

from attree.data.checks import Counts
from attree.data.datasets.third_party import open_dataset
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import NodeDataModule
from attree.errors import expect

# The paper prints 295, 309 and 499 edges: it does not count the self-loops of the files.
COUNTS = {
    "Cornell": Counts(183, 298, 1703, 5),
    "Texas": Counts(183, 325, 1703, 5),
    "Wisconsin": Counts(251, 515, 1703, 5),
}
NUM_SPLITS = 10


class WebKB(NodeDataModule):
    """Heterophilic web page graphs of "Geom-GCN: Geometric Graph Convolutional Networks" (ICLR 2020).

    Nodes are web pages of a university, edges are directed hyperlinks, features are bags of words, and classes are page
    types. `torch_geometric.datasets.WebKB` reads the graphs, and downloads them if they are missing. Geom-GCN's ten
    splits have about 48 % training, 32 % validation and 20 % test nodes, disjoint. No ground truth.

    Args:
        name: `Cornell`, `Texas` or `Wisconsin`.
        split: Number of the split, 0 .. 9; `paper` is the first (37, 37 and 51 test nodes).
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the files are in
            `<root>/webkb/<name in lower case>/raw`.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    def __init__(
        self,
        name: Literal["Cornell", "Texas", "Wisconsin"] = "Cornell",
        split: Literal["paper"] | int = "paper",
        root: str | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        expect(isinstance(name, str) and name in COUNTS, "name", f"one of {', '.join(COUNTS)}", name)
        expect(
            split == "paper" or (type(split) is int and split in range(NUM_SPLITS)),
            "split",
            f"`paper` or in 0 .. {NUM_SPLITS - 1}",
            split,
        )
        self.name = name
        self.counts = COUNTS[name]
        self.split_index = 0 if split == "paper" else int(split)

    def load(self) -> tuple[Data, GroundTruth | None]:
        """Read the graph with PyG and keep the masks of one split."""
        root = self.root / "webkb"
        folder = root / self.name.lower()
        files = (
            "raw/out1_node_feature_label.txt, raw/out1_graph_edges.txt and "
            f"raw/{self.name.lower()}_split_0.6_0.2_{{0..{NUM_SPLITS - 1}}}.npz"
        )
        dataset = open_dataset(self.name, folder, files, lambda: datasets.WebKB(str(root), self.name))
        graph = dataset[0]
        for mask in ("train_mask", "val_mask", "test_mask"):
            graph[mask] = graph[mask][:, self.split_index].contiguous()
        return graph, None
