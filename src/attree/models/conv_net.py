"""Networks without attention, beside the attention networks: GCN, SAGE and GIN.

A network has `num_layers` convolutions of one kind, with dropout before each and ReLU between them. The networks differ
only in the convolution, which is all that a subclass makes. Their explanations can be compared with those of attention
networks of the same size: `attree sweep explainable_nets`.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv, MessagePassing, SAGEConv

from attree.defaults import MAX_LAYERS, MAX_SIZE
from attree.errors import expect_bool, expect_int, expect_number


class ConvNet(nn.Module):
    """A stack of convolutions without attention that maps node features to logits.

    Args:
        in_channels: Width of the node features.
        out_channels: Number of classes.
        hidden_channels: Width of the hidden layers.
        num_layers: Number of convolutions, at least 1.
        dropout: Dropout on the features that enter each layer.
        bias: Add a learned bias in each layer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 64,
        num_layers: int = 2,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (
            ("in_channels", in_channels),
            ("out_channels", out_channels),
            ("hidden_channels", hidden_channels),
            ("num_layers", num_layers),
        ):
            expect_int(value, name, 1, MAX_LAYERS if name == "num_layers" else MAX_SIZE)
        expect_number(dropout, "dropout", at_least=0, below=1)
        expect_bool(bias, "bias")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.dropout = dropout
        self.bias = bias
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(self.convolution(width, next_width, bias) for width, next_width in pairwise(widths))

    @staticmethod
    @abstractmethod
    def convolution(in_channels: int, out_channels: int, bias: bool) -> MessagePassing:
        """Return a convolution of this kind."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """Logits of every node, [num_nodes, out_channels].

        Args:
            x: Node features [num_nodes, in_channels].
            edge_index: Edges [2, E].
            batch: For several graphs in one, the graph of each node; not read, because no layer looks across graphs.
        """
        for layer, conv in enumerate(self.convs):
            x = conv(F.dropout(x, p=self.dropout, training=self.training), edge_index)
            if layer < self.num_layers - 1:
                x = x.relu()
        return x


class GCN(ConvNet):
    """Graph convolutional network (Kipf and Welling, ICLR 2017), over `torch_geometric.nn.GCNConv`."""

    @staticmethod
    def convolution(in_channels: int, out_channels: int, bias: bool) -> MessagePassing:
        return GCNConv(in_channels, out_channels, bias=bias)


class SAGE(ConvNet):
    """GraphSAGE with the mean (Hamilton et al., NeurIPS 2017), over `torch_geometric.nn.SAGEConv`."""

    @staticmethod
    def convolution(in_channels: int, out_channels: int, bias: bool) -> MessagePassing:
        return SAGEConv(in_channels, out_channels, bias=bias)


class GIN(ConvNet):
    """Graph isomorphism network (Xu et al., ICLR 2019), over `torch_geometric.nn.GINConv`, with two linear layers."""

    @staticmethod
    def convolution(in_channels: int, out_channels: int, bias: bool) -> MessagePassing:
        hidden = nn.Linear(in_channels, out_channels, bias=bias)
        return GINConv(nn.Sequential(hidden, nn.ReLU(), nn.Linear(out_channels, out_channels, bias=bias)))
