"""Find the number of message-passing layers of a network."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import MessagePassing


def stated_depth(module: nn.Module) -> int | None:
    """Return the number of message-passing layers that a network states as `num_layers`, as attree's and PyG's do.

    None if no part of the network states it, or if there are convolutions outside the part that does.
    """
    stating = _outermost(module)
    if len(stating) != 1 or stating[0][1] != num_convolutions(module):
        return None
    return stating[0][0]


def num_convolutions(module: nn.Module) -> int:
    """Return the number of message-passing modules in a network, whether in sequence or in parallel."""
    return sum(isinstance(part, MessagePassing) for part in module.modules())


def _outermost(module: nn.Module) -> list[tuple[int, int]]:
    """Return the depths that the largest parts of a network state, and the number of convolutions of each."""
    stated, convolutions = getattr(module, "num_layers", None), num_convolutions(module)
    if isinstance(stated, int) and convolutions > 0:
        return [(stated, convolutions)]
    return [found for child in module.children() for found in _outermost(child)]
