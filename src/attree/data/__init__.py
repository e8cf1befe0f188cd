"""Graphs in, as LightningDataModules, with targets and their true explanations where they exist."""

from attree.data.datasets.arxiv import Arxiv
from attree.data.datasets.ba_shapes import BAShapes
from attree.data.datasets.hin import HIN
from attree.data.datasets.infection import Infection
from attree.data.datasets.mutag import MUTAG
from attree.data.datasets.planetoid import Planetoid
from attree.data.datasets.webkb import WebKB
from attree.data.graph_data import GraphDataModule
from attree.data.ground_truth import GroundTruth
from attree.data.node_data import NodeDataModule

__all__ = [
    "HIN",
    "MUTAG",
    "Arxiv",
    "BAShapes",
    "GraphDataModule",
    "GroundTruth",
    "Infection",
    "NodeDataModule",
    "Planetoid",
    "WebKB",
]
