"""BA-Shapes: house motifs on a Barabasi-Albert graph, with the motif edges as ground truth."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, degree, to_undirected

from attree.data.checks import Counts
from attree.data.datasets.third_party import Layout, load_authors
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import NodeDataModule
from attree.data.splits import check_split_arguments, paper_masks, random_fraction
from attree.defaults import MAX_SIZE
from attree.errors import expect, expect_int
from attree.tensors.arrays import check_edge_index

LAYOUT: Layout = {"edge_index": (np.int64, 2), "x": (np.float32, 2), "y": (np.int64, 1), "idx_train": (np.int64, 1)}
NUM_FEATURES = 50
# Nodes 0 and 1 are the middle of a house, 2 and 3 its bottom, 4 its top.
HOUSE_EDGES = ((0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4))
HOUSE_LABELS = (1, 1, 2, 2, 3)


class BAShapes(NodeDataModule):
    """BA-Shapes of "GNNExplainer: Generating Explanations for Graph Neural Networks" (NeurIPS 2019).

    Houses of five nodes are attached to a Barabasi-Albert base graph, each by one edge between a random base node and a
    random house node. Labels: 0 base, 1 middle, 2 bottom, 3 top of a house. Features: one-hot degree of width 50; the
    last column also stands for all higher degrees. Every house node is a target. As in the paper's evaluation, all
    targets have the same true edges: all motif edges in both directions, and the self-loops of motif nodes. Nodes are
    split 80:20 into training and test nodes. The validation nodes are a sample of the test nodes, for monitoring only
    (see `paper_masks`): selecting on them leaks test labels.

    Args:
        num_base: Number of nodes of the base graph.
        num_houses: Number of houses.
        attachment: Number of edges that each new base node adds. The authors' base graph has 866 undirected edges,
            because their generator merged repeated picks. This one has exactly 3 * (300 - 3) = 891.
        seed: Seed of the graph and of the split.
        source: `generated`, or `authors` for the graph and the split of the paper's authors. With `authors`, the seed
            draws only the validation nodes.
        num_val: Number of test nodes to use as validation nodes, for monitoring.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the authors' file is `<root>/gatt_paper/ba_shapes.npz`.
        **sampling: Settings of neighbour sampling in training: see `NodeDataModule`.
    """

    name = "BA-Shapes"
    class_names = ("base", "middle", "bottom", "top")

    def __init__(
        self,
        num_base: int = 300,
        num_houses: int = 80,
        attachment: int = 3,
        seed: int = 0,
        source: Literal["generated", "authors"] = "generated",
        num_val: int = 500,
        root: str | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(**sampling)
        expect_int(attachment, "attachment", 1)
        expect(
            expect_int(num_base, "num_base", 0, MAX_SIZE) > attachment,
            "num_base",
            f"greater than `attachment` = {attachment}",
            num_base,
        )
        expect_int(num_houses, "num_houses", 1, MAX_SIZE)
        expect(source in ("generated", "authors"), "source", "`generated` or `authors`", source)
        check_split_arguments(seed, num_val)
        if source == "authors":
            sizes = (num_base, num_houses, attachment)
            expect(
                sizes == (300, 80, 3),
                "num_base, num_houses, attachment",
                "(300, 80, 3) (or left out) with `source: authors`",
                sizes,
            )
        num_pairs = attachment * (num_base - attachment) + len(HOUSE_EDGES) * num_houses + num_houses
        num_edges = 2852 if source == "authors" else 2 * num_pairs
        self.counts = Counts(num_base + 5 * num_houses, num_edges, NUM_FEATURES, 4)

    def load(self) -> tuple[Data, GroundTruth | None]:
        """Generate the graph, or read the authors' graph with their split."""
        graph_rng, split_rng = np.random.default_rng(self.hparams["seed"]).spawn(2)
        if self.hparams["source"] == "authors":
            arrays = load_authors(self.root, "ba_shapes.npz", LAYOUT, _check)
            edge_index, x, y = arrays["edge_index"], arrays["x"], arrays["y"]
            train = arrays["idx_train"].numpy()
        else:
            edge_index, y = self._generate(graph_rng)
            degrees = degree(edge_index[1], y.numel(), torch.long)
            x = one_hot(degrees.clamp_(max=NUM_FEATURES - 1), NUM_FEATURES).float()
            train = random_fraction(y.numel(), 0.8, split_rng)
        graph = Data(x=x, edge_index=edge_index, y=y)
        paper_masks(graph, train, self.hparams["num_val"], split_rng)

        in_motif = y > 0
        motif_nodes = in_motif.nonzero().view(-1)
        motif_edges = edge_index[:, in_motif[edge_index].all(dim=0)]
        loops = motif_nodes.expand(2, -1)
        return graph, GroundTruth(motif_nodes, torch.cat([motif_edges, loops], dim=1))

    def _generate(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return edges and labels of a random BA-Shapes graph: a Barabasi-Albert graph with houses attached."""
        import networkx as nx

        num_base, num_houses = self.hparams["num_base"], self.hparams["num_houses"]
        base = torch.tensor(list(nx.barabasi_albert_graph(num_base, self.hparams["attachment"], seed=rng).edges))
        first = num_base + 5 * torch.arange(num_houses)
        houses = (first.view(-1, 1, 1) + torch.tensor(HOUSE_EDGES)).view(-1, 2)
        links = torch.stack(
            [
                torch.from_numpy(rng.integers(num_base, size=num_houses)),
                first + torch.from_numpy(rng.integers(5, size=num_houses)),
            ],
            dim=1,
        )
        y = torch.cat([torch.zeros(num_base, dtype=torch.long), torch.tensor(HOUSE_LABELS).repeat(num_houses)])
        edge_index = coalesce(to_undirected(torch.cat([base, houses, links]).t().contiguous()))
        return edge_index, y


def _check(arrays: dict[str, Tensor]) -> None:
    """Raise unless the authors' arrays describe the same nodes."""
    num_nodes, train = arrays["x"].size(0), arrays["idx_train"]
    check_edge_index(arrays["edge_index"], num_nodes)
    expect(arrays["y"].numel() == num_nodes, "y", f"{num_nodes} labels, one per node", arrays["y"].numel())
    outside = train[(train < 0) | (train >= num_nodes)].tolist()
    expect(not outside, "idx_train", f"node ids in [0, {num_nodes})", outside[:3])
