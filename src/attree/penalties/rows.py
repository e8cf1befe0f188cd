"""Penalties on the form of attention: how it is spread over the edges that one softmax weighs.

A row is what one softmax weighs: the n > 1 edges that enter a node, or, where each relation has an attention of its
own, those of one relation that do. alpha_1 ... alpha_n are the weights of one head, which add up to 1. Every penalty is
a number in [0, 1] for each row, averaged over rows and heads, then over layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention import Attention
from attree.errors import ArgumentError, expect_bool
from attree.penalties.penalty import AttentionPenalty

TINY = 1e-12
"""Weights below this count as this: logarithms and roots have no gradient at 0."""


@dataclass(frozen=True)
class LayerRows:
    """The attention of one layer, row by row.

    Attributes:
        alpha: Weights that add up to 1 in every row, [num_edges, heads].
        row: The row of each edge, [num_edges].
        size: How many edges each row has, [num_rows].
        used: Which edges the layer uses, [num_edges]; None if it uses all.
    """

    alpha: Tensor
    row: Tensor
    size: Tensor
    used: Tensor | None

    def sum(self, values: Tensor) -> Tensor:
        """The sum over each row, [num_rows, ...]."""
        return values.new_zeros(self.size.numel(), *values.shape[1:]).index_add(0, self.row, values)

    def mean(self, per_row: Tensor) -> Tensor:
        """The mean over all rows of several edges; 0 if there are none."""
        several = self.size > 1
        return (per_row * several.unsqueeze(1)).sum() / (several.sum().clamp(min=1) * per_row.shape[1])

    @property
    def count(self) -> Tensor:
        """How many edges each row has, at least 2, [num_rows, 1]: rows of one edge are left out by `mean`."""
        return self.size.clamp(min=2).to(self.alpha.dtype).unsqueeze(1)


def layer_rows(attention: Attention) -> Iterator[LayerRows]:
    """The rows of every layer. Edges that a layer does not use are in no row."""
    numbers = attention.softmax or (None,) * len(attention.weights)
    for weight, used, softmax in zip(attention.weights, attention.present, numbers, strict=True):
        alpha = weight.float() if weight.dtype.itemsize < 4 else weight
        row, num_rows = attention.graph.destination, attention.graph.num_nodes
        if softmax is not None:
            numbered, row = softmax.unique(return_inverse=True)
            num_rows = numbered.numel()
        counted = torch.ones_like(row) if used is None else used.long()
        rows = LayerRows(alpha, row, row.new_zeros(num_rows).index_add(0, row, counted), used)
        # The weights of a branch are multiplied by its factor, and a stranger's convolution may use other multiples.
        total = rows.sum(alpha).index_select(0, row)
        yield replace(rows, alpha=alpha / total.clamp(min=TINY))


def mean_of_layers(per_layer: list[Tensor]) -> Tensor:
    """The mean of one number a layer."""
    return torch.stack(per_layer).mean()


class Entropy(AttentionPenalty):
    r"""The entropy of attention: pushes it to be sharper, or flatter.

    .. math:: \frac{-1}{\log n} \sum_{k=1}^{n} \alpha_k \log \alpha_k

    This is 1 for uniform attention and 0 where one edge has it all; with `flatter`, 1 minus that. Entropy as a
    regulariser: Pereyra et al., "Regularizing Neural Networks by Penalizing Confident Output Distributions", 2017.

    Args:
        strength: The factor of the penalty in the loss.
        flatter: Penalise sharp attention instead of flat.
    """

    name = "entropy"

    def __init__(self, strength: float = 1.0, flatter: bool = False) -> None:
        super().__init__(strength)
        self.flatter = expect_bool(flatter, "flatter")

    def measure(self, attention: Attention) -> Tensor:
        found = []
        for rows in layer_rows(attention):
            entropy = -rows.sum(rows.alpha * rows.alpha.clamp(min=TINY).log()) / rows.count.log()
            found.append(rows.mean(1 - entropy if self.flatter else entropy))
        return mean_of_layers(found)


class UniformDistance(AttentionPenalty):
    r"""The squared distance of attention to uniform attention: pulls it there, or pushes it away.

    .. math:: \frac{n}{n - 1} \sum_{k=1}^{n} \left( \alpha_k - \frac{1}{n} \right)^2

    This is 0 for uniform attention and 1 where one edge has it all; with `away`, 1 minus that. Uniform attention is the
    baseline of Wiegreffe and Pinter, "Attention is not not Explanation", EMNLP 2019.

    Args:
        strength: The factor of the penalty in the loss.
        away: Penalise being near uniform attention instead of being far from it.
    """

    name = "uniform_distance"

    def __init__(self, strength: float = 1.0, away: bool = False) -> None:
        super().__init__(strength)
        self.away = expect_bool(away, "away")

    def measure(self, attention: Attention) -> Tensor:
        found = []
        for rows in layer_rows(attention):
            distance = (rows.sum(rows.alpha.square()) - 1 / rows.count) * rows.count / (rows.count - 1)
            found.append(rows.mean(1 - distance if self.away else distance))
        return mean_of_layers(found)


class Sparsity(AttentionPenalty):
    r"""How many edges share the attention: pushes it onto few of them and the rest towards exactly nothing.

    .. math:: \frac{1}{n - 1} \left( \Big( \sum_{k=1}^{n} \sqrt{\alpha_k} \Big)^2 - 1 \right)

    The sum of weights is 1 whatever they are, so its L1 norm penalises nothing; this is the L1/2 norm, 0 where one edge
    has it all and 1 for uniform attention (Xu et al., "L1/2 Regularization", IEEE TNNLS 2012). Compared with
    the entropy, it acts more on small weights.
    """

    name = "sparsity"

    def measure(self, attention: Attention) -> Tensor:
        found = []
        for rows in layer_rows(attention):
            roots = torch.where(rows.alpha > TINY, rows.alpha.clamp(min=TINY).sqrt(), 0.0)
            norm = rows.sum(roots).square()
            found.append(rows.mean((norm - 1) / (rows.count - 1)))
        return mean_of_layers(found)


class HeadAgreement(AttentionPenalty):
    r"""How much the heads of a layer disagree: pulls them together, so that their mean says what each of them does.

    .. math:: \frac{1}{H - 1} \sum_{h=1}^{H} \sum_{k=1}^{n} (\alpha^h_k - \bar\alpha_k)^2

    with :math:`\bar\alpha` the mean of the H heads, which is what GAtt reads. This is 0 where all heads are equal and 1
    where each has another edge. Layers of one head are left out. The opposite of the disagreement on attended positions
    of Li et al., "Multi-Head Attention with Disagreement Regularization", EMNLP 2018.
    """

    name = "head_agreement"

    def measure(self, attention: Attention) -> Tensor:
        found = []
        for rows in layer_rows(attention):
            heads = rows.alpha.shape[1]
            if heads > 1:
                apart = (rows.alpha - rows.alpha.mean(dim=1, keepdim=True)).square().sum(dim=1, keepdim=True)
                found.append(rows.mean(rows.sum(apart) / (heads - 1)))
        if not found:
            raise ArgumentError(
                "Expected argument `penalties` to have `head_agreement` only for networks of several attention heads, "
                "but every layer has one."
            )
        return mean_of_layers(found)
