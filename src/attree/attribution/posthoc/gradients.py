"""Saliency and Integrated Gradients: gradients of the explained output by a mask of edges."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attree.attribution.posthoc.mask_method import COPIES_MEMORY, MaskMethod, bytes_per_edge
from attree.attribution.posthoc.masked_run import MaskedRun
from attree.attribution.posthoc.target_copies import TargetCopies
from attree.errors import expect_bool, expect_int


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

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        gradient = mask_gradient(run, copies)
        return gradient.abs() if self.absolute else gradient


class IntegratedGradients(MaskMethod):
    r"""Integrated Gradients (Sundararajan et al., 2017) of an edge mask, from 0 to 1.

    .. math:: \int_0^1 \partial f_c(v) / \partial m_e \big|_{m = a} \, da

    where :math:`f_c(v)` is the logit of the class predicted for target :math:`v`, and :math:`m_e` multiplies the
    message of edge :math:`e` in every layer and head. The scores of all edges add up to the output with all messages
    less that without any (but those of added self-loops, if they are not masked). Equal to PyG's
    `CaptumExplainer("IntegratedGradients")`.

    Args:
        steps: Points of the Gauss-Legendre quadrature.
        self_loops: Mask and score also the self-loops that layers add themselves.
    """

    name = "integrated_gradients"
    label = "Integrated Gradients"

    def __init__(self, steps: int = 50, self_loops: bool = False) -> None:
        super().__init__(self_loops)
        expect_int(steps, "steps", 1)
        self.steps = steps

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
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
            # Within each tile, entries stand in the order of `total`.
            total += gradient[tile.argsort(stable=True)].view(point.numel(), -1).sum(dim=0)
        return total


def mask_gradient(run: MaskedRun, copies: TargetCopies) -> Tensor:
    """Check copies, and return the gradient of each target's explained output by a mask of its own edges, at 1."""
    mask = run.unmasked(copies).requires_grad_(True)
    logits = run.logits(copies, mask)
    run.check(copies, logits)
    return output_gradient(run, copies, mask, logits)


def output_gradient(run: MaskedRun, copies: TargetCopies, mask: Tensor, logits: Tensor) -> Tensor:
    """The gradient of the sum of all targets' explained outputs; no target depends on another's mask."""
    explained = run.explained(copies, logits).sum()
    if not explained.requires_grad:  # no layer used the mask
        return torch.zeros_like(mask)
    (gradient,) = torch.autograd.grad(explained, mask, allow_unused=True)
    return torch.zeros_like(mask) if gradient is None else gradient
