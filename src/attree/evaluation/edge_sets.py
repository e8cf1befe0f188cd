"""Metrics of sets of edges: how well scores find the true edges, and how much the highest-scored edges matter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attree.attribution import AttributionMethod, Pairs, subject_pairs
from attree.data import GroundTruth
from attree.data.checks import check_truth
from attree.errors import expect
from attree.evaluation.columns import PairColumns
from attree.evaluation.config import Shard
from attree.evaluation.metric_names import JACCARD, PRECISION
from attree.faithfulness import Effects, Reducer, ReductionProtocol, score_pairs
from attree.faithfulness.engine_choice import SET_ENGINES
from attree.metrics import TruthAUROC
from attree.metrics.functional.sets import (
    curve_area,
    fidelity,
    jaccard,
    precision_at_k,
    ranked,
    sparsity,
    unfaithfulness,
)
from attree.subject import Subject
from attree.tensors.arrays import Rows, expand, pointers, row_of
from attree.tensors.precision import exact_dtype

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75)
"""Shares of a target's edges that are removed, or kept alone, besides 0 and 1."""

CHOSEN = 0.2
"""The share of edges that fidelity and unfaithfulness take as a method's explanation."""


class TruthEvaluator:
    """AUROC of scores against ground truth, pooled over the pairs of all targets with ground truth.

    Args:
        subject: The model call to explain; its targets are nodes or graphs.
        truth: The true edges of these.
        shard: This process's share of the targets.
    """

    def __init__(self, subject: Subject, truth: GroundTruth, shard: Shard) -> None:
        expect(subject.level != "edge", "truth", "None if links are explained", "ground truth")
        check_truth(truth, subject.graph.original_edge_index, subject.graph.num_nodes)
        positions = shard.of(torch.arange(truth.num_targets, device=subject.device))
        self._pairs = subject_pairs(subject, truth.targets.to(subject.device)[positions])
        source, destination = subject.graph.edge_index[:, self._pairs.edges]
        self._labels = truth.labels(positions[self._pairs.owner], source, destination)
        self._metric = TruthAUROC(sync_on_compute=shard.world_size > 1).to(subject.device)
        self._positions = positions
        self._is_shared = shard.world_size > 1
        self._aurocs: dict[AttributionMethod, Tensor] = {}
        self._scores: dict[AttributionMethod, Tensor] = {}

    def auroc(self, subject: Subject, method: AttributionMethod, effects: Effects | None = None) -> Tensor:
        """Return a method's AUROC over the pairs of all processes; computed again only if the scores changed."""
        if method.is_random and method in self._aurocs:
            return self._aurocs[method]
        last = self._scores.get(method)
        scores = self._scores[method] = score_pairs(method, subject, self._pairs, effects)
        # Processes compute it together, and must not decide by their own scores alone.
        is_known = not self._is_shared and last is not None and last.equal(scores)
        if not is_known:
            self._metric.update(scores, self._labels)
            self._aurocs[method] = self._metric.compute()
            self._metric.reset()
        return self._aurocs[method]

    def by_target(self, method: AttributionMethod) -> dict[str, Tensor]:
        """Return precision and Jaccard index of a method's last scores, one value per target, by name."""
        arguments = self._scores[method], self._labels, self._pairs.owner, self._pairs.targets.numel()
        return {PRECISION: precision_at_k(*arguments).cpu(), JACCARD: jaccard(*arguments).cpu()}

    def columns(self, methods: Mapping[str, AttributionMethod]) -> PairColumns:
        """Return the pairs of this process with the last scores of some methods, by name."""
        owner = self._positions[self._pairs.owner]
        return PairColumns(owner, {name: self._scores[method] for name, method in methods.items()}, {}, self._labels)


class SetEvaluator:
    """Reduces the highest-scored edges of each target together, and measures how predictions change.

    The edges of a target are those that carry a flow to it, without self-loops. PyG's masks leave out the self-loops
    that a convolution adds, so under `weight` the numbers equal those of PyG's functions on the same masks. The sets of
    all targets run in one batch, as copies of the targets' subgraphs.

    Args:
        subject: The model call to explain, with its current weights.
        pairs: The pairs of the targets.
    """

    def __init__(self, subject: Subject, pairs: Pairs) -> None:
        self._subject, self._pairs = subject, pairs
        self._effects: Effects = Reducer(subject, engines=SET_ENGINES).record()
        self._kept = (pairs.flow & (pairs.edges < pairs.graph.num_proper_edges)).nonzero().view(-1)
        self._owner = pairs.owner[self._kept]
        self._sizes = self._owner.bincount(minlength=pairs.targets.numel())
        self._rows = subject.rows(pairs.targets)
        output = self._effects.attention.output.to(exact_dtype(subject.device))
        self._measured = subject.head.measured(output)
        self._usual = self._predictions(output[self._rows], torch.arange(len(self._rows), device=output.device))
        self._is_regression = subject.head.mode == "regression"

    def measure(self, scores: Tensor, protocol: ReductionProtocol) -> dict[str, Tensor]:
        """Return a method's metrics under a protocol by name, one value per target; NaN for targets without edges.

        The metrics are `fidelity_plus`, `fidelity_minus`, `unfaithfulness` (not for regression), `deletion_area` and
        `insertion_area`. For regression, changes of the predicted number are measured in standard deviations.
        """
        shares = torch.tensor([*SHARES, 1.0])
        without = self._after(scores, shares, protocol, keep=False)
        alone = self._after(scores, shares[:-1], protocol, keep=True)
        at = SHARES.index(CHOSEN)
        values_by_name: dict[str, Tensor] = {}
        usual = self._usual.unsqueeze(1)
        if self._is_regression:
            spread = self._usual.std().clamp(min=torch.finfo(usual.dtype).tiny)
            values_by_name["fidelity_plus"] = (without[:, at] - self._usual).abs().squeeze(-1) / spread
            values_by_name["fidelity_minus"] = (alone[:, at] - self._usual).abs().squeeze(-1) / spread
            deleted, inserted = ((curve - usual).abs().squeeze(-1) / spread for curve in (without, alone))
            start, end = torch.zeros_like(deleted[:, :1]), deleted[:, -1:]
        else:
            predicted = self._usual.argmax(dim=-1)
            values_by_name["fidelity_plus"] = fidelity(predicted, without[:, at].argmax(dim=-1))
            values_by_name["fidelity_minus"] = fidelity(predicted, alone[:, at].argmax(dim=-1))
            values_by_name["unfaithfulness"] = unfaithfulness(self._usual, alone[:, at])
            place = predicted.view(-1, 1, 1)
            deleted, inserted = (
                curve.gather(2, place.expand(-1, curve.shape[1], 1)).squeeze(-1) for curve in (without, alone)
            )
            start, end = self._usual.gather(1, predicted.unsqueeze(1)), deleted[:, -1:]
        ends = torch.tensor([0.0, *SHARES, 1.0])
        values_by_name["deletion_area"] = curve_area(ends, torch.cat([start, deleted], dim=1))
        values_by_name["insertion_area"] = curve_area(ends, torch.cat([end, inserted, start], dim=1))
        nothing = self._sizes == 0
        return {name: values.masked_fill(nothing, torch.nan).cpu() for name, values in values_by_name.items()}

    def sparsity(self, scores: Tensor) -> Tensor:
        """Return the share of a target's edges that hold little of a method's score, per target; NaN without edges."""
        values = sparsity(scores[self._kept], self._owner, self._pairs.targets.numel())
        return values.masked_fill(self._sizes == 0, torch.nan).cpu()

    def _after(self, scores: Tensor, shares: Tensor, protocol: ReductionProtocol, keep: bool) -> Tensor:
        """Return predictions after the highest-scored share of edges is reduced, or all other edges if `keep`.

        The result has shape [targets, shares, classes].
        """
        order, _ = ranked(scores[self._kept], self._owner)
        edges, begin = self._pairs.edges[self._kept[order]], pointers(self._sizes)[:-1]
        counts = (self._sizes.unsqueeze(1) * shares.to(self._sizes.device).unsqueeze(0)).round().long()
        counts = torch.maximum(counts, self._sizes.clamp(max=1).unsqueeze(1))  # at least one edge
        first = begin.unsqueeze(1) + (counts if keep else torch.zeros_like(counts))
        set_sizes = (self._sizes.unsqueeze(1) - counts if keep else counts).reshape(-1)
        ptr = pointers(set_sizes)
        which, place = expand(ptr, torch.arange(set_sizes.numel(), device=set_sizes.device))
        sets = Rows(ptr, edges[first.reshape(-1)[which] + place - ptr[which]])
        owner = row_of(torch.full_like(self._sizes, shares.numel()))
        output = self._effects.reduce_sets(self._pairs, owner, sets, protocol)
        return self._predictions(output, owner).view(self._sizes.numel(), shares.numel(), -1)

    def _predictions(self, output: Tensor, owner: Tensor) -> Tensor:
        """Return class probabilities (predicted numbers for regression) from outputs of targets, one row each."""
        head = self._subject.head
        measured = None if self._measured is None else self._measured[self._rows[owner]]
        logits = head.logits(output.to(exact_dtype(output.device)), measured)
        return logits if head.mode == "regression" else logits.softmax(dim=-1)
