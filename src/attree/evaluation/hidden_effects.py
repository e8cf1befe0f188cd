"""What single effects and mean attention hide: edges that stand in for each other, and heads that differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attree.attention import Attention
from attree.attribution import Pairs
from attree.evaluation.names import size_name
from attree.faithfulness import ReductionProtocol, delete_edges
from attree.subject import Subject

SMALL = 0.01
"""Effects are small if a target's strongest edge changes the probability by less than this, as a median."""

HIDDEN = 10.0
"""Edges may stand in for each other if effects under another protocol are this many times as large."""

HIDDEN_TARGETS = 20
"""Number of targets whose two strongest edges are reduced together."""


def may_be_hidden(metrics: Mapping[str, float], protocols: Sequence[str]) -> bool:
    """Whether effects under the leading protocol are so small that edges may stand in for each other.

    They are 0, or those under another protocol are not small and many times as large.

    Args:
        metrics: The metrics by logged name, with the sizes of effects.
        protocols: Names of the protocols, the leading one pairs.
    """
    leading, *others = (metrics[size_name(name, "strongest")] for name in protocols)
    if not leading < SMALL:
        return False
    return leading == 0 or any(other >= SMALL and other > HIDDEN * leading for other in others)


def effects_together(
    subject: Subject, pairs: Pairs, effects: Tensor, order: Sequence[Tensor], protocol: ReductionProtocol
) -> dict[str, float]:
    """Return the effect of each target's two strongest edges reduced at once, and the sum of their single effects.

    Both are medians over the targets with two edges, by logged name: sizes `two_together` and `two_apart`.

    Args:
        subject: The model call, which predicts classes.
        pairs: The pairs of some targets.
        effects: The single effect of each pair's edge.
        order: Values of the pairs: the strongest edges have the largest of the last ones, among equal ones of those
            before.
        protocol: The protocol under which two edges are reduced.
    """
    ascending = torch.arange(len(pairs), device=effects.device)
    for values in order:
        ascending = ascending[values.to(effects.device)[ascending].argsort(stable=True)]
    rank = torch.empty_like(ascending)
    rank[ascending] = torch.arange(len(pairs), device=effects.device)
    usable = pairs.flow & (pairs.edges < pairs.graph.num_proper_edges)
    rank = rank.masked_fill(~usable, -1)
    probabilities = delete_edges(subject, pairs, {"": rank.float()}, (0, 2), protocol)[""]
    targets = pairs.targets.numel()
    has_two = pairs.owner[usable].bincount(minlength=targets) >= 2
    by_rank = rank.argsort(descending=True)
    by_target = by_rank[pairs.owner[by_rank].argsort(stable=True)]
    begin = pairs.ptr[:-1][has_two]
    apart = effects[by_target[begin]] + effects[by_target[begin + 1]]
    together = (probabilities[:, 0] - probabilities[:, 1])[has_two]
    return {
        size_name(protocol.name, size): float(values.cpu().double().quantile(0.5)) if values.numel() else math.nan
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
            apart = (weights - weights.mean(dim=1, keepdim=True)).abs().cpu().double() / 2
            by_node = apart.new_zeros(attention.graph.num_nodes, weights.shape[1])
            by_node.index_add_(0, destination.cpu(), apart)
            largest = max(largest, float(by_node[has_choice.cpu()].mean()))
    return largest
