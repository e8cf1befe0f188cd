"""What a model does with the edges that a method scores highest: without them, and with them alone."""

from __future__ import annotations

import torch
from torch import Tensor

from attree.attribution.pairs import Pairs
from attree.faithfulness import Reducer, ReductionProtocol
from attree.faithfulness.choose import SET_ENGINES, RecordedPass
from attree.metrics.functional.sets import curve_area, fidelity, ranked, sparsity, unfaithfulness
from attree.subject import Subject
from attree.tensors.limits import exact_dtype
from attree.tensors.ragged import Rows, expand, pointers, row_of

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75)
"""Shares of a target's edges that are taken out, or left alone, beside none and all."""

CHOSEN = 0.2
"""The share of edges that fidelity and unfaithfulness take for a method's explanation."""


class SetEvaluator:
    """Takes out the edges that methods score highest, all at once, and measures what predictions do.

    A target's edges are those that carry a flow to it, without self-loops. PyG's masks leave out the self-loops that a
    convolution adds, so under `weight` the numbers equal those of PyG's functions on the same masks. The sets of all
    targets run together, as copies of the targets' subgraphs.

    Args:
        subject: What is explained, with its current weights.
        pairs: The pairs of the targets.
    """

    def __init__(self, subject: Subject, pairs: Pairs) -> None:
        self._subject, self._pairs = subject, pairs
        self._recorded: RecordedPass = Reducer(subject, engines=SET_ENGINES).record()
        self._kept = (pairs.flow & (pairs.edges < pairs.graph.num_proper_edges)).nonzero().view(-1)
        self._owner = pairs.owner[self._kept]
        self._sizes = self._owner.bincount(minlength=pairs.targets.numel())
        self._rows = subject.rows(pairs.targets)
        output = self._recorded.attention.output.to(exact_dtype(subject.device))
        self._measured = subject.head.measured(output)
        self._usual = self._predictions(output[self._rows], torch.arange(len(self._rows), device=output.device))
        self._is_number = subject.head.mode == "regression"

    def measure(self, scores: Tensor, protocol: ReductionProtocol) -> dict[str, Tensor]:
        """A method's metrics under a protocol, one value per target, by name.

        `fidelity_plus` and `fidelity_minus` (of predicted numbers: how far they move, in standard deviations),
        `unfaithfulness`, `deletion_area` and `insertion_area`. Targets without an edge to take out are NaN.
        """
        taken = torch.tensor([*SHARES, 1.0])
        without = self._after(scores, taken, protocol, keep=False)
        alone = self._after(scores, taken[:-1], protocol, keep=True)
        at = SHARES.index(CHOSEN)
        found: dict[str, Tensor] = {}
        usual = self._usual.unsqueeze(1)
        if self._is_number:
            spread = self._usual.std().clamp(min=torch.finfo(usual.dtype).tiny)
            found["fidelity_plus"] = (without[:, at] - self._usual).abs().squeeze(-1) / spread
            found["fidelity_minus"] = (alone[:, at] - self._usual).abs().squeeze(-1) / spread
            deleted, inserted = ((curve - usual).abs().squeeze(-1) / spread for curve in (without, alone))
            start, end = torch.zeros_like(deleted[:, :1]), deleted[:, -1:]
        else:
            predicted = self._usual.argmax(dim=-1)
            found["fidelity_plus"] = fidelity(predicted, without[:, at].argmax(dim=-1))
            found["fidelity_minus"] = fidelity(predicted, alone[:, at].argmax(dim=-1))
            found["unfaithfulness"] = unfaithfulness(self._usual, alone[:, at])
            place = predicted.view(-1, 1, 1)
            deleted, inserted = (
                curve.gather(2, place.expand(-1, curve.shape[1], 1)).squeeze(-1) for curve in (without, alone)
            )
            start, end = self._usual.gather(1, predicted.unsqueeze(1)), deleted[:, -1:]
        shares = torch.tensor([0.0, *SHARES, 1.0])
        found["deletion_area"] = curve_area(shares, torch.cat([start, deleted], dim=1))
        found["insertion_area"] = curve_area(shares, torch.cat([end, inserted, start], dim=1))
        nothing = self._sizes == 0
        return {name: values.masked_fill(nothing, torch.nan).cpu() for name, values in found.items()}

    def sparsity(self, scores: Tensor) -> Tensor:
        """The share of a target's edges that a method can do without, per target."""
        values = sparsity(scores[self._kept], self._owner, self._pairs.targets.numel())
        return values.masked_fill(self._sizes == 0, torch.nan).cpu()

    def _after(self, scores: Tensor, shares: Tensor, protocol: ReductionProtocol, keep: bool) -> Tensor:
        """Predictions when the highest-scored share of edges is reduced, or all others are, [T, shares, classes]."""
        order, _ = ranked(scores[self._kept], self._owner)
        edges, begin = self._pairs.edges[self._kept[order]], pointers(self._sizes)[:-1]
        counts = (self._sizes.unsqueeze(1) * shares.to(self._sizes.device).unsqueeze(0)).round().long()
        counts = torch.maximum(counts, self._sizes.clamp(max=1).unsqueeze(1))  # one edge at least
        first = begin.unsqueeze(1) + (counts if keep else torch.zeros_like(counts))
        taken = (self._sizes.unsqueeze(1) - counts if keep else counts).reshape(-1)
        ptr = pointers(taken)
        which, place = expand(ptr, torch.arange(taken.numel(), device=taken.device))
        sets = Rows(ptr, edges[first.reshape(-1)[which] + place - ptr[which]])
        owner = row_of(torch.full_like(self._sizes, shares.numel()))
        output = self._recorded.reduce_sets(self._pairs, owner, sets, protocol)
        return self._predictions(output, owner).view(self._sizes.numel(), shares.numel(), -1)

    def _predictions(self, output: Tensor, owner: Tensor) -> Tensor:
        """Class probabilities (or numbers) from outputs of targets, one row each."""
        head = self._subject.head
        measured = None if self._measured is None else self._measured[self._rows[owner]]
        logits = head.logits(output.to(exact_dtype(output.device)), measured)
        return logits if head.mode == "regression" else logits.softmax(dim=-1)
