"""Attention gradient: the first-order term of the effect of each edge, from one backward pass for many targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.conv_edges import edge_ids
from attree.attention.graph import plain
from attree.attention.instruments import LayerCall, Softmax, instrument
from attree.attribution.posthoc.mask_method import MaskMethod
from attree.attribution.posthoc.masked_run import MaskedRun
from attree.attribution.posthoc.target_copies import TargetCopies
from attree.errors import UnsupportedModelError, expect_int
from attree.faithfulness.occlusion import DEFAULT_PROTOCOL
from attree.faithfulness.protocol import ReductionProtocol, check_protocols, resolve_protocol
from attree.subject import Subject
from attree.tensors.limits import exact_dtype


class AttentionGradient(MaskMethod):
    r"""First-order term of `Occlusion`, summed over layers and heads.

    Let :math:`p` be the probability of the predicted class (or the predicted number), :math:`s` the score of an edge
    before softmax and :math:`\alpha` its weight after softmax. The score of an edge is

    ==============  ==================================================================================================
    `weight`        :math:`\sum \alpha \, \partial p / \partial \alpha`
    `coefficient`   :math:`\sum s \, \partial p / \partial s`
    `removal`       :math:`\sum \frac{\alpha}{1 - \alpha} \left(\frac{\partial p}{\partial \alpha} - \sum_k \alpha_k
                    \frac{\partial p}{\partial \alpha_k}\right)`, with :math:`k` over the edges that enter the same
                    node; :math:`\alpha \, \partial p / \partial \alpha` where :math:`\alpha = 1`
    ==============  ==================================================================================================

    This is the derivative of the prediction along the straight line from the current weights (for `coefficient`:
    scores) to the reduced ones. It costs one forward and one backward pass for many targets at once. It ignores
    nonlinear effects: if the probabilities are saturated, it can be far from the exact effect. With `steps`, the
    derivatives are averaged while all attention is scaled from 0 to 1 (after Hao et al., 2021). The average also works
    for saturated probabilities, and costs one forward and backward pass per step.

    Args:
        protocol: How an edge is reduced: `removal`, `weight`, `coefficient`, `authors`, or a `ReductionProtocol`.
        steps: Number of Gauss-Legendre points between attention times 0 and attention times 1; None uses the
            derivatives at the attention of the model.

    .. code-block:: python

        attree.evaluate(model, data, methods=["gatt", attree.AttentionGradient("weight", steps=20)])
    """

    name = "attention_gradient"
    label = "Attention gradient"

    def __init__(self, protocol: str | ReductionProtocol = DEFAULT_PROTOCOL, steps: int | None = None) -> None:
        super().__init__(self_loops=True)
        (self.protocol,) = check_protocols([protocol])
        self.steps = None if steps is None else expect_int(steps, "steps", 1)
        if steps is not None:
            self.name, self.label = f"integrated_{self.name}", f"Integrated {self.label.lower()}"
        if str(protocol) != DEFAULT_PROTOCOL:
            self.name, self.label = f"{self.name}_{protocol}", f"{self.label} ({protocol})"

    def open_run(self, subject: Subject) -> AbstractContextManager[AttentionRun]:
        return attention_run(subject)

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        """Return the first-order effect of reducing each edge, from gradients of attention in all layers."""
        assert isinstance(run, AttentionRun)
        protocol = resolve_protocol(self.protocol, run.model)
        logits = run.attend(copies)
        run.check(copies, logits)
        gradients = list(run.gradients(copies, logits))
        if self.steps is not None:
            gradients = self._averaged(run, copies, gradients)
        scores = torch.zeros(copies.entry_owner.numel(), dtype=exact_dtype(logits.device), device=logits.device)
        for of_call in gradients:
            scores.index_add_(0, run.entries(copies, of_call.call), first_order(protocol, of_call))
        return scores

    def _averaged(self, run: AttentionRun, copies: TargetCopies, gradients: Sequence[Gradients]) -> list[Gradients]:
        """Return the same calls with derivatives averaged while all attention is scaled from 0 to 1."""
        assert self.steps is not None
        means = [
            Gradients(of_call.call, torch.zeros_like(of_call.by_score), torch.zeros_like(of_call.by_weight))
            for of_call in gradients
        ]
        points, weights = np.polynomial.legendre.leggauss(self.steps)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            logits = run.attend(copies, share=float(point))
            for mean, of_call in zip(means, run.gradients(copies, logits), strict=True):
                mean.by_score.add_(of_call.by_score, alpha=float(weight))
                mean.by_weight.add_(of_call.by_weight, alpha=float(weight))
        return means


@dataclass
class CallEdges:
    """The edges of one call of a convolution in a pass on copies.

    Attributes:
        conv: The convolution.
        given_edges: The edges that the convolution was called with: a tensor, or a dict by edge type.
        edges: The edges along which it passes messages, [2, edges].
    """

    conv: MessagePassing
    given_edges: Any
    edges: Tensor


@dataclass
class SoftmaxCall(CallEdges):
    """One softmax call of a convolution in a pass on copies.

    Attributes:
        scores: Scores of the edges before softmax, [edges, ...].
        weights: Weights of the edges after softmax.
        score_shift: Zeros added to the scores; gradients are taken with respect to them.
        weight_shift: Zeros added to the weights; gradients are taken with respect to them.
    """

    scores: Tensor
    weights: Tensor
    score_shift: Tensor
    weight_shift: Tensor


class Gradients(NamedTuple):
    """Derivatives of the explained probabilities (or numbers) with respect to the attention of one softmax call.

    Attributes:
        call: The softmax call.
        by_score: Derivatives with respect to the scores, [edges, ...].
        by_weight: Derivatives with respect to the weights, [edges, ...].
    """

    call: SoftmaxCall
    by_score: Tensor
    by_weight: Tensor


class AttentionRun(MaskedRun):
    """Runs the model of a subject on copies and computes gradients of its attention; made by `attention_run`."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._calls: list[SoftmaxCall] = []
        self._share = 1.0

    def attend(self, copies: TargetCopies, share: float = 1.0) -> Tensor:
        """Return logits of the targets, [B, classes], with all weights times `share`; record every softmax call."""
        self._calls, self._share = [], share
        return self.logits(copies, self.unmasked(copies))

    def softmax(self, call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
        """Run in place of the softmax: record its scores and weights."""
        if not self.is_masking:
            return softmax(scores)
        edges = call.scored_edges(scores.shape[0])
        if edges is None:
            raise UnsupportedModelError(
                f"Expected {type(call.conv).__name__} to apply its softmax to one score per edge of the graph it is "
                f"given, but it has {scores.shape[0]} scores: there is no gradient for each edge."
            )
        score_shift = torch.zeros_like(scores, requires_grad=True)
        weights = softmax(scores + score_shift)
        weight_shift = torch.zeros_like(weights, requires_grad=True)
        self._calls.append(
            SoftmaxCall(
                call.conv, plain(call.given_edges), edges, scores.detach(), weights.detach(), score_shift, weight_shift
            )
        )
        return weights * self._share + weight_shift

    def gradients(self, copies: TargetCopies, logits: Tensor) -> Iterator[Gradients]:
        """Yield the derivatives with respect to the attention of each softmax call."""
        explained = self.predictions.probability(logits, copies.targets).sum()
        shifts = [shift for call in self._calls for shift in (call.score_shift, call.weight_shift)]
        if not shifts or not explained.requires_grad:  # the outputs do not depend on attention
            return
        derivatives = torch.autograd.grad(explained, shifts, allow_unused=True)
        gradients = [
            torch.zeros_like(shift) if derivative is None else derivative
            for derivative, shift in zip(derivatives, shifts, strict=True)
        ]
        yield from map(Gradients, self._calls, gradients[::2], gradients[1::2])

    def entries(self, copies: TargetCopies, call: CallEdges) -> Tensor:
        """Return the entry of the batch for each edge of a call: an edge, or the self-loop of a node."""
        if copies.subject.graph.types is not None:
            # A heterogeneous graph lists given edges and self-loops in the same order as masks do.
            entries = edge_ids(copies.graph, call.given_edges, call.edges)
        else:
            loops = call.edges[0] == call.edges[1]
            fits = torch.equal(call.edges[:, ~loops], copies.edge_index[:, copies.proper])
            of_loops = copies.num_edges + call.edges[0]
            entries = of_loops.masked_scatter(~loops, copies.proper.nonzero().view(-1)) if fits else None
        if entries is None:
            raise UnsupportedModelError(
                f"Expected {type(call.conv).__name__} to run on the edges it was called with, in their order, but it "
                "ran on others: there is no gradient for each edge."
            )
        return entries


@contextmanager
def attention_run(subject: Subject) -> Iterator[AttentionRun]:
    """Open a run that sees the attention of the subject's model, which must be frozen."""
    run = AttentionRun(subject)
    with instrument(subject.model, run):
        yield run


def first_order(protocol: ReductionProtocol, gradients: Gradients) -> Tensor:
    """Return the first-order term of each edge in one softmax call, summed over heads, [edges]."""
    call, wide = gradients.call, exact_dtype(gradients.by_weight.device)
    scores, weights, by_score, by_weight = (
        values.to(wide).reshape(values.shape[0], math.prod(values.shape[1:]))
        for values in (call.scores, call.weights, gradients.by_score, gradients.by_weight)
    )
    if protocol.score_shift == -math.inf:
        return _removal(call.edges, weights, by_weight, torch.finfo(call.weights.dtype).eps)
    total = torch.zeros_like(weights[:, 0])
    if not protocol.keeps_scores:
        drop = scores * (1 - protocol.score_factor) - protocol.score_shift
        total += torch.where(by_score == 0, 0.0, drop * by_score).sum(dim=1)  # a score may be infinite
    if not protocol.keeps_weights:
        total += ((1 - protocol.weight_factor) * weights * by_weight).sum(dim=1)
    return total


def _removal(edges: Tensor, weights: Tensor, by_weight: Tensor, eps: float) -> Tensor:
    """First-order term of `removal`: the removed weight goes to the other edges in proportion to their weights."""
    plain = weights * by_weight
    if not plain.numel():
        return plain.sum(dim=1)
    row, loops = edges[1], edges[0] == edges[1]
    none = plain.new_zeros(int(row.max()) + 1, plain.shape[1])
    mean = none.index_add(0, row, plain)[row]
    # All self-loops of a node are removed together.

    of_loops = none.index_add(0, row[loops], weights[loops])[row]
    stays = 1 - torch.where(loops.unsqueeze(1), of_loops, weights)
    alone = stays <= 4 * eps
    return torch.where(alone, plain, weights / stays.masked_fill(alone, 1.0) * (by_weight - mean)).sum(dim=1)
