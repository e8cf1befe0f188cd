"""Forward passes that take less memory: messages are weighed in place.

A convolution gathers the sources' features for every edge and multiplies them by the attention, which makes a second
array of that size. The gathered one is nobody else's, so without gradients it can be multiplied where it is. On a graph
of millions of edges that is the difference between one and two of the largest arrays of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv

_PLAIN = (GATConv.message, GATv2Conv.message)
"""Messages that are a product of features and weights; what others do is left as it is."""


@contextmanager
def inplace_messages(model: nn.Module) -> Iterator[None]:
    """While open, GATConv and GATv2Conv of a model multiply messages in place; the numbers stay the same.

    Args:
        model: The model. Subclasses with messages of their own, and passes with gradients, are as ever.
    """
    lean = [
        module for module in model.modules() if getattr(type(module), "message", None) in _PLAIN and _is_free(module)
    ]
    for module in lean:
        module.__dict__["message"] = _weigh
    try:
        yield
    finally:
        for module in lean:
            module.__dict__.pop("message", None)


def _is_free(module: nn.Module) -> bool:
    """Whether the module has no `message` of its own and no hooks on it."""
    hooks = (getattr(module, name, None) for name in ("_message_forward_pre_hooks", "_message_forward_hooks"))
    return "message" not in module.__dict__ and not any(hooks)


def _weigh(x_j: Tensor, alpha: Tensor) -> Tensor:
    weight = alpha.unsqueeze(-1)
    if torch.is_grad_enabled() or x_j.dtype != alpha.dtype:  # the product may be of a wider type than the features
        return weight * x_j
    return x_j.mul_(weight)
