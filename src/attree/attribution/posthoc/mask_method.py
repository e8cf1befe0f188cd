"""Base class of the methods that score edges by masking their messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.capture import Attention
from attree.attention.provenance import tensors_in
from attree.attribution.method import AttributionMethod, as_subject
from attree.attribution.posthoc.frozen_model import frozen_subject
from attree.attribution.posthoc.masked_run import MaskedRun, masked_run
from attree.attribution.posthoc.target_copies import TargetCopies, target_copies
from attree.attribution.result import Attribution
from attree.errors import expect_bool
from attree.io.terminal import progress_bar
from attree.subject import Subject
from attree.subject.part_check import NotLocalError
from attree.subject.roots import Targets
from attree.tensors.ragged import pointers

COPIES_MEMORY = 128 * 2**20
"""Bytes of working memory for one batch of copies."""


class MaskMethod(AttributionMethod):
    """Base class of methods that score the edges that a target depends on, many targets per pass of the model.

    A subclass scores the edges of a batch of copies (`score`). Each target is explained on a copy of its neighbourhood
    if that gives the same outputs as the whole graph, else on the whole graph. The explained output is the logit of the
    class that the model predicts, or its predicted number.

    Args:
        self_loops: Also mask and score the self-loops that layers add themselves. PyG's explainers cannot, so by
            default they score 0.
    """

    def __init__(self, self_loops: bool = False) -> None:
        self.self_loops = expect_bool(self_loops, "self_loops")

    @abstractmethod
    def score(self, run: MaskedRun, copies: TargetCopies) -> Tensor:
        """Return the score of each entry of the copies' masks.

        A subclass must call `MaskedRun.check`, which raises for models that cannot be run on copies.
        """

    def open_run(self, subject: Subject) -> AbstractContextManager[MaskedRun]:
        """Open the context in which the model runs on copies; default: with its messages masked."""
        return masked_run(subject)

    def attribute(self, subject: Subject | Attention, targets: Targets = "all") -> Attribution:
        """Score, for every target, all edges that it depends on.

        Args:
            subject: The subject to explain, with its model.
            targets: Nodes, links, or graphs.
        """
        subject = as_subject(subject)
        ids = subject.targets(targets)
        with frozen_subject(subject) as frozen, self.open_run(frozen) as run:
            try:
                parts = self._collect(frozen, ids, run, local_copies)
            except NotLocalError:
                parts = self._collect(frozen, ids, run, whole_copies)
        none = ids[:0]
        sizes = torch.cat([none, *(part[0] for part in parts)])
        edges = torch.cat([none, *(part[1] for part in parts)])
        scores = torch.cat([part[2] for part in parts]) if parts else torch.zeros(0, device=ids.device)
        return Attribution(self.name, subject.graph, ids, pointers(sizes), edges, scores)

    def _collect(
        self,
        subject: Subject,
        targets: Tensor,
        run: MaskedRun,
        batches: Callable[[Subject, Tensor], Iterator[TargetCopies]],
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return, for each batch, the number of edges of each target, the edges, and their scores."""
        parts = []
        with progress_bar(self.label, targets.numel()) as advance:
            for copies in batches(subject, targets):
                copies = replace(copies, masks_loops=self.self_loops)
                parts.append(_result_rows(copies, self.score(run, copies).detach()))
                advance(copies.targets.numel())
        return parts


def local_copies(subject: Subject, targets: Tensor) -> Iterator[TargetCopies]:
    """Yield copies of the targets' neighbourhoods, as many at once as fit into the working memory."""
    return target_copies(subject, targets, bytes_per_edge(subject), COPIES_MEMORY)


def whole_copies(subject: Subject, targets: Tensor) -> Iterator[TargetCopies]:
    """Yield the whole graph, once for each target."""
    return (TargetCopies.whole(subject, target) for target in targets.split(1))


def bytes_per_edge(subject: Subject) -> float:
    """Return a rough estimate of the bytes per edge of a forward and backward pass, with the features of its source."""
    convs = [module for module in subject.model.modules() if isinstance(module, MessagePassing)]
    widths = (int(getattr(conv, "heads", 1)) * int(getattr(conv, "out_channels", 1)) for conv in convs)
    width = max(widths, default=1)
    feature_tensors = [rows for rows in tensors_in(subject.call.features) if rows.dim()] or [subject.output]
    itemsize = max(rows.element_size() if rows.is_floating_point() else 4 for rows in feature_tensors)
    features = max(rows[:1].numel() * rows.element_size() for rows in feature_tensors)
    return float(features + 16 * width * itemsize + 128)


def _result_rows(copies: TargetCopies, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores of a batch as rows of a result; several self-loops of a node are merged into one."""
    graph, count = copies.subject.graph, copies.targets.numel()
    owner, edges = copies.entry_owner, copies.entry_edge
    if graph.types is not None:  # entries are ordered by type, rows by target
        order = owner.argsort(stable=True)
        owner, edges, scores = owner[order], edges[order], scores[order]
    if copies.is_whole or copies.masks_loops:
        # Most edges of the whole graph do not affect a target; nor do the self-loops of a part's outermost nodes.
        may_matter = (scores != 0) | (edges < (0 if copies.is_whole else graph.num_proper_edges))
        owner, edges, scores = owner[may_matter], edges[may_matter], scores[may_matter]
    if bool((edges >= graph.num_proper_edges).any()):
        key, place = (owner * graph.num_edges + edges).unique(return_inverse=True)
        scores = scores.new_zeros(key.numel()).index_add_(0, place, scores)
        owner, edges = key // graph.num_edges, key % graph.num_edges
    return owner.bincount(minlength=count), edges, scores
