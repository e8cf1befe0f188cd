"""Graphs in, as LightningDataModules, with targets and their true explanations where they exist."""

from attree.data.datasets.arxiv import Arxiv
from attree.data.datasets.ba_shapes import BAShapes
from attree.data.datasets.heco import ACM, DBLP
from attree.data.datasets.hetero_infection import HeteroInfection
from attree.data.datasets.hin import HIN
from attree.data.datasets.infection import Infection
from attree.data.datasets.mutag import MUTAG
from attree.data.datasets.planetoid import Planetoid, PlanetoidLinks
from attree.data.datasets.webkb import WebKB
from attree.data.graph_data import GraphDataModule
from attree.data.ground_truth import GroundTruth
from attree.data.hetero_data import HeteroDataModule
from attree.data.link_data import LinkDataModule
from attree.data.node_data import NodeDataModule

__all__ = [
    "ACM",
    "DBLP",
    "HIN",
    "MUTAG",
    "Arxiv",
    "BAShapes",
    "GraphDataModule",
    "GroundTruth",
    "HeteroDataModule",
    "HeteroInfection",
    "Infection",
    "LinkDataModule",
    "NodeDataModule",
    "Planetoid",
    "PlanetoidLinks",
    "WebKB",
]
