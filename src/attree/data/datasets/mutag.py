"""MUTAG: molecules, mutagenic or not."""

from __future__ import annotations

from torch_geometric import datasets
from torch_geometric.data import Data

from attree.data.checks import Counts
from attree.data.datasets.third_party import open_dataset
from attree.data.graph_data import GraphDataModule


class MUTAG(GraphDataModule):
    """Nitroaromatic compounds of Debnath et al. (1991), labelled by their mutagenic effect on a bacterium.

    Nodes are atoms with one of seven one-hot types. Edges are chemical bonds in both directions, without their types.
    `torch_geometric.datasets.TUDataset` reads the graphs, and downloads them if they are missing. The paper does not
    state its split; this one is random and stratified.

    Args:
        val_fraction: Fraction of the graphs for validation.
        test_fraction: Fraction of the graphs for testing; the rest is for training.
        batch_size: Number of graphs in a step.
        seed: Seed of the split and of the order of training graphs.
        root: Data folder (default: `$ATTREE_DATA`, or `data`); the files are in `<root>/tu/MUTAG/raw`.
    """

    name = "MUTAG"
    counts = Counts(3371, 7442, 7, 2, graphs=188)
    class_names = ("not mutagenic", "mutagenic")
    node_types = ("C", "N", "O", "F", "I", "Cl", "Br")

    def __init__(
        self,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        batch_size: int = 32,
        seed: int = 0,
        root: str | None = None,
    ) -> None:
        super().__init__(val_fraction, test_fraction, batch_size, seed)

    def load(self) -> list[Data]:
        """Read the graphs with PyG."""
        root = self.root / "tu"
        files = "raw/MUTAG_{A,edge_labels,graph_indicator,graph_labels,node_labels}.txt"
        dataset = open_dataset(self.name, root / "MUTAG", files, lambda: datasets.TUDataset(str(root), "MUTAG"))
        return [Data(x=graph.x, edge_index=graph.edge_index, y=graph.y) for graph in dataset]
