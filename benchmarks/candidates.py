"""Methods that were tried beside attree's own and won too little to be added; `benchmarks/trust.py` measures them.

- `gatt_norm`: GAtt of message norms, alpha |W h|, each row scaled to sum to 1 (after Kobayashi et al., 2020).
- `gatt_gradient`: GAtt of the positive part of alpha dp/dalpha, one walk a target (after Chefer et al., 2021).
- `rollout`: GAtt of attention mixed half and half with the identity, for skips (Abnar and Zuidema, 2020).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention import Attention
from attree.attention.softmax_hook import attention_convs
from attree.attribution import Attribution, AttributionMethod, GAtt
from attree.attribution.method import as_subject
from attree.attribution.posthoc import MaskedRun, TargetCopies
from attree.faithfulness import AttentionGradient
from attree.faithfulness.first_order import AttentionRun
from attree.subject import Subject
from attree.subject.target_roots import Targets


class _OtherWeights(AttributionMethod):
    """GAtt of other weights than attention."""

    def weights(self, subject: Subject) -> list[Tensor]:
        """The weights of each layer on the edges of the looped graph."""
        raise NotImplementedError

    def attribute(self, subject: Subject | Attention, targets: Targets = "all") -> Attribution:
        subject = as_subject(subject)
        attention = Attention.from_weights(subject.graph, self.weights(subject))
        return replace(GAtt().attribute(attention, subject.roots(targets)), method=self.name)


class GAttNorm(_OtherWeights):
    """GAtt of message norms."""

    name, label = "gatt_norm", "GAtt of norms"

    def weights(self, subject: Subject) -> list[Tensor]:
        graph, seen = subject.graph, []
        edges: dict[MessagePassing, Tensor] = {}

        def see_edges(conv: MessagePassing, inputs: Any) -> None:
            edges[conv] = inputs[0]

        def see_messages(conv: MessagePassing, inputs: Any, messages: Tensor) -> None:
            conv_edges = edges[conv]
            norm = (
                messages.detach().norm(dim=-1).flatten(1).mean(dim=1) if messages.dim() > 2 else messages.norm(dim=-1)
            )
            loops = conv_edges[0] == conv_edges[1]
            weights = norm.new_zeros(graph.num_edges)
            weights[: graph.num_proper_edges] = norm[~loops]
            weights.index_add_(0, graph.num_proper_edges + conv_edges[0, loops], norm[loops])
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

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        assert isinstance(run, AttentionRun)
        logits = run.attend(copies)
        run.check(copies, logits)
        scores = torch.zeros(copies.entry_owner.numel(), dtype=torch.float64)
        at = torch.zeros(copies.part.node.numel(), dtype=torch.float64)
        if copies.subject.level == "node":
            at[copies.targets if copies.part.target is None else copies.part.target] = 1
        else:
            at += 1
        for call, _, by_weight in reversed(list(run.gradients(copies, logits))):
            gain = (call.weights * by_weight).double().flatten(1).clamp(min=0).mean(dim=1)
            moved = at[call.edges[1]] * gain
            scores.index_add_(0, run.entries(copies, call), moved)
            at = torch.zeros_like(at).index_add_(0, call.edges[0], moved)
        return scores


def candidates() -> list[AttributionMethod]:
    """All of them, and the integrated attention gradient, which was kept: `AttentionGradient(protocol, steps=10)`."""
    integrated = [AttentionGradient("weight", steps=10), AttentionGradient("removal", steps=10)]
    return [GAttNorm(), GAttGradient(), Rollout(), *integrated]
