"""Stacks of convolutions: the attention networks GAT, GATv2, SuperGAT, and GCN, SAGE, GIN without attention.

A network has `num_layers` convolutions of one kind, with dropout before each and an activation between them: ReLU in
networks without attention, ELU in attention networks, whose last heads are averaged (Velickovic et al., ICLR 2018).
The networks differ only in the convolution, which is all that a subclass sets. So their explanations can be compared at
equal size: `attree sweep explainable_nets`.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, MessagePassing, SAGEConv, SuperGATConv
from torch_geometric.utils import batched_negative_sampling, to_undirected

from attree.defaults import MAX_LAYERS, MAX_SIZE
from attree.errors import expect, expect_bool, expect_int, expect_list, expect_number


class ConvStack(nn.Module):
    """The forward pass of all stacks: dropout and a convolution in each layer, an activation between layers."""

    convs: nn.ModuleList
    dropout: float

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """Logits of every node, [num_nodes, out_channels].

        Args:
            x: Node features [num_nodes, in_channels].
            edge_index: Edges [2, E].
            batch: For several graphs in one, the graph of each node, ascending [num_nodes].
        """
        options = self.pass_options(edge_index, batch)
        for layer, conv in enumerate(self.convs):
            x = conv(F.dropout(x, p=self.dropout, training=self.training), edge_index, **options)
            if layer < len(self.convs) - 1:
                x = self.activation(x)
        return x

    @staticmethod
    @abstractmethod
    def activation(x: Tensor) -> Tensor:
        """Apply the activation between two layers."""

    def pass_options(self, edge_index: Tensor, batch: Tensor | None) -> dict[str, Any]:
        """Return further arguments of the convolutions in a forward pass, besides features and edges."""
        return {}


def check_sizes(dropout: float, bias: bool, **sizes: int) -> None:
    """Raise if a width, a number of layers or heads, or the dropout of a stack is not possible."""
    for name, value in sizes.items():
        expect_int(value, name, 1, MAX_LAYERS if name == "num_layers" else MAX_SIZE)
    expect_number(dropout, "dropout", at_least=0, below=1)
    expect_bool(bias, "bias")


class ConvNet(ConvStack):
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
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "hidden_channels": hidden_channels}
        check_sizes(dropout, bias, **sizes, num_layers=num_layers)
        self.in_channels, self.out_channels, self.hidden_channels = in_channels, out_channels, hidden_channels
        self.num_layers, self.dropout, self.bias = num_layers, dropout, bias
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(self.convolution(width, next_width, bias) for width, next_width in pairwise(widths))

    @staticmethod
    @abstractmethod
    def convolution(in_channels: int, out_channels: int, bias: bool) -> MessagePassing:
        """Return a convolution of this kind."""

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        return x.relu()


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


class AttentionNet(ConvStack):
    """A stack of attention convolutions that maps node features to logits.

    Args:
        in_channels: Width of the node features.
        out_channels: Number of classes.
        hidden_channels: Width of each head in the hidden layers.
        num_layers: Number of convolutions, at least 1.
        heads: Attention heads in every layer; `last_heads` can change the last.
        concat: Concatenate the heads of hidden layers; otherwise average them. The last layer always averages.
        dropout: Dropout on the features that enter each layer.
        attention_dropout: Dropout on the attention weights: one rate for all layers, or a list with one for each.
        bias: Add a learned bias after each layer.
        last_heads: Attention heads in the last layer, which are averaged; None for `heads`.
    """

    conv_class: ClassVar[type[MessagePassing]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 8,
        num_layers: int = 2,
        heads: int = 1,
        concat: bool = True,
        dropout: float = 0.0,
        attention_dropout: float | list[float] = 0.0,
        bias: bool = True,
        last_heads: int | None = None,
    ) -> None:
        super().__init__()
        sizes = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "hidden_channels": hidden_channels,
            "num_layers": num_layers,
            "heads": heads,
            "last_heads": heads if last_heads is None else last_heads,
        }
        check_sizes(dropout, bias, **sizes)
        expect_bool(concat, "concat")
        rates = expect_list(attention_dropout, "attention_dropout", (int, float), "one rate, or a list of them")
        rates = rates if isinstance(attention_dropout, list | tuple) else rates * num_layers
        expect(len(rates) == num_layers, "attention_dropout", f"one rate, or {num_layers}, one a layer", rates)
        for rate in rates:
            expect_number(rate, "attention_dropout", at_least=0, below=1)

        self.in_channels, self.out_channels, self.hidden_channels = in_channels, out_channels, hidden_channels
        self.num_layers, self.heads, self.last_heads, self.concat = num_layers, heads, last_heads, concat
        self.dropout, self.attention_dropout, self.bias = dropout, attention_dropout, bias

        hidden_width = hidden_channels * heads if concat else hidden_channels
        self.convs = nn.ModuleList()
        for layer in range(num_layers):
            last = layer == num_layers - 1
            self.convs.append(
                self.conv_class(
                    in_channels if layer == 0 else hidden_width,
                    out_channels if last else hidden_channels,
                    heads=sizes["last_heads" if last else "heads"],
                    concat=concat and not last,
                    dropout=rates[layer],
                    bias=bias,
                    **self.conv_options(),
                )
            )

    @property
    def is_plain_stack(self) -> bool:
        """Whether the input of each layer is the output of the layer before and nothing else."""
        all_attention = all(type(conv) in (GATConv, GATv2Conv, SuperGATConv) for conv in self.convs)
        skips = any(getattr(conv, "residual", False) for conv in self.convs)
        return all_attention and not skips and type(self).forward is ConvStack.forward

    def conv_options(self) -> dict[str, Any]:
        """Return further arguments of this kind of convolution."""
        return {}

    @property
    def conv(self) -> str:
        """Name of the convolution, as dashboards and tables show it."""
        return type(self).__name__

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Apply the activation between two layers: ELU."""
        return F.elu(x)

    def attention_loss(self) -> Tensor | None:
        """Return the network's own loss on its attention, already weighted; None if it has none."""
        return None


class GAT(AttentionNet):
    """Graph attention network (Velickovic et al., ICLR 2018), over `torch_geometric.nn.GATConv`."""

    conv_class = GATConv


class GATv2(AttentionNet):
    """Graph attention network with dynamic attention (Brody et al., ICLR 2022), over `torch_geometric.nn.GATv2Conv`."""

    conv_class = GATv2Conv


class SuperGAT(AttentionNet):
    """Self-supervised graph attention (Kim and Oh, ICLR 2021), over `torch_geometric.nn.SuperGATConv`.

    In training, each layer also predicts which edges exist from its attention. This loss is added with weight
    `attention_loss_weight`. In a batch of several graphs, all layers of a step use the same non-edges, drawn within
    each graph. (PyG's convolution would draw them across graphs or, given the batch vector, too many for each graph.)

    Args:
        in_channels: Width of the node features.
        out_channels: Number of classes.
        hidden_channels: Width of each head in the hidden layers.
        num_layers: Number of convolutions, at least 1.
        heads: Attention heads in every layer; `last_heads` can change the last.
        concat: Concatenate the heads of hidden layers; otherwise average them. The last layer always averages.
        dropout: Dropout on the features that enter each layer.
        attention_dropout: Dropout on the attention weights: one rate for all layers, or a list with one for each.
        bias: Add a learned bias after each layer.
        attention_type: `MX` (GAT's attention logit times the sigmoid of the dot product) or `SD` (scaled dot
            product).
        attention_loss_weight: Weight of the edge-prediction loss.
        edge_sample_ratio: Fraction of the edges in the edge-prediction loss of each step.
        neg_sample_ratio: Sampled non-edges per edge in that loss.
        last_heads: Attention heads in the last layer, which are averaged; None for `heads`.
    """

    conv_class = SuperGATConv

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 8,
        num_layers: int = 2,
        heads: int = 1,
        concat: bool = True,
        dropout: float = 0.0,
        attention_dropout: float | list[float] = 0.0,
        bias: bool = True,
        attention_type: Literal["MX", "SD"] = "MX",
        attention_loss_weight: float = 4.0,
        edge_sample_ratio: float = 1.0,
        neg_sample_ratio: float = 0.5,
        last_heads: int | None = None,
    ) -> None:
        is_type = isinstance(attention_type, str) and attention_type in ("MX", "SD")
        expect(is_type, "attention_type", "'MX' or 'SD'", attention_type)
        expect_number(attention_loss_weight, "attention_loss_weight", at_least=0)
        expect_number(edge_sample_ratio, "edge_sample_ratio", above=0, at_most=1)
        expect_number(neg_sample_ratio, "neg_sample_ratio", above=0)
        # conv_options reads these while super().__init__ builds the layers.
        self.attention_type = attention_type
        self.attention_loss_weight = attention_loss_weight
        self.edge_sample_ratio = edge_sample_ratio
        self.neg_sample_ratio = neg_sample_ratio
        super().__init__(
            in_channels,
            out_channels,
            hidden_channels,
            num_layers,
            heads,
            concat,
            dropout,
            attention_dropout,
            bias,
            last_heads,
        )

    @property
    def conv(self) -> str:
        return f"SuperGAT-{self.attention_type}"

    def conv_options(self) -> dict[str, Any]:
        return {
            "attention_type": self.attention_type,
            "edge_sample_ratio": self.edge_sample_ratio,
            "neg_sample_ratio": self.neg_sample_ratio,
        }

    def pass_options(self, edge_index: Tensor, batch: Tensor | None) -> dict[str, Any]:
        if batch is None or not self.training:
            return {}
        # PyG splits the edges by graph by position: `to_undirected` also sorts them.
        edges = to_undirected(edge_index, num_nodes=batch.numel())
        ratio = float(self.neg_sample_ratio * self.edge_sample_ratio)
        return {"neg_edge_index": batched_negative_sampling(edges, batch, num_neg_samples=ratio)}

    def attention_loss(self) -> Tensor:
        losses = torch.stack([conv.get_attention_loss() for conv in self.convs if isinstance(conv, SuperGATConv)])
        return self.attention_loss_weight * losses.sum()
