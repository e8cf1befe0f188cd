"""One full forward pass per reduced edge, by replacing PyG's softmax in the modules of its convolutions.

Nothing of attree computes here: the edges that a layer scores are read from PyG's own hooks, and the score or weight of
the reduced one is set before or after PyG's softmax. For `removal`, the edge is deleted from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax as pyg_softmax

MODULES = (
    *(f"torch_geometric.nn.conv.{name}" for name in ("gat_conv", "gatv2_conv", "supergat_conv", "transformer_conv")),
    "helpers.attention_models",
)
"""Where convolutions find PyG's softmax."""


@contextmanager
def edge_reduced(
    model: nn.Module, source: int, destination: int, rank: int, protocol: str, amount: float = 1.0
) -> Iterator[None]:
    """While open, one edge of `model` is reduced in every layer.

    Args:
        model: The model.
        source: The node that the edge leaves.
        destination: The node that it enters; if the same, all its self-loops are reduced.
        rank: Which of several equal edges, in the order of the edge list.
        protocol: `coefficient`, `weight` or `removal`.
        amount: How far on the straight line from what the layer computes (0) to the reduced edge (1): of scores for
            `coefficient`, of weights otherwise.
    """
    with _reducing(model, protocol, amount) as choose:
        choose(source, destination, rank)
        yield


@contextmanager
def _reducing(model: nn.Module, protocol: str, amount: float) -> Iterator[Callable[[int, int, int], None]]:
    """While open, the edge that the returned function was given last is reduced."""
    seen: list[Tensor] = []
    chosen = (-1, -1, 0)

    def choose(source: int, destination: int, rank: int) -> None:
        nonlocal chosen
        chosen = source, destination, rank

    def see(conv: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    def softmax(src: Tensor, index: Tensor, *rest: object, **options: object) -> Tensor:
        source, destination, rank = chosen
        same = ((seen[-1][0] == source) & (seen[-1][1] == destination)).nonzero().view(-1)
        same = same if source == destination else same[rank : rank + 1]
        if protocol == "coefficient":
            return pyg_softmax(torch.lerp(src, src.index_fill(0, same, 0.0), amount), index, *rest, **options)
        usual = pyg_softmax(src, index, *rest, **options)
        if protocol == "removal":
            src = src.index_fill(0, same, -1e30)
        return torch.lerp(usual, pyg_softmax(src, index, *rest, **options).index_fill(0, same, 0.0), amount)

    with ExitStack() as stack:
        for name in MODULES:
            stack.enter_context(mock.patch(f"{name}.softmax", softmax))
        for module in model.modules():
            if isinstance(module, MessagePassing):
                stack.callback(module.register_propagate_forward_pre_hook(see).remove)
                stack.callback(module.register_edge_update_forward_pre_hook(see).remove)
        yield choose


@torch.no_grad()
def reduced_outputs(
    model: nn.Module, edges: Tensor, protocol: str, *args: Any, amount: float = 1.0, **kwargs: Any
) -> list[Tensor]:
    """The model's outputs with each of the edges [2, E] reduced in turn."""
    outputs: list[Tensor] = []
    columns = [tuple(column) for column in edges.t().tolist()]
    with _reducing(model, protocol, amount) as choose:
        for position, (source, destination) in enumerate(columns):
            rank = columns[:position].count((source, destination))
            if protocol == "removal" and amount == 1.0:
                # A self-loop also leaves the softmaxes: layers would add it again.
                choose(*((source, destination, rank) if source == destination else (-1, -1, 0)))
                outputs.append(
                    model(
                        *without(source, destination, rank, args),
                        **without_rows(source, destination, rank, args, kwargs),
                    )
                )
            else:
                choose(source, destination, rank)
                outputs.append(model(*args, **kwargs))
    return outputs


def without(source: int, destination: int, rank: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Positional arguments `(x, edge_index, ...)` without an edge, and without its rows of the others."""
    stays = _stays(source, destination, rank, args[1])
    return (args[0], args[1][:, stays], *(_rows(value, stays) for value in args[2:]))


def without_rows(
    source: int, destination: int, rank: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name without the rows of an edge."""
    stays = _stays(source, destination, rank, args[1])
    return {name: _rows(value, stays) for name, value in kwargs.items()}


def _stays(source: int, destination: int, rank: int, edge_index: Tensor) -> Tensor:
    """Mask of the edges that stay: all but one of several equal edges, all but the self-loops of a node."""
    same = ((edge_index[0] == source) & (edge_index[1] == destination)).nonzero().view(-1)
    same = same if source == destination else same[rank : rank + 1]
    return torch.ones(edge_index.shape[1], dtype=torch.bool).index_fill(0, same, False)


def _rows(value: Any, stays: Tensor) -> Any:
    has_rows = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == stays.numel()
    return value[stays] if has_rows else value
