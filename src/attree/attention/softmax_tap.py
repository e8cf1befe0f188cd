"""Reach the attention scores of any PyG attention convolution without copying its code.

Every attention convolution of PyG turns scores into weights by calling `torch_geometric.utils.softmax`. Inside
`tap_softmax` the methods of each such convolution are re-bound, on that one instance, to the same code with its
`softmax` replaced; no class, module or other model is touched, and all is undone on exit, also after an exception.
Taps may be nested: the innermost one is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax as pyg_softmax

from attree.errors import UnsupportedModelError

Tap = Callable[[MessagePassing, Tensor, Callable[[Tensor], Tensor]], Tensor]
"""Called as `tap(conv, scores, softmax)` in place of the softmax; returns the weights that the conv will use."""


def attention_convs(model: nn.Module) -> list[MessagePassing]:
    """The attention convolutions of a model, in registration order.

    Raises:
        UnsupportedModelError: If there are none, or if some convolution passes messages without attention: its share
            of the computation tree would have no weights.
    """
    convs = [module for module in model.modules() if isinstance(module, MessagePassing)]
    blind = sorted({type(conv).__name__ for conv in convs if not _softmax_methods(conv)})
    if blind:
        raise UnsupportedModelError(
            f"Expected every message-passing layer to compute attention weights, but got {', '.join(blind)}, "
            "which does not call torch_geometric.utils.softmax."
        )
    if not convs:
        raise UnsupportedModelError(
            f"Expected a model with PyG attention convolutions, but got {type(model).__name__}, which has none."
        )
    return convs


@contextmanager
def tap_softmax(model: nn.Module, tap: Tap) -> Iterator[None]:
    """While open, every attention softmax of `model` goes through `tap`.

    Args:
        model: Any model whose message passing is done by PyG attention convolutions.
        tap: Receives the convolution, its scores before softmax [E'] or [E', heads], and the softmax to apply.
    """
    with ExitStack() as stack:
        for conv in attention_convs(model):
            for name, method in _softmax_methods(conv).items():
                stack.callback(_restore, conv, name, conv.__dict__.get(name))
                conv.__dict__[name] = MethodType(_with_softmax(method, _tapped(conv, tap)), conv)
        yield


def _restore(conv: MessagePassing, name: str, bound: MethodType | None) -> None:
    """Give an instance back what it had bound to `name`: nothing, or the method of a tap opened before."""
    if bound is None:
        conv.__dict__.pop(name, None)
    else:
        conv.__dict__[name] = bound


def _softmax_methods(conv: MessagePassing) -> dict[str, FunctionType]:
    """The methods of a convolution that call PyG's softmax by its global name."""
    methods: dict[str, FunctionType] = {}
    for base in type(conv).__mro__:
        for name, value in vars(base).items():
            if isinstance(value, FunctionType) and name not in methods:
                methods[name] = value
    return {
        name: method
        for name, method in methods.items()
        if "softmax" in method.__code__.co_names and method.__globals__.get("softmax") is pyg_softmax
    }


def _with_softmax(method: FunctionType, softmax: Callable[..., Tensor]) -> FunctionType:
    """The same code, seeing another `softmax`."""
    twin = FunctionType(
        method.__code__,
        {**method.__globals__, "softmax": softmax},
        method.__name__,
        method.__defaults__,
        method.__closure__,
    )
    twin.__kwdefaults__ = method.__kwdefaults__
    return twin


def _tapped(conv: MessagePassing, tap: Tap) -> Callable[..., Tensor]:
    def softmax(src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tap(conv, src, lambda scores: pyg_softmax(scores, *args, **kwargs))

    return softmax
