"""Graphs in, as LightningDataModules, with targets and their true explanations where they exist."""

from attree.data.arxiv import Arxiv
from attree.data.ba_shapes import BAShapes
from attree.data.graph_data import GraphDataModule
from attree.data.ground_truth import GroundTruth
from attree.data.hin import HIN
from attree.data.infection import Infection
from attree.data.mutag import MUTAG
from attree.data.node_data import NodeDataModule
from attree.data.planetoid import Planetoid
from attree.data.webkb import WebKB

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
