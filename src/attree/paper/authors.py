"""The published work of the paper's authors: their trained weights, and the SuperGAT-MX of their code.

Their SuperGAT-MX weights messages by softmax(LeakyReLU(x_i . x_j)). It computes the MX weights only to return them as
attention. So the returned attention is not the one that it uses, and the parameters of MX are never trained. PyG's
convolution, which `attree.models.SuperGAT` uses, follows the SuperGAT paper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import SuperGATConv
from torch_geometric.utils import softmax

from attree.attention import Graph
from attree.attention.capture import Attention
from attree.attention.eval_mode import eval_mode
from attree.data.datasets.array_files import load_arrays
from attree.errors import MissingDataError, expect
from attree.faithfulness.exact.algebra.known import SuperGATAlgebra, register_algebra
from attree.models import SuperGAT
from attree.models.attention_net import GAT


def load_authors_gat(path: str | Path) -> GAT:
    """Load a single-head GAT with the authors' weights (`gatt_paper/gat_*.npz`), in eval mode.

    Layer k has the arrays `layer{k}.weight` [out, in], `layer{k}.att_src` and `layer{k}.att_dst` [1, 1, out], and
    `layer{k}.bias` [out] if it has a bias.
    """
    remedy = "Set `path` to one of the files `gatt_paper/gat_*.npz`, which hold the paper authors' weights."
    stored = load_arrays(Path(path), remedy)
    num_layers = sum(name.endswith(".weight") for name in stored)
    expect(num_layers >= 1, "path", "a file with arrays named layer0.weight, ...", sorted(stored))
    try:
        return _build({name: torch.from_numpy(array) for name, array in stored.items()}, num_layers).eval()
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise MissingDataError(f"The file {path} does not hold the weights of a GAT. {remedy}") from error


def _build(arrays: dict[str, Tensor], num_layers: int) -> GAT:
    """Return a single-head GAT with the authors' weights, given as arrays by name."""
    first, last = arrays["layer0.weight"], arrays[f"layer{num_layers - 1}.weight"]
    net = GAT(
        in_channels=first.shape[1],
        out_channels=last.shape[0],
        hidden_channels=first.shape[0],
        num_layers=num_layers,
        bias="layer0.bias" in arrays,
    )
    net.load_state_dict(
        {
            f"convs.{name.removeprefix('layer').replace('.weight', '.lin.weight')}": array
            for name, array in arrays.items()
        }
    )
    return net


class DotProductConv(SuperGATConv):
    """A SuperGAT convolution that weights messages by dot products."""

    def get_attention(
        self, edge_index_i: Tensor, x_i: Tensor, x_j: Tensor, num_nodes: int | None, return_logits: bool = False
    ) -> Tensor:
        """Return the attention weights, or the dot products for the edge-prediction loss."""
        logits = (x_i * x_j).sum(dim=-1)
        if return_logits:
            return logits
        return softmax(F.leaky_relu(logits, self.negative_slope), edge_index_i, num_nodes=num_nodes)

    def reported(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the MX weights [edges, heads] that the authors' code returns as attention."""
        x = self.lin(x).view(-1, self.heads, self.out_channels)
        # PyG's own method, which `get_attention` above overrides.
        return super().get_attention(edge_index[1], x[edge_index[1]], x[edge_index[0]], num_nodes=x.shape[0])


class DotProductAlgebra(SuperGATAlgebra):
    """The algebra of `DotProductConv` for the exact engine: score = LeakyReLU(dot)."""

    def score(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return self._activated((source * target).sum(dim=-1))

    def score_all(self, source: Tensor, target: Tensor, edge: Tensor | None = None) -> Tensor:
        return self._activated(torch.einsum("rhc,dhc->rhd", target, source))

    def _activated(self, dot: Tensor) -> Tensor:
        return F.leaky_relu(dot, float(self.conv.negative_slope))


register_algebra(DotProductConv, DotProductAlgebra)


class AuthorsSuperGAT(SuperGAT):
    """The SuperGAT-MX of the authors' code, with `DotProductConv`."""

    conv_class = DotProductConv

    @property
    def conv(self) -> str:
        return "SuperGAT-MX-authors"


def reported_attention(net: AuthorsSuperGAT, x: Tensor, graph: Graph) -> Attention:
    """Return the attention that the authors' code returns: MX weights, which its forward pass does not use."""
    inputs: list[Tensor] = []

    def see(conv: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.append(args[0])

    handles = [conv.register_forward_pre_hook(see) for conv in net.convs]
    try:
        with eval_mode(net), torch.no_grad():
            net(x, graph.original_edge_index)
            weights = [
                conv.reported(conv_input, graph.edge_index)
                for conv, conv_input in zip(net.convs, inputs, strict=True)
                if isinstance(conv, DotProductConv)
            ]
    finally:
        for handle in handles:
            handle.remove()
    return Attention.from_weights(graph, [weight.mean(dim=1) for weight in weights])
