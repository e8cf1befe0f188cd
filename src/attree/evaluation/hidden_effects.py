"""What single effects and mean attention hide: edges that stand in for each other, and heads that differ."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from attree.attention import Attention
from attree.attribution import Pairs, subject_pairs
from attree.evaluation.names import size_name
from attree.faithfulness import Reduction, ReductionProtocol, delete_edges
from attree.subject import Subject

SMALL = 0.01
"""Effects are small if a target's strongest edge changes the probability by less than this, as a median."""

HIDDEN = 10.0
"""Edges may stand in for each other if effects under another protocol are this many times as large."""

TARGETS = 20
"""Number of targets whose two strongest edges are reduced together."""


def may_be_hidden(metrics: Mapping[str, float], reductions: Mapping[str, Reduction]) -> bool:
    """Whether effects under the leading protocol are so small that edges may stand in for each other.

    They are 0, or those under another protocol are not small and many times as large.

    Args:
        metrics: The metrics by logged name, with the sizes of effects.
        reductions: The effects by protocol, the leading one first.
    """
    leading, *others = (metrics[size_name(name, "strongest")] for name in reductions)
    if not leading < SMALL:
        return False
    return leading == 0 or any(other >= SMALL and other > HIDDEN * leading for other in others)


def effects_together(
    subject: Subject,
    pairs: Pairs,
    reductions: Mapping[str, Reduction],
    scores: Tensor,
    protocol: ReductionProtocol,
) -> dict[str, float]:
    """Return the effect of each target's two strongest edges reduced at once, and the sum of their single effects.

    Both are medians over the first `TARGETS` targets with two edges, by logged name: sizes
    `two_together` and `two_apart`. The strongest edges have the largest effects under all protocols together; among
    edges without an effect, the largest scores.

    Args:
        subject: The model call, which predicts classes.
        pairs: The pairs of the reductions.
        reductions: The effects by protocol.
        scores: Scores of a method, to choose among edges without an effect.
        protocol: The protocol under which two edges are reduced.
    """
    first = subject_pairs(subject, pairs.targets[:TARGETS])
    count = len(first)
    sizes = torch.stack([reduction.delta_pc[:count].abs() for reduction in reductions.values()]).sum(dim=0)
    order = scores[:count].argsort(stable=True)
    order = order[sizes[order].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(count, device=order.device)
    usable = first.flow & (first.edges < first.graph.num_proper_edges)
    rank = rank.masked_fill(~usable, -1)
    probabilities = delete_edges(subject, first, {"": rank.double()}, (0, 2), protocol)[""]
    targets = first.targets.numel()
    has_two = first.owner[usable].bincount(minlength=targets) >= 2
    by_rank = rank.argsort(descending=True)
    by_target = by_rank[first.owner[by_rank].argsort(stable=True)]
    begin = first.ptr[:-1][has_two]
    effects = reductions[protocol.name].delta_pc[:count]
    apart = effects[by_target[begin]] + effects[by_target[begin + 1]]
    together = (probabilities[:, 0] - probabilities[:, 1])[has_two]
    return {
        size_name(protocol.name, size): float(values.double().quantile(0.5)) if values.numel() else math.nan
        for size, values in (("two_together", together), ("two_apart", apart))
    }


def heads_apart(attention: Attention) -> float:
    """Return the share of a node's attention that a head puts on other edges than the mean of the heads does.

    It is the total variation, as a mean over heads and nodes with several edges, in the layer where it is largest; 0
    without a layer of several heads.
    """
    destination, largest = attention.graph.edge_index[1], 0.0
    has_choice = destination.bincount(minlength=attention.graph.num_nodes) > 1
    for weights in attention.weights:
        if weights.shape[1] > 1 and bool(has_choice.any()):
            apart = (weights - weights.mean(dim=1, keepdim=True)).abs().double().cpu() / 2
            by_node = apart.new_zeros(attention.graph.num_nodes, weights.shape[1])
            by_node.index_add_(0, destination.cpu(), apart)
            largest = max(largest, float(by_node[has_choice.cpu()].mean()))
    return largest
