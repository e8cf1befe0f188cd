"""Attention networks, networks without attention, and LightningModules that train them."""

from attree.models.classifier import Classifier, GraphClassifier, HeteroClassifier, NodeClassifier
from attree.models.conv_nets import GAT, GCN, GIN, SAGE, AttentionNet, ConvNet, GATv2, SuperGAT
from attree.models.graph_transformers import GPS, SGFormer
from attree.models.hetero_net import HGT, HeteroGAT
from attree.models.link_predictor import LinkPredictor

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GPS",
    "HGT",
    "SAGE",
    "AttentionNet",
    "Classifier",
    "ConvNet",
    "GATv2",
    "GraphClassifier",
    "HeteroClassifier",
    "HeteroGAT",
    "LinkPredictor",
    "NodeClassifier",
    "SGFormer",
    "SuperGAT",
]
