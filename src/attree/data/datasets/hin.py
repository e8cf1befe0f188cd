"""HIN: ego graphs of a hospital's interaction network, doctor or nurse."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from attree.data.checks import Counts
from attree.data.datasets.third_party import Layout, load_tensors
from attree.data.graph_data import GraphDataModule
from attree.errors import expect
from attree.tensors.arrays import are_pointers

LAYOUT: Layout = {
    "x": (np.float32, 2),
    "node_ptr": (np.int64, 1),
    "edge_index": (np.int64, 2),
    "edge_ptr": (np.int64, 1),
    "y": (np.int64, 1),
}


class HIN(GraphDataModule):
    """The hospital interaction network published with GLGExplainer (ICLR 2023).

    Each graph is the third-order ego graph of a doctor or a nurse. The label says which of the two the ego is; a
    network must infer it from the ego's contacts. Nodes have one of five one-hot types. The published file is a
    pickle, and reading a pickle can run any code, so this module reads the same graphs from plain arrays. The paper
    does not state its split; this one is random and stratified.

    Args:
        val_fraction: Fraction of the graphs for validation.
        test_fraction: Fraction of the graphs for testing; the rest is for training.
        batch_size: Number of graphs in a step.
        seed: Seed of the split and of the order of training graphs.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); `<root>/hin/hin.npz` holds the arrays
            `x` [N, 5], `node_ptr` [G + 1], `edge_index` [2, E] (node ids local to each graph), `edge_ptr` [G + 1]
            and `y` [G] of G = 1,760 graphs.
    """

    name = "HIN"
    counts = Counts(20548, 63472, 5, 2, graphs=1760)

    def __init__(
        self,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        batch_size: int = 64,
        seed: int = 0,
        root: str | None = None,
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)

    def load(self) -> list[Data]:
        """Read the graphs from their file."""
        path = self.root / "hin" / "hin.npz"
        remedy = (
            f"Store the graphs published with GLGExplainer there as plain arrays ({', '.join(LAYOUT)}: see "
            "the documentation of `HIN`), or set `root`, or the variable ATTREE_DATA, to a data folder that has them."
        )
        arrays = load_tensors(path, remedy, LAYOUT, _check)
        nodes = arrays["x"].split(arrays["node_ptr"].diff().tolist())
        edges = arrays["edge_index"].split(arrays["edge_ptr"].diff().tolist(), dim=1)
        labels = arrays["y"].split(1)
        return [Data(x=x, edge_index=edge_index, y=y) for x, edge_index, y in zip(nodes, edges, labels, strict=True)]


def _check(arrays: dict[str, Tensor]) -> None:
    """Raise unless the pointers split nodes and edges into as many graphs as there are labels."""
    num_graphs = arrays["y"].numel()
    expect(arrays["edge_index"].size(0) == 2, "edge_index", "of shape [2, E]", tuple(arrays["edge_index"].shape))
    for name, total in (("node_ptr", arrays["x"].size(0)), ("edge_ptr", arrays["edge_index"].size(1))):
        fits = are_pointers(arrays[name], num_graphs, total)
        ptr = arrays[name]
        ends = f"{ptr.numel()} that begin with {ptr[:3].tolist()} and end with {ptr[-3:].tolist()}"
        expect(fits, name, f"{num_graphs + 1} non-decreasing offsets from 0 to {total}", ends)
