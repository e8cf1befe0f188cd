"""Graphs in, as LightningDataModules, with targets and their true explanations where they exist."""

from attree.data.ground_truth import GroundTruth
from attree.data.infection import Infection
from attree.data.node_data import NodeDataModule

__all__ = ["GroundTruth", "Infection", "NodeDataModule"]
