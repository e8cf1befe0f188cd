"""Penalties on the distribution of attention over the edges of one softmax.

A row is the set of edges of one softmax: the n > 1 edges that enter a node or, if each relation has its own attention,
those of one relation. alpha_1 ... alpha_n are the weights of one head, which sum to 1. Every penalty is a number in
[0, 1] for each row, averaged over rows and heads, then over layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention import Attention
from attree.errors import ArgumentError, expect_bool, expect_number, expect_seed
from attree.penalties.penalty import AttentionPenalty

TINY = 1e-12
"""Lower limit of numbers in logarithms, roots and divisions, whose gradients are infinite at 0."""


@dataclass(frozen=True)
class LayerRows:
    """The attention of one layer, grouped by rows.

    Attributes:
        alpha: Weights that sum to 1 in every row, [num_edges, heads].
        row: The row of each edge, [num_edges].
        size: Number of edges of each row, [num_rows].
        used: Mask of the edges that the layer uses, [num_edges]; None if it uses all.
    """

    alpha: Tensor
    row: Tensor
    size: Tensor
    used: Tensor | None

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over each row, [num_rows, ...]."""
        return values.new_zeros(self.size.numel(), *values.shape[1:]).index_add(0, self.row, values)

    def mean(self, per_row: Tensor) -> Tensor:
        """Return the mean over all rows with several edges; 0 if there are none."""
        several = self.size > 1
        return (per_row * several.unsqueeze(1)).sum() / (several.sum().clamp(min=1) * per_row.shape[1])

    @property
    def count(self) -> Tensor:
        """Number of edges of each row, but at least 2, [num_rows, 1]; `mean` leaves out rows of one edge."""
        return self.size.clamp(min=2).to(self.alpha.dtype).unsqueeze(1)


def layer_rows(attention: Attention) -> Iterator[LayerRows]:
    """Yield the rows of every layer. Edges that a layer does not use are not counted."""
    numbers = attention.softmax or (None,) * len(attention.weights)
    for weight, used, softmax in zip(attention.weights, attention.present, numbers, strict=True):
        alpha = weight.float() if weight.dtype.itemsize < 4 else weight
        row, num_rows = attention.graph.destination, attention.graph.num_nodes
        if softmax is not None:
            numbered, row = softmax.unique(return_inverse=True)
            num_rows = numbered.numel()
        counted = torch.ones_like(row) if used is None else used.long()
        rows = LayerRows(alpha, row, row.new_zeros(num_rows).index_add(0, row, counted), used)
        # Weights of parallel branches carry a factor, and so may those of users' convolutions.
        total = rows.sum(alpha).index_select(0, row)
        yield replace(rows, alpha=alpha / total.clamp(min=TINY))


def mean_of_layers(per_layer: list[Tensor]) -> Tensor:
    """Return the mean of one number per layer."""
    return torch.stack(per_layer).mean()


class Entropy(AttentionPenalty):
    r"""The entropy of attention. It makes attention sharper or, with `flatter`, flatter.

    .. math:: \frac{-1}{\log n} \sum_{k=1}^{n} \alpha_k \log \alpha_k

    This is 1 for uniform attention and 0 if one edge has all attention; with `flatter`, 1 minus that. Entropy as a
    regulariser: Pereyra et al., "Regularizing Neural Networks by Penalizing Confident Output Distributions", 2017.

    Args:
        strength: The factor of the penalty in the loss.
        flatter: Penalise sharp attention instead of flat attention.
    """

    name = "entropy"

    def __init__(self, strength: float = 1.0, flatter: bool = False) -> None:
        super().__init__(strength)
        self.flatter = expect_bool(flatter, "flatter")

    def measure(self, attention: Attention) -> Tensor:
        layer_values = []
        for rows in layer_rows(attention):
            entropy = -rows.sum(rows.alpha * rows.alpha.clamp(min=TINY).log()) / rows.count.log()
            layer_values.append(rows.mean(1 - entropy if self.flatter else entropy))
        return mean_of_layers(layer_values)


class UniformDistance(AttentionPenalty):
    r"""The squared distance from uniform attention. It makes attention more or, with `away`, less uniform.

    .. math:: \frac{n}{n - 1} \sum_{k=1}^{n} \left( \alpha_k - \frac{1}{n} \right)^2

    This is 0 for uniform attention and 1 if one edge has all attention; with `away`, 1 minus that. Uniform attention is
    the baseline of Wiegreffe and Pinter, "Attention is not not Explanation", EMNLP 2019.

    Args:
        strength: The factor of the penalty in the loss.
        away: Penalise attention near uniform instead of far from it.
    """

    name = "uniform_distance"

    def __init__(self, strength: float = 1.0, away: bool = False) -> None:
        super().__init__(strength)
        self.away = expect_bool(away, "away")

    def measure(self, attention: Attention) -> Tensor:
        layer_values = []
        for rows in layer_rows(attention):
            distance = (rows.sum(rows.alpha.square()) - 1 / rows.count) * rows.count / (rows.count - 1)
            layer_values.append(rows.mean(1 - distance if self.away else distance))
        return mean_of_layers(layer_values)


class Sparsity(AttentionPenalty):
    r"""The L1/2 norm of attention. It concentrates attention on few edges, and moves the other weights towards 0.

    .. math:: \frac{1}{n - 1} \left( \Big( \sum_{k=1}^{n} \sqrt{\alpha_k} \Big)^2 - 1 \right)

    The L1 norm would have no effect, because the weights always sum to 1. This is 0 if one edge has all attention and 1
    for uniform attention (Xu et al., "L1/2 Regularization", IEEE TNNLS 2012). It acts
    more strongly on small weights than the entropy penalty does.
    """

    name = "sparsity"

    def measure(self, attention: Attention) -> Tensor:
        layer_values = []
        for rows in layer_rows(attention):
            roots = torch.where(rows.alpha > TINY, rows.alpha.clamp(min=TINY).sqrt(), 0.0)
            norm = rows.sum(roots).square()
            layer_values.append(rows.mean((norm - 1) / (rows.count - 1)))
        return mean_of_layers(layer_values)


class HeadAgreement(AttentionPenalty):
    r"""The disagreement of a layer's heads. It makes heads similar, so that their mean represents each of them.

    .. math:: \frac{1}{H - 1} \sum_{h=1}^{H} \sum_{k=1}^{n} (\alpha^h_k - \bar\alpha_k)^2

    with :math:`\bar\alpha` the mean of the H heads, which GAtt reads. This is 0 if all heads are equal and 1 if each
    attends to a different edge. Layers with one head are left out. It is the opposite of the disagreement on attended
    positions of Li et al., "Multi-Head Attention with Disagreement Regularization", EMNLP 2018.
    """

    name = "head_agreement"

    def measure(self, attention: Attention) -> Tensor:
        """Return the disagreement of each layer's heads, as a mean over layers; raise if every layer has one head."""
        layer_values = []
        for rows in layer_rows(attention):
            heads = rows.alpha.shape[1]
            if heads > 1:
                disagreement = (rows.alpha - rows.alpha.mean(dim=1, keepdim=True)).square().sum(dim=1, keepdim=True)
                layer_values.append(rows.mean(rows.sum(disagreement) / (heads - 1)))
        if not layer_values:
            raise ArgumentError(
                "Expected argument `penalties` to have `head_agreement` only for networks with several attention "
                "heads, but every layer has one head."
            )
        return mean_of_layers(layer_values)


class GSAT(AttentionPenalty):
    r"""GSAT's stochastic attention: drop edges at random in training, and penalise attention that is not uniform.

    Edge k of the n edges of one softmax is kept with a probability :math:`p_k` that follows from its attention:

    .. math:: \text{logit} \, p_k = \text{logit} \, r + \log (n \alpha_k)

    In training, :math:`\log m_k` is added to the score of each edge. :math:`m_k` is a sample of the binary concrete
    distribution of :math:`p_k` (1 is kept, 0 is dropped), the same for all heads. Self-loops are always kept. The
    penalty is the KL divergence of these probabilities from r:

    .. math:: \text{mean over edges} \quad p_k \log \frac{p_k}{r} + (1 - p_k) \log \frac{1 - p_k}{1 - r}

    It is 0 for uniform attention, so the network gains only from attention to edges that help to predict the labels.
    Miao et al., "Interpretable and Generalizable Graph Learning via Stochastic Attention Mechanism", ICML 2022. There,
    an extra network gives each edge one probability. Here the attention of each layer gives it, so that the explaining
    attention itself is constrained. Validation and test run without the noise.

    Args:
        strength: The factor of the penalty in the loss.
        keep: The probability r of keeping an edge under uniform attention.
        temperature: Temperature of the concrete distribution; near 0, samples are 0 or 1 and gradients are noisy.
        seed: Seed of the noise.
    """

    name = "gsat"

    def __init__(self, strength: float = 1.0, keep: float = 0.7, temperature: float = 1.0, seed: int = 0) -> None:
        super().__init__(strength)
        self.keep = expect_number(keep, "keep", above=0, below=1)
        self.temperature = expect_number(temperature, "temperature", above=0)
        self.seed = expect_seed(seed)

    @property
    def _prior(self) -> float:
        return math.log(self.keep) - math.log1p(-self.keep)

    def measure(self, attention: Attention) -> Tensor:
        """Return the KL divergence of keep probabilities from the rate `keep`, as a mean over edges and layers."""
        layer_values = []
        proper = attention.graph.num_proper_edges
        for rows in layer_rows(attention):
            alpha = rows.alpha[:proper].mean(dim=1)
            size = rows.size[rows.row[:proper]]
            logit = self._prior + (alpha * size).clamp(min=TINY).log()
            log_keep, log_drop = F.logsigmoid(logit), F.logsigmoid(-logit)
            divergence = log_keep.exp() * (log_keep - math.log(self.keep)) + log_drop.exp() * (
                log_drop - math.log1p(-self.keep)
            )
            if rows.used is None:
                layer_values.append(divergence.sum() / max(proper, 1))
            else:
                used = rows.used[:proper]
                layer_values.append((divergence * used).sum() / used.sum().clamp(min=1))
        return mean_of_layers(layer_values)

    def alter(
        self,
        conv: MessagePassing,
        scores: Tensor,
        softmax: Callable[[Tensor], Tensor],
        edges: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the attention weights with edges dropped at random."""
        alpha = softmax(scores)
        alpha = alpha if alpha.dim() == 1 else alpha.mean(dim=1)
        count = edges[1].bincount()[edges[1]]
        uniform = torch.rand(alpha.shape, generator=generator, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
        noise = (uniform.log() - (-uniform).log1p()).to(alpha)
        logit = self._prior + (alpha * count).clamp(min=TINY).log()
        log_keep = F.logsigmoid((logit + noise) / self.temperature)
        log_keep = torch.where(edges[0] == edges[1], torch.zeros_like(log_keep), log_keep)
        return softmax(scores + (log_keep if scores.dim() == 1 else log_keep.unsqueeze(1)))
