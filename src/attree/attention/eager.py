"""Run a model as it was written: in eval mode, and without what `torch.compile` made of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from attree.errors import UnsupportedModelError


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode and let compiled modules run eagerly; on exit every submodule has the mode it had.

    Compiled code neither calls the hooks of the modules inside it nor sees what is bound to them meanwhile.
    """
    modes = [(module, module.training) for module in model.modules()]
    if any(mode for _, mode in modes):
        model.eval()
    try:
        with run_eagerly():
            yield
    finally:
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


def run_eagerly() -> AbstractContextManager[Any]:
    """While open, compiled modules run as they were written."""
    # Who has compiled anything has imported the compiler; importing it here would cost the others a second.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that was given to `torch.compile`, or the model itself if it never was.

    >>> layer = nn.Linear(1, 1)
    >>> uncompiled(torch.compile(layer, backend="eager")) is layer, uncompiled(layer) is layer
    (True, True)
    """
    original = getattr(model, "_orig_mod", model)
    return original if isinstance(original, nn.Module) else model


def score_tensor(output: Any) -> Tensor:
    """Return a model's output; raise unless it is one tensor with a row per node or graph."""
    if not isinstance(output, Tensor) or output.dim() == 0:
        raise UnsupportedModelError(
            f"Expected the model to return a tensor of scores, but got {type(output).__name__}."
        )
    return output
