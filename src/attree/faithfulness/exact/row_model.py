"""A model's own forward, run in the exact type with its attention convolutions replaced.

Only parameters and buffers are replaced, by copies in the exact type, and the `forward` of each convolution, on that
one instance; all is undone on exit, also after an exception. The model's code is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.nn import MessagePassing

from attree.attention.capture import evaluating
from attree.subject import ModelInputs

Handler = Callable[[MessagePassing, tuple[Any, ...], dict[str, Any]], Tensor]
"""Called as `handler(conv, args, kwargs)` in place of a convolution's forward; returns its output."""


class RowModel:
    """The weights of a model at one moment, and its forward with other convolutions.

    Args:
        model: The model.
        dtype: The exact type.

    Attributes:
        tensors: Copies of its parameters and buffers by name.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model = model
        self.tensors: dict[str, Tensor] = {
            name: tensor.detach().to(dtype, copy=True)
            for name, tensor in chain(model.named_parameters(), model.named_buffers())
            if tensor.is_floating_point()
        }

    def __call__(self, inputs: ModelInputs) -> Any:
        """Run the forward; to be called while `replaced` is open."""
        args = (inputs.x, inputs.edge_index, *inputs.args)
        return functional_call(self.model, self.tensors, args, inputs.kwargs)

    @contextmanager
    def replaced(self, handler: Handler) -> Iterator[None]:
        """While open, the model is in eval mode and each of its convolutions is answered by `handler`."""
        with ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            stack.enter_context(torch.no_grad())
            stack.enter_context(_eager(self.model))
            for conv in convolutions(self.model):
                stack.callback(_restore, conv, conv.__dict__.get("forward"))
                conv.__dict__["forward"] = partial(_answer, handler, conv)
            yield


def convolutions(model: nn.Module) -> list[MessagePassing]:
    """Every message-passing layer of a model."""
    return [module for module in model.modules() if isinstance(module, MessagePassing)]


def _answer(handler: Handler, conv: MessagePassing, *args: Any, **kwargs: Any) -> Tensor:
    return handler(conv, args, kwargs)


def _restore(conv: MessagePassing, forward: Any) -> None:
    if forward is None:
        conv.__dict__.pop("forward", None)
    else:
        conv.__dict__["forward"] = forward


def _eager(model: nn.Module) -> AbstractContextManager[Any]:
    """Compiled models run as they were written: a compiled convolution cannot be replaced."""
    compiled = any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
