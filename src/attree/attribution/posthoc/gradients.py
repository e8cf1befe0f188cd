"""Gradient methods: Saliency, Integrated Gradients and Guided Backpropagation, with respect to an edge mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attribution.posthoc.masks import COPIES_MEMORY, MaskedRun, MaskMethod, bytes_per_edge
from attree.attribution.posthoc.target_copies import TargetCopies
from attree.errors import expect_bool, expect_int


class Saliency(MaskMethod):
    r"""Saliency (Simonyan et al., 2014): the gradient of the explained output with respect to an edge mask.

    .. math:: \left| \partial f_c(v) / \partial m_e \right|_{m = 1}

    Here :math:`f_c(v)` is the logit of the class predicted for target :math:`v`, and :math:`m_e` multiplies the message
    of edge :math:`e` in every layer and head. Equal to PyG's `CaptumExplainer("Saliency")`.

    Args:
        absolute: Return absolute values, as Captum does.
        self_loops: Also score the self-loops that layers add themselves.
    """

    name = "saliency"
    label = "Saliency"

    def __init__(self, absolute: bool = True, self_loops: bool = False) -> None:
        super().__init__(self_loops)
        self.absolute = expect_bool(absolute, "absolute")

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        gradient = mask_gradient(run, copies)
        return gradient.abs() if self.absolute else gradient


class IntegratedGradients(MaskMethod):
    r"""Integrated Gradients (Sundararajan et al., 2017) of an edge mask, from 0 to 1.

    .. math:: \int_0^1 \partial f_c(v) / \partial m_e \big|_{m = a} \, da

    Here :math:`f_c(v)` is the logit of the class predicted for target :math:`v`, and :math:`m_e` multiplies the message
    of edge :math:`e` in every layer and head. The scores of all edges add up to the output with all messages minus the
    output without any (apart from added self-loops, unless they are masked). Equal to PyG's
    `CaptumExplainer("IntegratedGradients")`.

    Args:
        steps: Points of the Gauss-Legendre quadrature.
        self_loops: Also mask and score the self-loops that layers add themselves.
    """

    name = "integrated_gradients"
    label = "Integrated Gradients"

    def __init__(self, steps: int = 50, self_loops: bool = False) -> None:
        super().__init__(self_loops)
        expect_int(steps, "steps", 1)
        self.steps = steps

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        """Integrate the gradient of each target's output with respect to its edge mask, from mask 0 to mask 1."""
        run.check(copies)
        points, weights = (torch.from_numpy(array) / 2 for array in np.polynomial.legendre.leggauss(self.steps))
        ones = run.unmasked(copies)
        points, weights = (values.to(ones) for values in (points + 0.5, weights))
        cost = max(copies.num_edges * bytes_per_edge(copies.subject), 1.0)
        at_once = 1 if copies.is_whole else max(int(COPIES_MEMORY / cost), 1)
        total = torch.zeros_like(ones)
        for point, weight in zip(points.split(at_once), weights.split(at_once), strict=True):
            tiles = copies.tiled(point.numel())
            tile = tiles.entry_owner // max(copies.targets.numel(), 1)
            mask = point[tile].requires_grad_(True)
            gradient = weight[tile] * output_gradient(run, tiles, mask, run.logits(tiles, mask))
            # Within each tile, entries have the order of `total`.
            total += gradient[tile.argsort(stable=True)].view(point.numel(), -1).sum(dim=0)
        return total


def mask_gradient(run: MaskedRun, copies: TargetCopies) -> Tensor:
    """Check copies, and return the gradient of each target's explained output by a mask of its own edges, at 1."""
    mask = run.unmasked(copies).requires_grad_(True)
    logits = run.logits(copies, mask)
    run.check(copies, logits)
    return output_gradient(run, copies, mask, logits)


def output_gradient(run: MaskedRun, copies: TargetCopies, mask: Tensor, logits: Tensor) -> Tensor:
    """Return each target's gradient by its own mask: that of the sum, as no target depends on another's mask."""
    explained = run.explained(copies, logits).sum()
    if not explained.requires_grad:  # no layer used the mask
        return torch.zeros_like(mask)
    (gradient,) = torch.autograd.grad(explained, mask, allow_unused=True)
    return torch.zeros_like(mask) if gradient is None else gradient


class GuidedBackprop(MaskMethod):
    r"""Guided Backpropagation (Springenberg et al., 2015) with respect to an edge mask.

    The score is the gradient of `Saliency`, with its sign, but every activation passes back only the positive part of
    the gradient at its input. This applies to the activations that the network really uses: ReLU, ELU, LeakyReLU, GELU
    and similar, as functions or modules. Captum guides `torch.nn.ReLU` modules only; with any other activation PyG's
    `CaptumExplainer("GuidedBackprop")` is the plain gradient. On networks of ReLU modules the two are equal.
    Activations inside a convolution's scores or messages, such as the LeakyReLU of attention, are not guided.

    Args:
        self_loops: Also score the self-loops that layers add themselves.
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
"""Activations that overwrite their input, and their counterparts that do not."""

ACTIVATIONS: frozenset[Callable[..., Any]] = frozenset(
    [
        *(F.relu, F.relu6, F.elu, F.selu, F.celu, F.leaky_relu, F.prelu, F.rrelu, F.gelu, F.silu, F.mish, F.softplus),
        *(F.hardtanh, F.hardswish, F.threshold),
        *(torch.relu, torch.selu, torch.celu, torch.prelu, torch.rrelu, torch.threshold, torch.Tensor.relu),
        *(torch.Tensor.prelu,),
        *_IN_PLACE,
    ]
)
"""The functions that are guided."""


class _PositiveGradient(torch.autograd.Function):
    """The identity with only positive gradients passed back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(min=0)


class _Guide(TorchFunctionMode):
    """Guides every activation that is called while it is active and not paused."""

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
        """Call a torch function, and pass back only positive gradients if the function is an activation."""
        kwargs = kwargs or {}
        if func not in ACTIVATIONS or self.paused:
            return func(*args, **kwargs)
        if args:
            activation_input, args = args[0], args[1:]
        else:
            kwargs = dict(kwargs)
            activation_input = kwargs.pop("input")
        in_place = func in _IN_PLACE or kwargs.get("inplace", False)
        func = _IN_PLACE.get(func, func)
        kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
        result = func(_PositiveGradient.apply(activation_input), *args, **kwargs)
        return activation_input.copy_(result) if in_place else result


class _Pauses(Watcher):
    """Pauses a guide while a layer computes its scores and messages."""

    def __init__(self, guide: _Guide) -> None:
        self._guide = guide

    def edge_update(self, call: LayerCall, edge_update: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        return self._paused(edge_update, arguments)

    def message(self, call: LayerCall, message: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
        messages: Tensor = self._paused(message, arguments)
        return messages

    def _paused(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        self._guide.paused += 1
        try:
            return function(**arguments)
        finally:
            self._guide.paused -= 1


@contextmanager
def guided(model: nn.Module) -> Iterator[None]:
    """Context in which activations of `model` pass back only positive gradients."""
    guide = _Guide()
    with instrument(model, _Pauses(guide)), guide:
        yield
