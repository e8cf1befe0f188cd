"""Stochastic attention with an information constraint, after GSAT."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention import Attention
from attree.errors import expect_number, expect_seed
from attree.penalties.penalty import AttentionPenalty
from attree.penalties.rows import TINY, layer_rows, mean_of_layers


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
