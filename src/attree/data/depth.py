"""How deep a network looks into a graph, where it can be told from the network itself."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import MessagePassing


def stated_depth(module: nn.Module) -> int | None:
    """Number of message-passing layers that a network states as `num_layers`, as attree's and PyG's networks do.

    None where none states it, or where there is more message passing than in the one part that does.
    """
    stating = _outermost(module)
    if len(stating) != 1 or stating[0][1] != num_convolutions(module):
        return None
    return stating[0][0]


def num_convolutions(module: nn.Module) -> int:
    """Number of message-passing modules in a network. Whether they stand one after the other is not known."""
    return sum(isinstance(part, MessagePassing) for part in module.modules())


def _outermost(module: nn.Module) -> list[tuple[int, int]]:
    """The depths that the largest parts of a network state, and how many convolutions each part has."""
    stated, convolutions = getattr(module, "num_layers", None), num_convolutions(module)
    if isinstance(stated, int) and convolutions > 0:
        return [(stated, convolutions)]
    return [found for child in module.children() for found in _outermost(child)]
