"""Attention gradient and message gradient: the first-order effect of each edge, from one backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import MeanAggregation

from attree.attention.graph import edge_ids, plain
from attree.attention.instruments import LayerCall, Softmax, instrument
from attree.attribution.posthoc.masks import MaskedRun, MaskMethod
from attree.attribution.posthoc.target_copies import TargetCopies
from attree.errors import UnsupportedModelError, expect_int
from attree.faithfulness.exact.call_arguments import given_weights
from attree.faithfulness.occlusion import DEFAULT_PROTOCOL
from attree.faithfulness.protocol import ReductionProtocol, check_protocols, resolve_protocol
from attree.subject import Subject
from attree.tensors.precision import exact_dtype, same


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
            run.add(scores, copies, of_call.call, first_order(protocol, of_call))
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
        step: The number of the step in its pass.
    """

    conv: MessagePassing
    given_edges: Any
    edges: Tensor
    step: int


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
        if not self.is_masking or self.is_readout(call):
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
                call.conv,
                plain(call.given_edges),
                edges,
                call.number,
                scores.detach(),
                weights.detach(),
                score_shift,
                weight_shift,
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

    def add(self, scores: Tensor, copies: TargetCopies, call: CallEdges, effects: Tensor) -> None:
        """Add the effects of a call's messages to the scores of the edges that they come from."""
        entries = self.entries(copies, call)
        if copies.subject.graph.messages is not None:  # messages may come from no edge
            entries, effects = entries[entries >= 0], effects[entries >= 0]
        scores.index_add_(0, entries, effects)

    def entries(self, copies: TargetCopies, call: CallEdges) -> Tensor:
        """Return the entry of the batch for each edge of a call: an edge, or the self-loop of a node."""
        traced = copies.entries_of_messages(call.step, call.edges)
        if traced is not None:
            return traced
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


Normalised = Literal["sum", "mean", "degrees"]
"""How the messages of a layer share their weight: not at all, as 1 / n, or by the degrees of both ends (GCN)."""


class MessageGradient(AttentionGradient):
    r"""First-order term of `Occlusion` for any message-passing network, summed over layers.

    Let :math:`p` be the probability of the predicted class (or the predicted number), :math:`m` the message of an edge
    :math:`i \to j` and :math:`g = m \cdot \partial p / \partial m`. In a layer without attention, the score of an edge
    is

    ============  ====================================================================================================
    `weight`      :math:`g`
    `removal`     :math:`g` for a sum or maximum; :math:`(n g - \sum_k g_k) / (n - 1)` for a mean of :math:`n` messages,
                  with :math:`k` over the messages that enter :math:`j`; and for a GCN
                  :math:`g + (1 - s) \sum_k g_k`, with :math:`k` over all other messages into and out of :math:`j`,
                  which deletion multiplies by :math:`s = \sqrt{d_j / (d_j - 1)}`
    ============  ====================================================================================================

    In an attention layer it is that of `AttentionGradient`, so both methods are equal for networks with attention only.

    Args:
        protocol: How an edge is reduced: `removal`, `weight`, `coefficient`, `authors`, or a `ReductionProtocol`.

    .. code-block:: python

        attree.evaluate(model, data, methods=["structure", "message_gradient"])
    """

    name = "message_gradient"
    label = "Message gradient"
    truth_at_end = True

    def __init__(self, protocol: str | ReductionProtocol = DEFAULT_PROTOCOL) -> None:
        super().__init__(protocol)

    @contextmanager
    def open_run(self, subject: Subject) -> Iterator[MessageRun]:
        """Open a run that sees the messages and the attention of the subject's model, which must be frozen."""
        run = MessageRun(subject)
        with instrument(subject.model, run):
            yield run

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        """Return the first-order effect of reducing each edge, from gradients of messages and attention."""
        assert isinstance(run, MessageRun)
        protocol = resolve_protocol(self.protocol, run.model)
        logits = run.attend(copies)
        run.check(copies, logits)
        scores = torch.zeros(copies.entry_owner.numel(), dtype=exact_dtype(logits.device), device=logits.device)
        for call, gradient in run.message_gradients(copies, logits):
            run.add(scores, copies, call, _effect(protocol, call, gradient.to(scores.dtype)))
        for of_call in run.gradients(copies, logits):
            run.add(scores, copies, of_call.call, first_order(protocol, of_call))
        return scores


@dataclass
class MessageCall(CallEdges):
    """One call of a layer without attention in a pass on copies.

    Attributes:
        factor: Ones, [edges], that multiply the messages; gradients are taken with respect to them.
        normalised: How the messages share their weight.
        change: For weights normalised by degrees: the factor of all messages into and out of an edge's destination when
            the edge is deleted, [edges].
        adds_loops: Whether the layer adds self-loops, which come back where they are deleted.
    """

    factor: Tensor
    normalised: Normalised
    change: Tensor | None
    adds_loops: bool


class MessageRun(AttentionRun):
    """Runs the model of a subject on copies and computes gradients of its messages and its attention."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._message_calls: list[MessageCall] = []
        self._edge_weight: Any = None

    def attend(self, copies: TargetCopies, share: float = 1.0) -> Tensor:
        """Return logits of the targets, [B, classes]; record every call of a layer."""
        self._message_calls = []
        return super().attend(copies, share)

    def propagate(self, call: LayerCall, arguments: dict[str, Any]) -> None:
        """Note the weights of edges that a layer passes on to its messages."""
        self._edge_weight = arguments.get("edge_weight")

    def messages(self, call: LayerCall, messages: Tensor) -> Tensor | None:
        """Multiply the messages of a layer without attention by ones, to take gradients with respect to these."""
        if not self.is_masking or call.has_attention or self.is_readout(call):
            return super().messages(call, messages)
        conv, edges = call.conv, call.edges
        count = messages.shape[conv.node_dim]
        factor = messages.new_ones(count, requires_grad=True)
        data_edges = plain(call.given_edges)
        adds_loops = bool(getattr(conv, "add_self_loops", False)) or (
            isinstance(data_edges, Tensor) and data_edges.shape[1] != count
        )
        change = None
        if isinstance(self._edge_weight, Tensor) and self._edge_weight.shape == (count,):
            weights = given_weights(conv, call.args, call.kwargs)
            for fill in (1.0, 2.0) if getattr(conv, "improved", False) else (1.0,):
                if change is None:
                    change = change_of_degrees(edges, self._edge_weight, data_edges, weights, fill)
        is_mean = type(conv.aggr_module) is MeanAggregation and type(conv).aggregate is MessagePassing.aggregate
        normalised: Normalised = "degrees" if change is not None else "mean" if is_mean else "sum"
        self._message_calls.append(
            MessageCall(conv, data_edges, edges, call.number, factor, normalised, change, adds_loops)
        )
        size = [1] * messages.dim()
        size[conv.node_dim] = -1
        return messages * factor.view(size)

    def message_gradients(self, copies: TargetCopies, logits: Tensor) -> Iterator[tuple[MessageCall, Tensor]]:
        """Yield m dp/dm of each edge, [edges], for every call of a layer without attention."""
        explained = self.predictions.probability(logits, copies.targets).sum()
        if not self._message_calls or not explained.requires_grad:
            return
        factors = [call.factor for call in self._message_calls]
        gradients = torch.autograd.grad(explained, factors, allow_unused=True, retain_graph=True)
        for call, gradient in zip(self._message_calls, gradients, strict=True):
            yield call, torch.zeros_like(call.factor) if gradient is None else gradient


def _effect(protocol: ReductionProtocol, call: MessageCall, gradient: Tensor) -> Tensor:
    """Return the first-order effect of reducing each edge in one layer without attention, [edges]."""
    if not protocol.deletes:
        return (1 - protocol.weight_factor) * gradient
    if call.normalised == "sum" or not gradient.numel():
        return gradient
    source, row = call.edges
    loops = source == row
    none = gradient.new_zeros(int(call.edges.max()) + 1)
    if call.normalised == "mean":
        count = none.index_add(0, row, torch.ones_like(gradient))[row]
        total = none.index_add(0, row, gradient)[row]
        effect = (count * gradient - total) / (count - 1).clamp(min=1)
        alone = count == 1
        return torch.where(alone | (loops & call.adds_loops), gradient, effect)
    assert call.change is not None
    others = gradient.masked_fill(loops, 0.0)
    into, out_of = none.index_add(0, row, others)[row], none.index_add(0, source, others)[row]
    of_loop = none.index_add(0, row, gradient.masked_fill(~loops, 0.0))[row]
    change = call.change.to(gradient.dtype)
    effect = gradient + (1 - change) * (into - gradient + out_of) + (1 - change.square()) * of_loop
    if call.adds_loops:
        return torch.where(loops, gradient, effect)
    return torch.where(loops, gradient + (1 - change) * (into + out_of), effect)


def change_of_degrees(
    edges: Tensor, weight: Tensor, data_edges: Any, data_weights: Tensor | None, fill: float = 1.0
) -> Tensor | None:
    """Return by how much deleting each edge multiplies all messages into and out of its destination, [edges].

    None if the weights are not c_ij / sqrt(d_i d_j) with the sums d of the weights c that enter each node.

    Args:
        edges: The edges along which a layer passes messages.
        weight: The weights that it gives them.
        data_edges: The edges that the layer was called with.
        data_weights: The weights c that it was called with; None for 1.
        fill: The weight of self-loops that the layer adds.
    """
    if not isinstance(data_edges, Tensor) or (data_weights is not None and data_weights is weight):
        return None
    weight = weight.detach()
    proper, is_given = edges[0] != edges[1], data_edges[0] != data_edges[1]
    raw = torch.where(proper, 1.0, fill).to(weight.dtype)
    if data_weights is not None:
        if int(proper.sum()) != int(is_given.sum()) or data_weights.shape[0] != data_edges.shape[1]:
            return None
        data_weight = data_weights.detach().to(raw.dtype)
        of_loops = raw.new_full((int(edges.max()) + 1 if edges.numel() else 0,), fill)
        of_loops[data_edges[0, ~is_given]] = data_weight[~is_given]
        raw = torch.where(proper, raw, of_loops[edges[0]]).masked_scatter(proper, data_weight[is_given])
    nodes = int(edges.max()) + 1 if edges.numel() else 0
    degree = raw.new_zeros(nodes).index_add_(0, edges[1], raw)
    scale = degree.rsqrt().masked_fill(degree <= 0, 0.0)
    if bool((raw < 0).any()) or not same(scale[edges[0]] * raw * scale[edges[1]], weight, weight.dtype):
        return None
    before = degree[edges[1]]
    after = before - raw
    after = torch.where(after > before * torch.finfo(after.dtype).eps ** 0.75, after, math.inf)
    return (before / after).sqrt()
