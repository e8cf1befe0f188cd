"""Run a model in eval mode: eagerly, and with less memory because messages are multiplied in place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv

from attree.errors import UnsupportedModelError

_PRODUCTS = (GATConv.message, GATv2Conv.message)
"""Message functions that return the product of features and weights."""


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode and run compiled modules eagerly; on exit, restore the mode of every submodule.

    Only flags are set: a model's own `eval` or `train` may do more, such as empty a memory. Compiled code neither calls
    hooks of the modules inside it nor sees methods that were replaced afterwards.
    """
    # What `torch.compile` returns has no flag of its own.
    modes = [(module, module.training) for module in model.modules() if "training" in vars(module)]
    try:
        for module, _ in modes:
            vars(module)["training"] = False
        with run_eagerly():
            yield
    finally:
        for module, mode in modes:
            vars(module)["training"] = mode


_EAGER_LOCK = threading.Lock()
_EAGER: list[AbstractContextManager[Any]] = []
"""The stance of the compiler that eager runs have set, once for each open context of any thread."""


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Context in which compiled code runs eagerly, in all threads: torch has one setting for the process."""
    # If something is compiled, the compiler is imported already. Importing it otherwise would take a second.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with _EAGER_LOCK:
        # The first context sets the stance and the last one resets it, whichever threads they belong to.
        _EAGER.append(nullcontext() if _EAGER else torch.compiler.set_stance("force_eager"))
        stance = _EAGER[0]
        if len(_EAGER) == 1:
            stance.__enter__()
    try:
        yield
    finally:
        with _EAGER_LOCK:
            if len(_EAGER) == 1:
                stance.__exit__(None, None, None)
                _EAGER.clear()
            else:
                _EAGER.pop()


def score_tensor(output: Any) -> Tensor:
    """Return a model's output; raise unless it is one tensor with a row per node or graph."""
    if not isinstance(output, Tensor) or output.dim() == 0:
        raise UnsupportedModelError(
            f"Expected the model to return a tensor of scores, but got {type(output).__name__}."
        )
    return output


@contextmanager
def inplace_messages(model: nn.Module) -> Iterator[None]:
    """While open, GATConv and GATv2Conv of a model multiply messages in place; the numbers stay the same.

    A convolution gathers the source features of every edge, and multiplies them by the attention into a second array of
    the same size. Nothing else uses the gathered array, so without gradients the product can overwrite it. On a graph
    with millions of edges, this saves one of the two largest arrays of a forward pass.

    Args:
        model: The model. Subclasses with their own `message`, and passes with gradients, are not changed.
    """
    patched = [
        module for module in model.modules() if getattr(type(module), "message", None) in _PRODUCTS and _is_free(module)
    ]
    for module in patched:
        module.__dict__["message"] = _multiply
    try:
        yield
    finally:
        for module in patched:
            module.__dict__.pop("message", None)


def _is_free(module: nn.Module) -> bool:
    """Whether the instance has no `message` of its own and no hooks on messages."""
    hooks = (getattr(module, name, None) for name in ("_message_forward_pre_hooks", "_message_forward_hooks"))
    return "message" not in module.__dict__ and not any(hooks)


def _multiply(x_j: Tensor, alpha: Tensor) -> Tensor:
    weight = alpha.unsqueeze(-1)
    if torch.is_grad_enabled() or x_j.dtype != alpha.dtype:  # the product may have a wider type than the features
        return weight * x_j
    return x_j.mul_(weight)
