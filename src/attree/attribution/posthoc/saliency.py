"""Saliency: how fast the explained output changes with an edge's message."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attribution.posthoc.copies import Copies
from attree.attribution.posthoc.mask_method import MaskMethod
from attree.attribution.posthoc.masked_run import MaskedRun
from attree.errors import expect_bool


class Saliency(MaskMethod):
    r"""Saliency (Simonyan et al., 2014): the gradient of the explained output with respect to an edge mask.

    .. math:: \left| \partial f_c(v) / \partial m_e \right|_{m = 1}

    where :math:`f_c(v)` is the logit of the class predicted for target :math:`v`, and :math:`m_e` multiplies the
    message of edge :math:`e` in every layer and head. Equal to PyG's `CaptumExplainer("Saliency")`.

    Args:
        absolute: Take absolute values, as Captum does.
        self_loops: Score also the self-loops that layers add themselves.
    """

    name = "saliency"
    label = "Saliency"

    def __init__(self, absolute: bool = True, self_loops: bool = False) -> None:
        super().__init__(self_loops)
        self.absolute = expect_bool(absolute, "absolute")

    def score(self, run: MaskedRun, copies: Copies) -> Tensor:
        gradient = mask_gradient(run, copies)
        return gradient.abs() if self.absolute else gradient


def mask_gradient(run: MaskedRun, copies: Copies) -> Tensor:
    """The gradient of each target's explained output with respect to a mask of its own edges, at 1; checks copies."""
    mask = run.unmasked(copies).requires_grad_(True)
    logits = run.logits(copies, mask)
    run.check(copies, logits)
    return output_gradient(run, copies, mask, logits)[copies.entry_owner < copies.targets.numel()]


def output_gradient(run: MaskedRun, copies: Copies, mask: Tensor, logits: Tensor) -> Tensor:
    """The gradient of the sum of all targets' explained outputs; no target depends on another's mask."""
    explained = run.explained(copies, logits).sum()
    if not explained.requires_grad:  # no layer used the mask
        return torch.zeros_like(mask)
    (gradient,) = torch.autograd.grad(explained, mask, allow_unused=True)
    return torch.zeros_like(mask) if gradient is None else gradient
