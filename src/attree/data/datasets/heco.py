"""ACM and DBLP: bibliographies as heterogeneous graphs, read from plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from attree.data.counts import HeteroCounts
from attree.data.datasets.arrays import Layout, load_tensors
from attree.data.ground_truth import GroundTruth
from attree.data.hetero_data import HeteroDataModule
from attree.data.loading.splits import index_mask
from attree.errors import expect
from attree.tensors.ragged import are_pointers

ONE_HOT_UP_TO = 100
"""Types of nodes without features get one-hot ones if there are no more nodes than this, else a constant 1."""

SPLITS = ("train", "val", "test")


class _Bibliography(HeteroDataModule):
    """What ACM and DBLP share: one file of arrays, papers and what they are joined to, and the reading of it.

    Every relation is there both ways, as a node attends to the nodes that an edge comes from. The features of a type
    are divided by one number, the mean of its non-zero features: ACM's are at most 0.125 as stored, and networks hardly
    train on them. Types without features get one-hot ones if they are few (subjects, conferences), else a constant.

    Attributes:
        file: Name of the file in `<root>/hetero`.
        joined: Types that papers are joined to, in the order of the graph's relations.
        described: Types that have features in the file.
    """

    file: ClassVar[str]
    joined: ClassVar[tuple[str, ...]]
    described: ClassVar[tuple[str, ...]]

    def __init__(self, root: str | None = None) -> None:
        super().__init__()

    def load(self) -> tuple[HeteroData, GroundTruth | None]:
        """Read the graph from plain arrays."""
        path = self.root / "hetero" / self.file
        remedy = (
            f"attree downloads nothing of {self.name}: store the graph of HeCo's repository there as plain arrays "
            f"({', '.join(self._layout())}: see the documentation of `{type(self).__name__}`), or set `root`, or the "
            "variable ATTREE_DATA, to a data folder that has it."
        )
        arrays = load_tensors(path, remedy, self._layout(), self._check)
        graph = HeteroData()
        for kind, size in self.counts.nodes.items():
            graph[kind].x = _features(arrays, kind, size) if kind in self.described else _stand_in(size)
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
        """Whether the arrays fit each other, so that nothing is allocated or joined that a damaged file claims."""
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
            shape, wanted = arrays[f"{kind}_x_shape"].tolist(), [sizes[kind], self.counts.features[kind]]
            expect(shape == wanted, f"{kind}_x_shape", f"{wanted}", shape)
            fits = are_pointers(pointers, sizes[kind], indices.numel())
            expect(fits, f"{kind}_x_indptr", f"offsets from 0 to {indices.numel()}", pointers[-3:].tolist())
            _expect_below(indices, shape[1], f"{kind}_x_indices")
            count = arrays[f"{kind}_x_values"].numel()
            expect(count == indices.numel(), f"{kind}_x_values", f"{indices.numel()} numbers", count)


class ACM(_Bibliography):
    """ACM: papers, their authors and their subjects; what is a paper about, of three fields? As HeCo has it (KDD 2021).

    Papers have bags of words, subjects one-hot features and authors none (a constant). The split is HeCo's with 60
    labelled papers of each class to train on, and 1,000 papers each to validate and to test. No ground truth.

    Args:
        root: Data folder (default: `$ATTREE_DATA`, or `data`); `<root>/hetero/acm.npz` holds `paper_author` and
            `paper_subject` [2, E], the words as a sparse matrix (`paper_x_indptr`, `_indices`, `_values`, `_shape`),
            `y` [4019], node ids `train`, `val` and `test`, and `num_nodes` of papers, authors and subjects.
    """

    name = "ACM"
    file = "acm.npz"
    joined = ("author", "subject")
    described = ("paper",)
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
    """DBLP: authors, their papers, conferences and terms; in which of four fields does an author work? As HeCo has it.

    Authors have bags of keywords, papers bags of words, conferences one-hot features, terms a constant. The split is
    HeCo's (KDD 2021) with 60 labelled authors of each class to train on, and 1,000 each to validate and to test. No
    ground truth.

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
    """The dense features of a type, in units of their mean non-zero value."""
    values = arrays[f"{kind}_x_values"]
    x = torch.zeros(size, int(arrays[f"{kind}_x_shape"][1]))
    rows = torch.arange(size).repeat_interleave(arrays[f"{kind}_x_indptr"].diff())
    x.index_put_((rows, arrays[f"{kind}_x_indices"]), values / values[values != 0].mean(), accumulate=True)
    return x


def _stand_in(size: int) -> Tensor:
    """Features of a type that has none."""
    return torch.eye(size) if size <= ONE_HOT_UP_TO else torch.ones(size, 1)


def _expect_below(ids: Tensor, size: int, name: str) -> None:
    low, high = (int(bound) for bound in ids.aminmax()) if ids.numel() else (0, -1)
    expect(low >= 0 and high < size, name, f"ids in [0, {size})", f"[{low}, {high}]")
