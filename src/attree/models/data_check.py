"""Check that data fits a classifier, before anything runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attree.data import GraphDataModule, HeteroDataModule, NodeDataModule
from attree.data.base import DatasetModule
from attree.errors import expect


def check_fits(data: DatasetModule, net: nn.Module, num_classes: int) -> None:
    """Raise an `ArgumentError` unless a network has the widths that the data's features and labels need.

    Args:
        data: The data, loaded.
        net: The network; its `in_channels` is checked if it is fixed.
        num_classes: Number of classes of the network.
    """
    labels = _labels(data)
    if labels.numel() == 0:
        return
    lowest, highest = (int(label) for label in labels.aminmax())
    expect(lowest >= 0, "data", f"labelled from 0 on wherever {data.name} has a mask", lowest)
    wanted = f"of at least {highest + 1} `out_channels`, one for each class of {data.name}"
    expect(highest < num_classes, "net", wanted, num_classes)
    width = getattr(net, "in_channels", None)
    if isinstance(width, dict) or (isinstance(width, int) and width > 0):  # -1 means any width
        wanted = f"of `in_channels` {data.num_features}, the features that {data.name} has"
        expect(width == data.num_features, "net", wanted, width)


def _labels(data: DatasetModule) -> Tensor:
    """Return the labels that training, validation and test read."""
    if isinstance(data, NodeDataModule | HeteroDataModule):
        graph = data.masked(data.graph)
        return graph.y[graph.train_mask | graph.val_mask | graph.test_mask]
    if isinstance(data, GraphDataModule):
        return torch.cat([graph.y for graph in data.graphs])
    return torch.empty(0)
