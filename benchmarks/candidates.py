"""Methods that were tried beside attree's own and won too little to be added; `benchmarks/trust.py` measures them.

- `gatt_norm`: GAtt of message norms, alpha |W h|, each row scaled to sum to 1 (after Kobayashi et al., 2020).
- `gatt_gradient`: GAtt of the positive part of alpha dp/dalpha, one walk a target (after Chefer et al., 2021).
- `rollout`: GAtt of attention mixed half and half with the identity, for skips (Abnar and Zuidema, 2020).
- `integrated_attention`: the attention gradient of `weight` or `removal`, its derivatives averaged on the way from no
  attention to all of it (after Hao et al., 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention import Attention
from attree.attention.edge_hook import hook_edges
from attree.attention.softmax_hook import attention_convs, hook_softmax
from attree.attribution import Attribution, AttributionMethod, GAtt
from attree.attribution.method import as_subject
from attree.attribution.posthoc.copies import Copies
from attree.attribution.posthoc.masked_run import MaskedRun
from attree.effects import AttentionGradient
from attree.effects.attention_gradient import AttentionRun, first_order
from attree.faithfulness import resolve_protocol
from attree.subject import Subject
from attree.subject.subject import Targets


class _OtherWeights(AttributionMethod):
    """GAtt of other weights than attention."""

    def weights(self, subject: Subject) -> list[Tensor]:
        """The weights of each layer on the edges of the looped graph."""
        raise NotImplementedError

    def attribute(self, subject: Subject | Attention, targets: Targets = "all") -> Attribution:
        subject = as_subject(subject)
        attention = Attention.from_weights(subject.graph, self.weights(subject))
        return replace(GAtt().attribute_from(attention, subject.roots(targets)), method=self.name)


class GAttNorm(_OtherWeights):
    """GAtt of message norms."""

    name, label = "gatt_norm", "GAtt of norms"

    def weights(self, subject: Subject) -> list[Tensor]:
        graph, seen = subject.graph, []
        edges: dict[MessagePassing, Tensor] = {}

        def see_edges(conv: MessagePassing, inputs: Any) -> None:
            edges[conv] = inputs[0]

        def see_messages(conv: MessagePassing, inputs: Any, messages: Tensor) -> None:
            own = edges[conv]
            norm = (
                messages.detach().norm(dim=-1).flatten(1).mean(dim=1) if messages.dim() > 2 else messages.norm(dim=-1)
            )
            loops = own[0] == own[1]
            weights = norm.new_zeros(graph.num_edges)
            weights[: graph.num_proper_edges] = norm[~loops]
            weights.index_add_(0, graph.num_proper_edges + own[0, loops], norm[loops])
            total = weights.new_zeros(graph.num_nodes).index_add_(0, graph.destination, weights)
            seen.append(weights / total[graph.destination].clamp(min=1e-12))

        with torch.no_grad(), ExitStack() as stack:
            for conv in attention_convs(subject.model):
                stack.callback(conv.register_propagate_forward_pre_hook(see_edges).remove)
                stack.callback(conv.register_message_forward_hook(see_messages).remove)
            subject.call.run()
        return seen


class Rollout(_OtherWeights):
    """GAtt of attention mixed half and half with the identity."""

    name, label = "rollout", "Rollout"

    def weights(self, subject: Subject) -> list[Tensor]:
        loops = torch.arange(subject.graph.num_edges) >= subject.graph.num_proper_edges
        return [alpha / 2 + loops.to(alpha.dtype) / 2 for alpha in subject.attention.per_edge()]


class GAttGradient(AttentionGradient):
    """GAtt of the positive part of alpha dp/dalpha."""

    name, label = "gatt_gradient", "GAtt of gradients"

    def __init__(self) -> None:
        super().__init__()

    def score(self, run: MaskedRun, copies: Copies) -> Tensor:
        assert isinstance(run, AttentionRun)
        logits = run.attend(copies)
        run.check(copies, logits)
        scores = torch.zeros(copies.entry_owner.numel(), dtype=torch.float64)
        at = torch.zeros(copies.node.numel(), dtype=torch.float64)
        if copies.subject.level == "node":
            at[copies.rows] = 1
        else:
            at += 1
        for call, _, by_weight in reversed(list(run.gradients(copies, logits))):
            gain = (call.weights * by_weight).double().flatten(1).clamp(min=0).mean(dim=1)
            moved = at[call.edges[1]] * gain
            scores.index_add_(0, run.entries(copies, call), moved)
            at = torch.zeros_like(at).index_add_(0, call.edges[0], moved)
        return scores[copies.entry_owner < copies.targets.numel()]


class ScaledRun(AttentionRun):
    """Runs a model with all attention weights multiplied by a share."""

    share = 1.0

    def see(self, conv: MessagePassing, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        weights = super().see(conv, scores, softmax)
        return weights - (1 - self.share) * weights.detach()


class IntegratedAttention(AttentionGradient):
    """The attention gradient with derivatives averaged from no attention to all of it."""

    label = "Integrated attention"
    steps = 10

    def __init__(self, protocol: str) -> None:
        super().__init__(protocol)
        self.name = f"integrated_attention_{protocol}"

    def open_run(self, subject: Subject) -> AbstractContextManager[ScaledRun]:
        @contextmanager
        def opened() -> Iterator[ScaledRun]:
            run = ScaledRun(subject)
            with hook_softmax(subject.model, run.see) as convs, hook_edges(convs, run.edges):
                yield run

        return opened()

    def score(self, run: MaskedRun, copies: Copies) -> Tensor:
        assert isinstance(run, ScaledRun)
        run.share = 1.0
        logits = run.attend(copies)
        run.check(copies, logits)
        usual = list(run.gradients(copies, logits))
        points, weights = np.polynomial.legendre.leggauss(self.steps)
        means = [torch.zeros_like(by_weight) for _, _, by_weight in usual]
        for point, weight in zip(points, weights, strict=True):
            run.share = (point + 1) / 2
            for mean, (_, _, by_weight) in zip(means, run.gradients(copies, run.attend(copies)), strict=True):
                mean += weight / 2 * by_weight
        protocol = resolve_protocol(self.protocol, run.model)
        scores = torch.zeros(copies.entry_owner.numel(), dtype=torch.float64)
        for (call, by_score, _), mean in zip(usual, means, strict=True):
            scores.index_add_(0, run.entries(copies, call), first_order(protocol, call, by_score, mean))
        return scores[copies.entry_owner < copies.targets.numel()]


def candidates() -> list[AttributionMethod]:
    """All of them."""
    integrated = [IntegratedAttention("weight"), IntegratedAttention("removal")]
    return [GAttNorm(), GAttGradient(), Rollout(), *integrated]
