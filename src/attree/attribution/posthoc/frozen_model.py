"""Keep a model frozen while a method takes gradients through it, masks its messages or trains beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attree.attention.eval_mode import eval_mode


class _State(NamedTuple):
    """The attributes of one module, and the contents of attributes that are dictionaries (hooks, parameters)."""

    module: nn.Module
    attributes: dict[str, Any]
    contents: list[tuple[dict[Any, Any], dict[Any, Any]]]

    @classmethod
    def of(cls, module: nn.Module) -> _State:
        attributes = dict(vars(module))
        return cls(module, attributes, [(held, dict(held)) for held in attributes.values() if isinstance(held, dict)])

    def restore(self) -> None:
        own = vars(self.module)
        own.clear()
        own.update(self.attributes)
        # The dictionaries stay the same objects: handles of hooks refer to them.
        for held, items in self.contents:
            held.clear()
            held.update(items)


@contextmanager
def frozen_model(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """While open, the model is in eval mode and gradients pass through it, but its parameters get none.

    Gradients are on, also inside `torch.inference_mode`, as in Lightning's `test`; no parameter requires one. Torch's
    random generators start from `seed`. On exit, also by an exception, modes, hooks, attributes, parameters, their
    gradients and `requires_grad`, and the generators are what they were.

    Args:
        model: The model.
        seed: Seed of what is drawn meanwhile.
    """
    states = [_State.of(module) for module in model.modules()]
    needed = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = sorted({parameter.device.index or 0 for parameter, _ in needed if parameter.is_cuda})
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(devices),
            eval_mode(model),
        ):
            torch.manual_seed(seed)
            for parameter, requires_grad in needed:
                if requires_grad:
                    parameter.requires_grad_(False)
            _replace_inference_tensors(model)
            yield
    finally:
        for state in states:
            state.restore()
        for parameter, requires_grad in needed:
            if requires_grad:
                parameter.requires_grad_(True)


def differentiable(value: Any) -> Any:
    """A detached tensor that autograd accepts: a copy if it was made in inference mode; dicts of tensors alike.

    Other values are unchanged.
    """
    if isinstance(value, dict):
        return {key: differentiable(one) for key, one in value.items()}
    if not isinstance(value, Tensor):
        return value
    return value.clone() if value.is_inference() else value.detach()


def _replace_inference_tensors(model: nn.Module) -> None:
    """Replace parameters and buffers that were made in inference mode by copies, because autograd refuses them."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_inference():
                module._parameters[name] = nn.Parameter(parameter.clone(), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_inference():
                module._buffers[name] = buffer.clone()
