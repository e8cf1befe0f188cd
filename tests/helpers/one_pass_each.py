"""One full forward pass per reduced edge, by replacing PyG's softmax in the modules of its convolutions.

Nothing of attree computes here: the edges that a layer scores are read from PyG's own hooks, and the score or weight of
the reduced one is set before or after PyG's softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax as pyg_softmax

MODULES = ("gat_conv", "gatv2_conv", "supergat_conv", "transformer_conv")


@contextmanager
def edge_reduced(model: nn.Module, source: int, destination: int, rank: int, protocol: str) -> Iterator[None]:
    """While open, one edge of `model` is reduced in every layer.

    Args:
        model: The model.
        source: The node that the edge leaves.
        destination: The node that it enters; if the same, all its self-loops are reduced.
        rank: Which of several equal edges, in the order of the edge list.
        protocol: `coefficient`, `weight` or `removal`.
    """
    seen: list[Tensor] = []

    def see(conv: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    def softmax(src: Tensor, index: Tensor, *rest: object, **options: object) -> Tensor:
        same = ((seen[-1][0] == source) & (seen[-1][1] == destination)).nonzero().view(-1)
        same = same if source == destination else same[rank : rank + 1]
        if protocol == "coefficient":
            return pyg_softmax(src.index_fill(0, same, 0.0), index, *rest, **options)
        if protocol == "removal":
            src = src.index_fill(0, same, -1e30)
        return pyg_softmax(src, index, *rest, **options).index_fill(0, same, 0.0)

    with ExitStack() as stack:
        for name in MODULES:
            stack.enter_context(mock.patch(f"torch_geometric.nn.conv.{name}.softmax", softmax))
        for module in model.modules():
            if isinstance(module, MessagePassing):
                stack.callback(module.register_propagate_forward_pre_hook(see).remove)
                stack.callback(module.register_edge_update_forward_pre_hook(see).remove)
        yield


@torch.no_grad()
def reduced_outputs(model: nn.Module, edges: Tensor, protocol: str, *args: Any, **kwargs: Any) -> list[Tensor]:
    """The model's outputs with each of the edges [2, E] reduced in turn."""
    outputs: list[Tensor] = []
    columns = [tuple(column) for column in edges.t().tolist()]
    for position, (source, destination) in enumerate(columns):
        rank = columns[:position].count((source, destination))
        with edge_reduced(model, source, destination, rank, protocol):
            outputs.append(model(*args, **kwargs))
    return outputs
