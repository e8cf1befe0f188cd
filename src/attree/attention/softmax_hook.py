"""Reach the attention scores of any PyG attention convolution without copying its code.

Every attention convolution of PyG turns scores into weights by calling `torch_geometric.utils.softmax`. Inside
`hook_softmax` the methods of each such convolution are re-bound, on that one instance, to the same code with that
softmax replaced; no class, module or other model is touched, and all is undone on exit, also after an exception.
Hooks may be nested: the innermost one is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax as pyg_softmax

from attree.attention.softmax_patch import SoftmaxPatch
from attree.errors import UnsupportedModelError

SoftmaxHook = Callable[[MessagePassing, Tensor, Callable[[Tensor], Tensor]], Tensor]
"""Called as `hook(conv, scores, softmax)` in place of the softmax; returns the weights that the conv will use."""


def attention_convs(model: nn.Module) -> list[MessagePassing]:
    """The attention convolutions of a model, in registration order.

    Raises:
        UnsupportedModelError: If there are none, or if some convolution passes messages without attention: its share
            of the computation tree would have no weights.
    """
    return list(_hooked_attributes(model, _unchanged))


@contextmanager
def hook_softmax(model: nn.Module, hook: SoftmaxHook) -> Iterator[list[MessagePassing]]:
    """While open, every attention softmax of `model` goes through `hook`; gives its attention convolutions.

    Args:
        model: Any model whose message passing is done by PyG attention convolutions.
        hook: Receives the convolution, its scores before softmax [E'] or [E', heads], and the softmax to apply.
    """
    hooked = _hooked_attributes(model, hook)
    with ExitStack() as stack:
        for conv, attributes in hooked.items():
            for name, value in attributes.items():
                stack.callback(_restore, conv, name, name in vars(conv), vars(conv).get(name))
                vars(conv)[name] = value
        yield list(hooked)


def _hooked_attributes(model: nn.Module, hook: SoftmaxHook) -> dict[MessagePassing, dict[str, Any]]:
    """What has to be bound to each convolution of a model for its softmax to go through `hook`."""
    convs = message_passing(model)
    found = {conv: SoftmaxPatch(conv, _hooked(conv, hook)).attributes() for conv in convs}
    blind = sorted({type(conv).__name__ for conv, attributes in found.items() if not attributes})
    if blind:
        raise UnsupportedModelError(
            f"Expected every message-passing layer to compute attention weights, but got {', '.join(blind)}, "
            "whose methods do not call torch_geometric.utils.softmax."
        )
    return found


def message_passing(model: nn.Module) -> list[MessagePassing]:
    """All message-passing layers of a model, in registration order; raises if there are none."""
    convs = [module for module in model.modules() if isinstance(module, MessagePassing)]
    if convs:
        return convs
    if any(isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule) for module in model.modules()):
        raise UnsupportedModelError(
            f"Expected a model in Python, but {type(model).__name__} is traced, scripted or exported: such code has no "
            "convolutions to look into. Explain the model that it was made from."
        )
    raise UnsupportedModelError(
        f"Expected a model with PyG attention convolutions, but got {type(model).__name__}, which has none."
    )


def _restore(conv: MessagePassing, name: str, had: bool, value: Any) -> None:
    """Give an instance back what it had under `name`: nothing, its own, or the method of a hook opened before."""
    if had:
        vars(conv)[name] = value
    else:
        vars(conv).pop(name, None)


def _hooked(conv: MessagePassing, hook: SoftmaxHook) -> Callable[..., Tensor]:
    def softmax(src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hook(conv, src, lambda scores: pyg_softmax(scores, *args, **kwargs))

    return softmax


def _unchanged(conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
    return softmax(scores)
