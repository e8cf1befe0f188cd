"""Attention networks on heterogeneous graphs: HGT, and GAT with one attention per relation."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, HeteroConv, HGTConv
from torch_geometric.typing import EdgeType

from attree.defaults import MAX_LAYERS, MAX_SIZE
from attree.errors import expect, expect_bool, expect_int, expect_number
from attree.faithfulness.exact.lazy_features import compact_features

SPARSE_FROM = 2**20
"""Smallest number of entries for which features are checked for sparsity; below it, a dense product is as fast."""


class InputLinear(nn.Linear):
    """A linear map of fixed features. In training, mostly zero features are multiplied as a sparse matrix.

    Bags of words are sparse: DBLP's papers have 7 of 4231 words, and the product is 20 times as fast. Outside of
    training, this is `nn.Linear`.
    """

    _compacted: tuple[weakref.ref[Tensor], int, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map features [n, in_channels]."""
        if not self.training or type(x) is not Tensor or x.requires_grad or x.numel() < SPARSE_FROM:
            return super().forward(x)
        if self._compacted is None or self._compacted[0]() is not x or self._compacted[1] != x._version:
            self._compacted = weakref.ref(x), x._version, compact_features(x).to(x.dtype)
        compact = self._compacted[2]
        if compact.layout == torch.strided:
            return super().forward(x)
        return torch.sparse.mm(compact, self.weight.t()) + self.bias

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_compacted"}


class HeteroNet(nn.Module):
    """Base class: a linear map of each type to one width, attention layers, and a linear map to logits.

    Args:
        in_channels: Width of the features of each type of node, a mapping in the order of the graph's types.
        out_channels: Number of classes.
        edge_types: The relations, as (source type, name, destination type). None if `in_channels` is `num_features` of
            one of attree's data modules, which has them.
        node_type: The type whose nodes are classified; None as for `edge_types`.
        hidden_channels: Width of the hidden layers, all heads together.
        num_layers: Number of attention layers, at least 1.
        heads: Attention heads in every layer; they share the hidden width.
        dropout: Dropout on the features that enter each layer.
    """

    def __init__(
        self,
        in_channels: Any,
        out_channels: int,
        edge_types: list[tuple[str, str, str]] | None = None,
        node_type: str | None = None,
        hidden_channels: int = 64,
        num_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        expect(isinstance(in_channels, Mapping), "in_channels", "a width for each type of node", in_channels)
        edge_types = getattr(in_channels, "edge_types", None) if edge_types is None else edge_types
        node_type = getattr(in_channels, "node_type", None) if node_type is None else node_type
        expect(edge_types is not None, "edge_types", "the relations, unless `in_channels` has them", None)
        assert edge_types is not None
        sizes = {"out_channels": out_channels, "hidden_channels": hidden_channels, "num_layers": num_layers}
        for name, value in {**in_channels, **sizes, "heads": heads}.items():
            expect_int(value, name, 1, MAX_LAYERS if name == "num_layers" else MAX_SIZE)
        shared = f"a multiple of `heads` = {heads}, which share it"
        expect(hidden_channels % heads == 0, "hidden_channels", shared, hidden_channels)
        expect(node_type in in_channels, "node_type", f"one of {', '.join(in_channels)}", node_type)
        assert node_type is not None
        for relation in edge_types:
            fits = len(relation) == 3 and relation[0] in in_channels and relation[2] in in_channels
            expect(fits, "edge_types", "triples (source type, name, destination type)", relation)
        reached = any(relation[2] == node_type for relation in edge_types)
        expect(reached, "edge_types", f"such that one enters {node_type}", list(edge_types))
        expect_number(dropout, "dropout", at_least=0, below=1)
        self.in_channels = dict(in_channels)
        self.out_channels = out_channels
        self.edge_types = [(source, name, destination) for source, name, destination in edge_types]
        self.node_type = node_type
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.heads = heads
        self.dropout = dropout
        self.inputs = nn.ModuleDict({kind: InputLinear(width, hidden_channels) for kind, width in in_channels.items()})
        self.convs = nn.ModuleList(self.make_conv() for _ in range(num_layers))
        self.output = nn.Linear(hidden_channels, out_channels)

    @property
    def conv(self) -> str:
        """Name of the convolution, as dashboards and tables show it."""
        return type(self).__name__

    def make_conv(self) -> nn.Module:
        """Make a layer that maps features of all types to features of the types with incoming edges."""
        raise NotImplementedError

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> Tensor:
        """Logits of every node of the classified type, [num_nodes, out_channels].

        Args:
            x_dict: Features by type of node.
            edge_index_dict: Edges by relation, each [2, E] in the ids of its two types.
        """
        hidden = {kind: F.relu(self.inputs[kind](x)) for kind, x in x_dict.items()}
        for layer, conv in enumerate(self.convs):
            entering = {kind: F.dropout(x, p=self.dropout, training=self.training) for kind, x in hidden.items()}
            # A type without incoming edges keeps its features.
            hidden = {**hidden, **conv(entering, edge_index_dict)}
            if layer < self.num_layers - 1:
                hidden = {kind: self.activation(x) for kind, x in hidden.items()}
        return self.output(hidden[self.node_type])

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Apply the activation between two layers; none by default."""
        return x


class HGT(HeteroNet):
    """Heterogeneous graph transformer (Hu et al., WWW 2020), over `torch_geometric.nn.HGTConv`.

    A node attends to all nodes whose edges enter it, whatever the relation, with one softmax over all of them. Each
    layer has a learned skip beside its attention.

    Args:
        in_channels: Width of the features of each type of node, a mapping in the order of the graph's types.
        out_channels: Number of classes.
        edge_types: The relations, as (source type, name, destination type). None if `in_channels` is `num_features` of
            one of attree's data modules, which has them.
        node_type: The type whose nodes are classified; None as for `edge_types`.
        hidden_channels: Width of the hidden layers, all heads together.
        num_layers: Number of attention layers, at least 1.
        heads: Attention heads in every layer; they share the hidden width.
        dropout: Dropout on the features that enter each layer.
    """

    def make_conv(self) -> nn.Module:
        """Make an HGT layer."""
        metadata = list(self.in_channels), self.edge_types
        return HGTConv(self.hidden_channels, self.hidden_channels, metadata, self.heads)


class HeteroGAT(HeteroNet):
    """GAT on a heterogeneous graph: one `GATConv` per relation, joined by PyG's `HeteroConv`.

    Each relation has its own attention, whose weights sum to 1 at every node with incoming edges of the relation. So
    the importance of a relation is in its values, not in its attention. With `residual`, each layer adds a linear map
    of a node's own features, because there are no self-loops between types.

    Args:
        in_channels: Width of the features of each type of node, a mapping in the order of the graph's types.
        out_channels: Number of classes.
        edge_types: The relations, as (source type, name, destination type). None if `in_channels` is `num_features` of
            one of attree's data modules, which has them.
        node_type: The type whose nodes are classified; None as for `edge_types`.
        hidden_channels: Width of the hidden layers, all heads together.
        num_layers: Number of attention layers, at least 1.
        heads: Attention heads in every layer; they share the hidden width.
        dropout: Dropout on the features that enter each layer.
        aggr: How the relations that enter a type are joined: `sum` or `mean`.
        residual: Add a linear map of a node's own state to every layer.
    """

    def __init__(
        self,
        in_channels: Any,
        out_channels: int,
        edge_types: list[tuple[str, str, str]] | None = None,
        node_type: str | None = None,
        hidden_channels: int = 64,
        num_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
        aggr: str = "sum",
        residual: bool = True,
    ) -> None:
        expect(aggr in ("sum", "mean"), "aggr", "'sum' or 'mean'", aggr)
        expect_bool(residual, "residual")
        # make_conv reads these while super().__init__ builds the layers.
        self.aggr = aggr
        self.residual = residual
        super().__init__(in_channels, out_channels, edge_types, node_type, hidden_channels, num_layers, heads, dropout)

    def make_conv(self) -> nn.Module:
        """Make a layer with one `GATConv` per relation."""
        return HeteroConv({relation: self._relation_conv() for relation in self.edge_types}, aggr=self.aggr)

    def _relation_conv(self) -> GATConv:
        width = self.hidden_channels
        return GATConv(
            (width, width), width // self.heads, heads=self.heads, add_self_loops=False, residual=self.residual
        )

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Apply ELU, as GAT does."""
        return F.elu(x)
