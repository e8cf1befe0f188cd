"""GNNExplainer: the smallest edge mask that keeps a prediction, learned for each target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from attree.attribution.baselines import hashed_uniform
from attree.attribution.posthoc.copies import Copies
from attree.attribution.posthoc.mask_method import MaskMethod
from attree.attribution.posthoc.masked_run import MaskedRun
from attree.errors import expect
from attree.precision import exact_dtype

EPSILON = 1e-15


class GNNExplainer(MaskMethod):
    r"""GNNExplainer (Ying et al., 2019), with a mask of edges.

    .. math:: \min_M -\log p_c(v \mid \sigma(M)) + \lambda_1 \sum_e \sigma(M_e) + \lambda_2 \overline{H(\sigma(M))}

    where :math:`c` is the class predicted for target :math:`v`, :math:`\sigma(M_e)` multiplies the message of edge
    :math:`e` in every layer and head, and :math:`H` is the entropy of a mask entry; the sum and the mean run over the
    edges that the output depends on. An edge scores :math:`\sigma(M_e)`.

    The masks of all targets of a batch are learned at once, each on its own copy of the neighbourhood: Adam treats
    every entry by itself, so this is PyG's `GNNExplainer(node_mask_type=None)`, one target after the other on the whole
    graph, up to the masks that it starts from. Those depend on the seed, the target and the edge alone.

    Args:
        epochs: Steps of the optimiser.
        lr: Its learning rate.
        edge_size: :math:`\lambda_1`.
        edge_ent: :math:`\lambda_2`.
        seed: Seed of the masks' first values.
        self_loops: Mask and score also the self-loops that layers add themselves.
    """

    name = "gnn_explainer"
    label = "GNNExplainer"

    def __init__(
        self,
        epochs: int = 100,
        lr: float = 0.01,
        edge_size: float = 0.005,
        edge_ent: float = 1.0,
        seed: int = 0,
        self_loops: bool = False,
    ) -> None:
        super().__init__(self_loops)
        expect(epochs >= 1, "epochs", "an integer >= 1", epochs)
        expect(lr > 0, "lr", "a number > 0", lr)
        self.epochs = epochs
        self.lr = lr
        self.edge_size = edge_size
        self.edge_ent = edge_ent
        self.seed = seed

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        return cls(seed=seed)

    def score(self, run: MaskedRun, copies: Copies) -> Tensor:
        run.check_unmasked(copies)
        copies = copies.without_decoy()
        mask = self.first_mask(copies, run.unmasked(copies).dtype).requires_grad_(True)
        optimizer = torch.optim.Adam([mask], lr=self.lr)
        used: Tensor | None = None
        for _ in range(self.epochs):
            loss = run.loss(copies, run.logits(copies, mask.sigmoid())).sum()
            if used is not None:
                loss = loss + self._size_and_entropy(copies, mask, used)
            if not loss.requires_grad:  # no layer used the mask
                return torch.zeros_like(mask)
            optimizer.zero_grad()
            loss.backward()
            assert mask.grad is not None
            if used is None:
                used = mask.grad != 0
            optimizer.step()
        assert used is not None
        return mask.detach().sigmoid() * used

    def first_mask(self, copies: Copies, dtype: torch.dtype) -> Tensor:
        """Normal numbers of the spread that PyG takes, which depends on the size of the whole graph."""
        spread = math.sqrt(2.0) * math.sqrt(2.0 / (2 * copies.subject.graph.num_nodes))
        targets = copies.targets[copies.entry_owner]
        drawn = hashed_uniform(self.seed, targets, copies.entry_edge, exact_dtype(targets.device))
        edge = max(1e-12, torch.finfo(drawn.dtype).eps)  # or numbers at the ends would be infinite
        normal = torch.erfinv((2 * drawn - 1).clamp(-1 + edge, 1 - edge)) * math.sqrt(2.0)
        return (normal * spread).to(dtype)

    def _size_and_entropy(self, copies: Copies, mask: Tensor, used: Tensor) -> Tensor:
        """The two regularisers, of the entries that are used; those of each target by themselves, added up."""
        gate, owner = mask[used].sigmoid(), copies.entry_owner[used]
        entropy = -gate * torch.log(gate + EPSILON) - (1 - gate) * torch.log(1 - gate + EPSILON)
        count = owner.bincount(minlength=copies.targets.numel())[owner]
        return self.edge_size * gate.sum() + self.edge_ent * (entropy / count).sum()
