"""Guided Backpropagation: gradients in which activations pass back only the positive part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import MessagePassing

from attree.attribution.posthoc.gradients import mask_gradient
from attree.attribution.posthoc.mask_method import MaskMethod
from attree.attribution.posthoc.masked_run import MaskedRun
from attree.attribution.posthoc.target_copies import TargetCopies


class GuidedBackprop(MaskMethod):
    r"""Guided Backpropagation (Springenberg et al., 2015) with respect to an edge mask.

    As the gradient of `Saliency`, with its sign, but every activation passes back only the positive part of the
    gradient at its input. Guided is the activation that the network really uses: ReLU, ELU, LeakyReLU, GELU and their
    like, as functions or as modules. Captum guides `torch.nn.ReLU` modules alone, so that with any other activation
    PyG's `CaptumExplainer("GuidedBackprop")` is the plain gradient; on networks of such modules the two are equal.
    What a convolution applies while it scores edges or makes messages, such as the LeakyReLU of attention, is part of
    its attention and is not guided.

    Args:
        self_loops: Score also the self-loops that layers add themselves.
    """

    name = "guided_backprop"
    label = "Guided Backprop"

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        with guided(run.model):
            return mask_gradient(run, copies)


_IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    F.relu_: F.relu,
    F.elu_: F.elu,
    F.selu_: F.selu,
    F.celu_: F.celu,
    F.leaky_relu_: F.leaky_relu,
    F.rrelu_: F.rrelu,
    F.hardtanh_: F.hardtanh,
    torch.Tensor.relu_: F.relu,
}
"""Activations that overwrite their input, and what they do otherwise."""

ACTIVATIONS: frozenset[Callable[..., Any]] = frozenset(
    [
        *(F.relu, F.relu6, F.elu, F.selu, F.celu, F.leaky_relu, F.prelu, F.rrelu, F.gelu, F.silu, F.mish, F.softplus),
        *(F.hardtanh, F.hardswish, F.threshold),
        *(torch.relu, torch.selu, torch.celu, torch.prelu, torch.rrelu, torch.threshold, torch.Tensor.relu),
        *(torch.Tensor.prelu,),
        *_IN_PLACE,
    ]
)
"""The activations that are guided, by what is called in the end."""


class _PositiveGradient(torch.autograd.Function):
    """The identity, which passes only positive gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(min=0)


class _Guide(TorchFunctionMode):
    """Guides every activation that is called while it is active, except where `paused`."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in ACTIVATIONS or self.paused:
            return func(*args, **kwargs)
        if args:
            given, args = args[0], args[1:]
        else:
            kwargs = dict(kwargs)
            given = kwargs.pop("input")
        in_place = func in _IN_PLACE or kwargs.get("inplace", False)
        func = _IN_PLACE.get(func, func)
        kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
        result = func(_PositiveGradient.apply(given), *args, **kwargs)
        return given.copy_(result) if in_place else result


@contextmanager
def guided(model: nn.Module) -> Iterator[None]:
    """While open, activations of `model` pass back only positive gradients."""
    guide = _Guide()

    def pause(conv: nn.Module, inputs: Any) -> None:
        guide.paused += 1

    def resume(conv: nn.Module, inputs: Any, output: Any) -> None:
        guide.paused -= 1

    with ExitStack() as stack:
        for conv in model.modules():
            if isinstance(conv, MessagePassing):
                for handle in (
                    conv.register_edge_update_forward_pre_hook(pause),
                    conv.register_edge_update_forward_hook(resume),
                    conv.register_message_forward_pre_hook(pause),
                    conv.register_message_forward_hook(resume),
                ):
                    stack.callback(handle.remove)
        stack.enter_context(guide)
        yield
