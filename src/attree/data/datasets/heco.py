"""ACM and DBLP: bibliographies as heterogeneous graphs, read from `.npz` files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from attree.data.checks import HeteroCounts
from attree.data.datasets.third_party import Layout, load_tensors
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import HeteroDataModule
from attree.data.splits import index_mask
from attree.errors import expect
from attree.tensors.arrays import are_pointers

ONE_HOT_UP_TO = 100
"""A node type without features gets one-hot features if it has at most this many nodes, else a constant 1."""

SPLITS = ("train", "val", "test")


class _Bibliography(HeteroDataModule):
    """Base class of ACM and DBLP, which reads papers and the nodes joined to them from one file.

    Every relation exists in both directions, because messages flow only along the direction of edges. The features of a
    type are divided by the mean of its non-zero features: as stored, ACM's are at most 0.125, and networks hardly train
    on them. A type without features gets one-hot features if it has few nodes (subjects, conferences), else a constant.

    Attributes:
        file: Name of the file in `<root>/hetero`.
        joined: Node types that papers are joined to, in the order of the graph's relations.
        described: Node types that have features in the file.
    """

    file: ClassVar[str]
    joined: ClassVar[tuple[str, ...]]
    described: ClassVar[tuple[str, ...]]

    def __init__(self, root: str | None = None) -> None:
        super().__init__()

    def load(self) -> tuple[HeteroData, GroundTruth | None]:
        """Read the graph from its file."""
        path = self.root / "hetero" / self.file
        remedy = (
            f"attree does not download {self.name}: store the graph of HeCo's repository there as plain arrays "
            f"({', '.join(self._layout())}: see the documentation of `{type(self).__name__}`), or set `root`, or the "
            "variable ATTREE_DATA, to a data folder that has it."
        )
        arrays = load_tensors(path, remedy, self._layout(), self._check)
        graph = HeteroData()
        for kind, size in self.counts.nodes.items():
            graph[kind].x = _features(arrays, kind, size) if kind in self.described else _default_features(size)
        for kind in self.joined:
            pairs = arrays[f"paper_{kind}"]
            graph["paper", f"to_{kind}", kind].edge_index = pairs
            graph[kind, "to_paper", "paper"].edge_index = pairs.flip(0)
        classified = graph[self.node_type]
        classified.y = arrays["y"]
        for split in SPLITS:
            classified[f"{split}_mask"] = index_mask(arrays[split].numpy(), arrays["y"].numel())
        return graph, None

    def _layout(self) -> Layout:
        layout: dict[str, tuple[type, int]] = {"y": (np.int64, 1), "num_nodes": (np.int64, 1)}
        layout |= {f"paper_{kind}": (np.int64, 2) for kind in self.joined}
        layout |= dict.fromkeys(SPLITS, (np.int64, 1))
        for kind in self.described:
            layout |= {f"{kind}_x_{part}": (np.int64, 1) for part in ("indptr", "indices", "shape")}
            layout[f"{kind}_x_values"] = (np.float32, 1)
        return layout

    def _check(self, arrays: Mapping[str, Tensor]) -> None:
        """Raise unless the arrays fit each other, before a damaged file can cause large allocations or wrong edges."""
        sizes = dict(self.counts.nodes)
        expect(arrays["num_nodes"].tolist() == list(sizes.values()), "num_nodes", f"{sizes}", arrays["num_nodes"])
        expect(arrays["y"].numel() == sizes[self.node_type], "y", f"{sizes[self.node_type]} labels", len(arrays["y"]))
        for kind in self.joined:
            pairs, name = arrays[f"paper_{kind}"], f"paper_{kind}"
            expect(pairs.size(0) == 2, name, "of shape [2, E]", tuple(pairs.shape))
            for ids, size in zip(pairs, (sizes["paper"], sizes[kind]), strict=True):
                _expect_below(ids, size, name)
        for split in SPLITS:
            _expect_below(arrays[split], sizes[self.node_type], split)
        for kind in self.described:
            pointers, indices = arrays[f"{kind}_x_indptr"], arrays[f"{kind}_x_indices"]
            shape, expected = arrays[f"{kind}_x_shape"].tolist(), [sizes[kind], self.counts.features[kind]]
            expect(shape == expected, f"{kind}_x_shape", f"{expected}", shape)
            fits = are_pointers(pointers, sizes[kind], indices.numel())
            expect(fits, f"{kind}_x_indptr", f"offsets from 0 to {indices.numel()}", pointers[-3:].tolist())
            _expect_below(indices, shape[1], f"{kind}_x_indices")
            count = arrays[f"{kind}_x_values"].numel()
            expect(count == indices.numel(), f"{kind}_x_values", f"{indices.numel()} numbers", count)


class ACM(_Bibliography):
    """ACM in HeCo's version (KDD 2021): papers with authors and subjects. Papers are classified into three fields.

    Papers have bags of words, subjects have one-hot features, and authors have a constant. The split is HeCo's: 60
    training papers of each class, 1,000 validation and 1,000 test papers. No ground truth.

    Args:
        root: Data folder (default: `$ATTREE_DATA`, or `data`); `<root>/hetero/acm.npz` holds `paper_author` and
            `paper_subject` [2, E], the words as a sparse matrix (`paper_x_indptr`, `_indices`, `_values`, `_shape`),
            `y` [4019], node ids `train`, `val` and `test`, and `num_nodes` of papers, authors and subjects.
    """

    name = "ACM"
    file = "acm.npz"
    joined = ("author", "subject")
    described = ("paper",)
    # Papers of SIGMOD and VLDB, of SIGCOMM and MobiCom, of KDD: OpenHINE, which has the same graph (its issue 19).
    class_names = ("database", "wireless communication", "data mining")
    counts = HeteroCounts(
        nodes={"paper": 4019, "author": 7167, "subject": 60},
        edges={
            ("paper", "to_author", "author"): 13407,
            ("author", "to_paper", "paper"): 13407,
            ("paper", "to_subject", "subject"): 4019,
            ("subject", "to_paper", "paper"): 4019,
        },
        features={"paper": 1902, "author": 1, "subject": 60},
        classes=3,
        node_type="paper",
    )


class DBLP(_Bibliography):
    """DBLP in HeCo's version (KDD 2021): papers, authors, conferences, terms. Authors are classified into four fields.

    Authors have bags of keywords, papers have bags of words, conferences have one-hot features, and terms have a
    constant. The split is HeCo's: 60 training authors of each class, 1,000 validation and 1,000 test authors. No ground
    truth.

    Args:
        root: Data folder (default: `$ATTREE_DATA`, or `data`); `<root>/hetero/dblp.npz` holds `paper_author`,
            `paper_conference` and `paper_term` [2, E], the words of authors and papers as sparse matrices
            (`author_x_indptr`, `_indices`, `_values`, `_shape`, the same of `paper`), `y` [4057], node ids `train`,
            `val` and `test`, and `num_nodes` of authors, papers, conferences and terms.
    """

    name = "DBLP"
    file = "dblp.npz"
    joined = ("author", "conference", "term")
    described = ("author", "paper")
    class_names = ("database", "data mining", "artificial intelligence", "information retrieval")
    counts = HeteroCounts(
        nodes={"author": 4057, "paper": 14328, "conference": 20, "term": 7723},
        edges={
            ("paper", "to_author", "author"): 19645,
            ("author", "to_paper", "paper"): 19645,
            ("paper", "to_conference", "conference"): 14328,
            ("conference", "to_paper", "paper"): 14328,
            ("paper", "to_term", "term"): 85810,
            ("term", "to_paper", "paper"): 85810,
        },
        features={"author": 334, "paper": 4231, "conference": 20, "term": 1},
        classes=4,
        node_type="author",
    )


def _features(arrays: Mapping[str, Tensor], kind: str, size: int) -> Tensor:
    """Return the dense features of a node type, divided by their mean non-zero value."""
    values = arrays[f"{kind}_x_values"]
    x = torch.zeros(size, int(arrays[f"{kind}_x_shape"][1]))
    rows = torch.arange(size).repeat_interleave(arrays[f"{kind}_x_indptr"].diff())
    x.index_put_((rows, arrays[f"{kind}_x_indices"]), values / values[values != 0].mean(), accumulate=True)
    return x


def _default_features(size: int) -> Tensor:
    """Return features for a node type that has none in the file."""
    return torch.eye(size) if size <= ONE_HOT_UP_TO else torch.ones(size, 1)


def _expect_below(ids: Tensor, size: int, name: str) -> None:
    low, high = (int(bound) for bound in ids.aminmax()) if ids.numel() else (0, -1)
    expect(low >= 0 and high < size, name, f"ids in [0, {size})", f"[{low}, {high}]")
