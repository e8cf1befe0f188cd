"""HIN: ego graphs of a hospital's interaction network, doctor or nurse."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.data import Data

from attree.data.counts import Counts
from attree.data.datasets.arrays import load_arrays
from attree.data.graph_data import GraphDataModule
from attree.errors import MissingDataError

ARRAYS = ("x", "node_ptr", "edge_index", "edge_ptr", "y")


class HIN(GraphDataModule):
    """The hospital interaction network published with GLGExplainer (ICLR 2023).

    Each graph is the third-order ego graph of a doctor or a nurse; which of the two is to be told from the
    ego's contacts alone. Nodes carry one of five one-hot types. The published file is pickled, and reading it
    may run any code, so this module reads the same graphs from plain arrays. The paper does not state its
    split; this one is random and stratified.

    Args:
        val_fraction: Share of the graphs that validate.
        test_fraction: Share of the graphs that test; the others train.
        batch_size: Number of graphs in a step.
        seed: Seed of the split and of the order of training graphs.
        root: Data folder; `<root>/hin/hin.npz` holds the arrays `x` [N, 5], `node_ptr` [G + 1], `edge_index`
            [2, E] (node ids local to each graph), `edge_ptr` [G + 1] and `y` [G] of G = 1,760 graphs.
    """

    name = "HIN"
    counts = Counts(20548, 63472, 5, 2, graphs=1760)

    def __init__(
        self,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        batch_size: int = 64,
        seed: int = 0,
        root: str = "data",
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)

    def load(self) -> list[Data]:
        """Read the graphs from plain arrays."""
        path = Path(self.hparams["root"]) / "hin" / "hin.npz"
        remedy = (
            f"Store the graphs published with GLGExplainer there as plain arrays ({', '.join(ARRAYS)}: see "
            "the documentation of `HIN`), or set `root` to a data folder that has them."
        )
        arrays = load_arrays(path, remedy)
        absent = [key for key in ARRAYS if key not in arrays]
        if absent:
            raise MissingDataError(f"The file {path} lacks the arrays {', '.join(absent)}. {remedy}")
        x, y = torch.from_numpy(arrays["x"]).float(), torch.from_numpy(arrays["y"]).long()
        edge_index = torch.from_numpy(arrays["edge_index"]).long()
        node_ptr, edge_ptr = arrays["node_ptr"], arrays["edge_ptr"]
        return [
            Data(
                x=x[node_ptr[k] : node_ptr[k + 1]],
                edge_index=edge_index[:, edge_ptr[k] : edge_ptr[k + 1]],
                y=y[k : k + 1],
            )
            for k in range(y.numel())
        ]
