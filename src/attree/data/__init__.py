"""LightningDataModules of graphs, with ground truth if there is one.

Data modules and samplers are imported on first access, because `attree.evaluate` needs `GroundTruth` but not Lightning.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attree.data.checks import Counts
from attree.data.ground_truth import GroundTruth

if TYPE_CHECKING:
    from attree.data.csv_tables import from_csv
    from attree.data.dataset_module import DatasetModule
    from attree.data.datasets.arxiv import Arxiv
    from attree.data.datasets.ba_shapes import BAShapes
    from attree.data.datasets.heco import ACM, DBLP
    from attree.data.datasets.hin import HIN
    from attree.data.datasets.infection import HeteroInfection, Infection
    from attree.data.datasets.molecules import Molecules
    from attree.data.datasets.mutag import MUTAG
    from attree.data.datasets.planetoid import Planetoid, PlanetoidLinks
    from attree.data.datasets.pyg import PyG, PyGGraphs
    from attree.data.datasets.webkb import WebKB
    from attree.data.graph_data import GraphDataModule
    from attree.data.link_data import LinkDataModule
    from attree.data.neighbor_sampling import TorchNeighborSampler, neighbor_loader
    from attree.data.node_data import HeteroDataModule, NodeDataModule
    from attree.data.on_disk import OnDiskGraph, write_graph
    from attree.data.on_disk.training import OnDisk

__all__ = [
    "ACM",
    "DBLP",
    "HIN",
    "MUTAG",
    "Arxiv",
    "BAShapes",
    "Counts",
    "DatasetModule",
    "GraphDataModule",
    "GroundTruth",
    "HeteroDataModule",
    "HeteroInfection",
    "Infection",
    "LinkDataModule",
    "Molecules",
    "NodeDataModule",
    "OnDisk",
    "OnDiskGraph",
    "Planetoid",
    "PlanetoidLinks",
    "PyG",
    "PyGGraphs",
    "TorchNeighborSampler",
    "WebKB",
    "from_csv",
    "neighbor_loader",
    "write_graph",
]

_HOMES = {
    "ACM": "datasets.heco",
    "DBLP": "datasets.heco",
    "HIN": "datasets.hin",
    "MUTAG": "datasets.mutag",
    "Arxiv": "datasets.arxiv",
    "BAShapes": "datasets.ba_shapes",
    "DatasetModule": "dataset_module",
    "GraphDataModule": "graph_data",
    "HeteroDataModule": "node_data",
    "HeteroInfection": "datasets.infection",
    "Infection": "datasets.infection",
    "LinkDataModule": "link_data",
    "Molecules": "datasets.molecules",
    "NodeDataModule": "node_data",
    "OnDisk": "on_disk.training",
    "OnDiskGraph": "on_disk",
    "Planetoid": "datasets.planetoid",
    "PlanetoidLinks": "datasets.planetoid",
    "PyG": "datasets.pyg",
    "PyGGraphs": "datasets.pyg",
    "TorchNeighborSampler": "neighbor_sampling",
    "WebKB": "datasets.webkb",
    "from_csv": "csv_tables",
    "neighbor_loader": "neighbor_sampling",
    "write_graph": "on_disk",
}
"""The module that defines each name."""


def __getattr__(name: str) -> Any:
    """Import a name from its module on first access."""
    if name in _HOMES:
        return getattr(import_module(f"attree.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
