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
    r"""GSAT's stochastic attention: edges are dropped at random in training, and telling them apart has a price.

    Edge k of the n that one softmax weighs is kept with probability :math:`p_k`, which its attention decides:

    .. math:: \text{logit} \, p_k = \text{logit} \, r + \log (n \alpha_k)

    In training, the score of each edge gets :math:`\log m_k` added, with :math:`m_k` a sample of the binary concrete
    distribution of :math:`p_k` (1 is kept, 0 is dropped), the same for all heads; self-loops are always kept. The
    penalty is how much these probabilities tell about edges, compared to keeping each of them with probability r:

    .. math:: \text{mean over edges} \quad p_k \log \frac{p_k}{r} + (1 - p_k) \log \frac{1 - p_k}{1 - r}

    It is 0 for uniform attention, so only edges that the labels need are worth attending to. Miao et al.,
    "Interpretable and Generalizable Graph Learning via Stochastic Attention Mechanism", ICML 2022. There, an extra
    network gives one probability to each edge; here the attention of each layer does, so that what is explained by
    attention is what was constrained. Validation and test run without the noise.

    Args:
        strength: The factor of the penalty in the loss.
        keep: The probability r.
        temperature: Of the concrete distribution; near 0, samples are 0 or 1 and gradients are noisy.
        seed: Another seed, another noise.
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
        found = []
        proper = attention.graph.num_proper_edges
        for rows in layer_rows(attention):
            alpha = rows.alpha[:proper].mean(dim=1)
            size = rows.size[rows.row[:proper]]
            logit = self._prior + (alpha * size).clamp(min=TINY).log()
            yes, no = F.logsigmoid(logit), F.logsigmoid(-logit)
            told = yes.exp() * (yes - math.log(self.keep)) + no.exp() * (no - math.log1p(-self.keep))
            if rows.used is None:
                found.append(told.sum() / max(proper, 1))
            else:
                used = rows.used[:proper]
                found.append((told * used).sum() / used.sum().clamp(min=1))
        return mean_of_layers(found)

    def alter(
        self,
        conv: MessagePassing,
        scores: Tensor,
        softmax: Callable[[Tensor], Tensor],
        edges: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """The weights with edges dropped at random."""
        alpha = softmax(scores)
        alpha = alpha if alpha.dim() == 1 else alpha.mean(dim=1)
        count = edges[1].bincount()[edges[1]]
        uniform = torch.rand(alpha.shape, generator=generator, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
        noise = (uniform.log() - (-uniform).log1p()).to(alpha)
        logit = self._prior + (alpha * count).clamp(min=TINY).log()
        kept = F.logsigmoid((logit + noise) / self.temperature)
        kept = torch.where(edges[0] == edges[1], torch.zeros_like(kept), kept)
        return softmax(scores + (kept if scores.dim() == 1 else kept.unsqueeze(1)))
