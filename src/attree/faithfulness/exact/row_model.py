"""A model's own forward, run in the exact type with its attention convolutions replaced.

Only parameters and buffers are replaced, by copies in the exact type, and the `forward` of each convolution, on that
one instance; all is undone on exit, also after an exception. The model's code is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from attree.attention.eager import eval_mode
from attree.subject import ModelCall

Handler = Callable[[MessagePassing, tuple[Any, ...], dict[str, Any]], Any]
"""Called as `handler(conv, args, kwargs)` in place of a convolution's forward; returns its output."""


class RowModel:
    """The weights of a model at one moment, and its forward with other convolutions.

    Args:
        model: The model.
        dtype: The exact type.

    Attributes:
        convs: All its message-passing layers.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model = model
        modules = list(model.modules())
        self.convs = [module for module in modules if isinstance(module, MessagePassing)]
        self._rnns = [module for module in modules if isinstance(module, nn.RNNBase)]
        self._handler: Handler | None = None
        self._copies: dict[int, Tensor] = {}
        self._slots: list[tuple[dict[str, Any], str, Tensor]] = []
        for module in modules:
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None and tensor.is_floating_point():
                        if id(tensor) not in self._copies:  # tied weights stay tied
                            self._copies[id(tensor)] = tensor.detach().to(dtype, copy=True)
                        self._slots.append((table, name, self._copies[id(tensor)]))

    @property
    def tensors(self) -> list[Tensor]:
        """The copies of parameters and buffers that the forward sees."""
        return list(self._copies.values())

    def __call__(self, call: ModelCall, handler: Handler) -> Any:
        """Make a call of the model, each convolution answered by `handler`; to be called while `opened` is open."""
        self._handler = handler
        return call.run()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While open, the model is in eval mode, its weights are the copies, and its convolutions are replaced."""
        with ExitStack() as stack:
            stack.enter_context(eval_mode(self.model))
            stack.enter_context(torch.no_grad())
            for rnn in self._rnns:
                stack.callback(_list_weights, rnn)
            for table, name, tensor in self._slots:
                stack.callback(table.__setitem__, name, table[name])
                table[name] = tensor
            for rnn in self._rnns:
                _list_weights(rnn)
            for conv in self.convs:
                stack.callback(_restore, conv, conv.__dict__.get("forward"))
                conv.__dict__["forward"] = partial(self._answer, conv)
            yield

    def _answer(self, conv: MessagePassing, *args: Any, **kwargs: Any) -> Any:
        assert self._handler is not None
        return self._handler(conv, args, kwargs)


def _list_weights(rnn: nn.RNNBase) -> None:
    """Recurrent layers hold their weights in a list too."""
    rnn.__dict__["_flat_weights"] = [rnn._parameters[name] for name in rnn._flat_weights_names]


def _restore(conv: MessagePassing, forward: Any) -> None:
    if forward is None:
        conv.__dict__.pop("forward", None)
    else:
        conv.__dict__["forward"] = forward
