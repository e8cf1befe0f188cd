"""Graphs in, as LightningDataModules, with targets and their true explanations where they exist."""

from attree.data.ba_shapes import BAShapes
from attree.data.ground_truth import GroundTruth
from attree.data.infection import Infection
from attree.data.node_data import NodeDataModule
from attree.data.planetoid import Planetoid

__all__ = ["BAShapes", "GroundTruth", "Infection", "NodeDataModule", "Planetoid"]
