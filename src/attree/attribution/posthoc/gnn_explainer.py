"""GNNExplainer: a small edge mask that keeps a prediction, learned for each target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from attree.attribution.baselines import hashed_uniform
from attree.attribution.posthoc.masks import MaskedRun, MaskMethod
from attree.attribution.posthoc.target_copies import TargetCopies
from attree.errors import UnsupportedModelError, expect_bool, expect_int, expect_number, expect_seed
from attree.io.terminal import counted
from attree.tensors.precision import exact_dtype

EPSILON = 1e-15
FEATURE_WEIGHTS = (1.0, 0.1)
FEATURE_SPREAD = 0.1


class GNNExplainer(MaskMethod):
    r"""GNNExplainer (Ying et al., 2019), with a mask of edges.

    .. math:: \min_M -\log p_c(v \mid \sigma(M)) + \lambda_1 \sum_e \sigma(M_e) + \lambda_2 \overline{H(\sigma(M))}

    Here :math:`c` is the class predicted for target :math:`v`, :math:`\sigma(M_e)` multiplies the message of edge
    :math:`e` in every layer and head, and :math:`H` is the entropy of a mask entry. The sum and the mean run over the
    edges that the output depends on; in a heterogeneous graph there is one mean per edge type. An edge scores
    :math:`\sigma(M_e)`.

    The masks of all targets of a batch are learned at once, each on its own copy of the neighbourhood. Adam treats
    every entry separately, so the result is that of PyG's `GNNExplainer`, which explains one target after the other on
    the whole graph, except for the initial masks. These depend only on the seed, the target and the edge.

    Args:
        epochs: Steps of the optimiser.
        lr: Learning rate.
        edge_size: :math:`\lambda_1`.
        edge_ent: :math:`\lambda_2`.
        feature_mask: Also learn a mask of each node's features, as PyG does with `node_mask_type="attributes"`. It
            changes the learned edge mask, but is not part of the result.
        seed: Seed of the initial masks.
        self_loops: Also mask and score the self-loops that layers add themselves.
    """

    name = "gnn_explainer"
    label = "GNNExplainer"

    def __init__(
        self,
        epochs: int = 100,
        lr: float = 0.01,
        edge_size: float = 0.005,
        edge_ent: float = 1.0,
        feature_mask: bool = False,
        seed: int = 0,
        self_loops: bool = False,
    ) -> None:
        super().__init__(self_loops)
        expect_int(epochs, "epochs", 1)
        expect_number(lr, "lr", above=0)
        self.epochs = epochs
        self.lr = lr
        self.edge_size = expect_number(edge_size, "edge_size", at_least=0)
        self.edge_ent = expect_number(edge_ent, "edge_ent", at_least=0)
        self.feature_mask = expect_bool(feature_mask, "feature_mask")
        self.seed = expect_seed(seed)

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        return cls(seed=seed)

    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        """Learn an edge mask for each target, and return the masks' sigmoid; edges without a gradient score 0."""
        run.check(copies)
        mask = self.first_mask(copies, run.unmasked(copies).dtype).requires_grad_(True)
        features = self.first_feature_mask(copies).requires_grad_(True) if self.feature_mask else None
        optimizer = torch.optim.Adam([mask] if features is None else [mask, features], lr=self.lr)
        used = used_features = None
        # With few targets there is only one batch, so progress is shown by epochs.
        for _ in counted(range(self.epochs), f"{self.label}, epochs"):
            x = None if features is None else copies.call.x * features.sigmoid()
            logits = run.logits(copies, mask.sigmoid(), x)
            loss = run.loss(copies, logits).sum()
            if used is not None:
                loss = loss + _size_and_entropy(mask[used], copies.entry_group[used], self.edge_size, self.edge_ent)
            if features is not None and used_features is not None:
                owner = copies.node_owner.unsqueeze(1).expand_as(features)[used_features]
                loss = loss + _size_and_entropy(features[used_features], owner, *FEATURE_WEIGHTS, mean_size=True)
            if not loss.requires_grad:  # no layer used the mask
                return torch.zeros_like(mask)
            optimizer.zero_grad()
            loss.backward()
            if used is None:
                used = torch.zeros_like(mask, dtype=torch.bool) if mask.grad is None else mask.grad != 0
                if features is not None and features.grad is not None:
                    used_features = features.grad != 0
            optimizer.step()
        assert used is not None
        return mask.detach().sigmoid() * used

    def first_mask(self, copies: TargetCopies, dtype: torch.dtype) -> Tensor:
        """Return normal numbers with PyG's standard deviation for the size of the graph, or of its largest type."""
        graph, types = copies.subject.graph, copies.subject.graph.types
        if graph.origin is not None:
            largest = graph.origin.num_nodes
        else:
            largest = graph.num_nodes if types is None else max(len(types.nodes(kind)) for kind in types.node_types)
        spread = math.sqrt(2.0) * math.sqrt(2.0 / (2 * largest))
        targets = graph.whole_nodes(copies.targets[copies.entry_owner])
        return self._normal(targets, graph.whole_edges(copies.entry_edge), spread).to(dtype)

    def first_feature_mask(self, copies: TargetCopies) -> Tensor:
        """Return normal numbers with PyG's standard deviation, one for each feature of each node."""
        x = copies.call.x
        if x.dim() != 2 or not x.is_floating_point():
            raise UnsupportedModelError(
                f"Expected node features [nodes, features] of floats, which `feature_mask` masks, but got "
                f"{tuple(x.shape)} of {x.dtype}."
            )
        column = torch.arange(x.shape[1], device=x.device)
        # Features are numbered after all edges, so that no two draws of a target are the same. The last edge is the
        # self-loop of the last node, also in the graph that this one was cut from.
        graph, num_edges = copies.subject.graph, copies.subject.graph.num_edges
        if graph.origin is not None:
            num_edges = int(graph.origin.edges[-1] - graph.origin.nodes[-1]) + graph.origin.num_nodes
        place = num_edges + graph.whole_nodes(copies.part.node).unsqueeze(1) * x.shape[1] + column
        targets = graph.whole_nodes(copies.targets[copies.node_owner]).unsqueeze(1).expand_as(place)
        return self._normal(targets, place, FEATURE_SPREAD).to(x.dtype)

    def _normal(self, targets: Tensor, places: Tensor, spread: float) -> Tensor:
        """Return normal numbers that depend only on the seed, the target and the place."""
        uniform = hashed_uniform(self.seed, targets, places, exact_dtype(targets.device))
        edge = max(1e-12, torch.finfo(uniform.dtype).eps)  # avoids infinite numbers at the ends
        return torch.erfinv((2 * uniform - 1).clamp(-1 + edge, 1 - edge)) * (math.sqrt(2.0) * spread)


def _size_and_entropy(mask: Tensor, owner: Tensor, size: float, entropy: float, mean_size: bool = False) -> Tensor:
    """Return the two regularisers of a mask, summed over targets (and edge types, if there are several).

    Args:
        mask: The entries, before the sigmoid.
        owner: The target of each entry, or its target and edge type as one number.
        size: Weight of the sum of a target's entries, or of their mean.
        entropy: Weight of the mean of their entropies.
        mean_size: Use the mean.
    """
    gate = mask.sigmoid()
    spread = -gate * torch.log(gate + EPSILON) - (1 - gate) * torch.log(1 - gate + EPSILON)
    count = owner.bincount()[owner]
    return size * (gate / count if mean_size else gate).sum() + entropy * (spread / count).sum()
