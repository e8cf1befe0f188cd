"""Run a model with its messages multiplied by an edge mask, and the base class of methods that score edges by masks.

PyG's explainers multiply the message of every edge, in every layer and head, by the edge's entry of a mask. Self-loops
that a layer adds itself are not masked. PyG sets flags and masks on the layers; here, temporary hooks do the same, and
self-loops can be masked too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.capture import Attention
from attree.attention.graph import edge_ids, plain
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.marked_tensors import tensors_in
from attree.attribution.method import AttributionMethod, as_subject, check_runs_on_data
from attree.attribution.posthoc.frozen_model import Predictions, frozen_subject
from attree.attribution.posthoc.target_copies import TargetCopies, target_copies
from attree.attribution.result import Attribution
from attree.errors import UnsupportedModelError, expect_bool
from attree.io.terminal import progress_bar
from attree.subject import Subject
from attree.subject.model_call import NotLocalError, check_local
from attree.subject.target_roots import Targets
from attree.tensors.arrays import pointers
from attree.tensors.precision import difference

TRIED = 8
"""Number of copies that are checked among decoys if all copies are compared anyway."""


class MaskedRun(Watcher):
    """Runs a subject's model on copies with masked messages; created by `masked_run`.

    Args:
        subject: The subject to explain.
    """

    def __init__(self, subject: Subject) -> None:
        self.model = subject.model
        self.graph_level = subject.level == "graph"
        self.predictions = Predictions(subject)
        self._copies: TargetCopies | None = None
        self._mask: Tensor | None = None

    def logits(self, copies: TargetCopies, mask: Tensor, x: Tensor | None = None) -> Tensor:
        """Return the logits of the targets, [B, classes].

        Args:
            copies: The copies.
            mask: One factor per entry of the copies' masks: per edge, and per self-loop if those are masked.
            x: Other features for the nodes of the copies, if any.
        """
        self._copies, self._mask = copies, mask  # kept, because a checkpointed layer runs again in the backward pass
        call = copies.call if x is None else copies.call.with_features(x)
        return self.predictions.read(copies.rows(self.one_pass(call.run)), copies.targets)

    def explained(self, copies: TargetCopies, logits: Tensor) -> Tensor:
        """Return the explained output of each target, [B], from their logits."""
        return self.predictions.explained(logits, copies.targets)

    def loss(self, copies: TargetCopies, logits: Tensor) -> Tensor:
        """Return the loss of each target's logits against its prediction, [B]."""
        return self.predictions.loss(logits, copies.targets)

    @torch.no_grad()
    def check(self, copies: TargetCopies, logits: Tensor | None = None) -> None:
        """Raise unless the model computes the same outputs for the targets from copies as from the whole graph.

        Args:
            copies: The copies.
            logits: The targets' logits with nothing masked, if known. Then these are compared, and only the first
                copies are checked among decoys.

        Raises:
            NotLocalError: The outputs differ.
        """
        if copies.is_whole:
            return
        subject, part, targets = copies.subject, copies.part, copies.targets
        if logits is not None:
            expected = self.predictions.of(targets)
            if difference(logits, expected, logits.dtype) is not None:
                raise NotLocalError(subject.call.name, "its outputs differ on copies")
            tried = torch.arange(min(TRIED, part.count), device=targets.device)
            part, targets = part.take(tried), targets[tried]
        mask, self._mask = self._mask, None
        try:
            check_local(subject.call, part, self.predictions.output[subject.rows(targets)])
        finally:
            self._mask = mask

    def unmasked(self, copies: TargetCopies) -> Tensor:
        """Return a mask of ones."""
        return torch.ones(copies.entry_owner.numel(), dtype=self.predictions.logits.dtype, device=copies.targets.device)

    @property
    def is_masking(self) -> bool:
        """Whether the current pass is masked; passes that check copies are not."""
        return self._mask is not None

    def is_readout(self, call: LayerCall) -> bool:
        """Whether a call pools nodes, so that it has no edges of the data."""
        assert self._copies is not None
        return self._copies.subject.graph.types is None and call.pools(self._copies.call.num_nodes)

    def messages(self, call: LayerCall, messages: Tensor) -> Tensor | None:
        """Multiply messages by the mask, if there is one."""
        # As in PyG's explainers, layers with `explain` set to False are not masked.
        if not self.is_masking or call.conv.explain is False or self.is_readout(call):
            return None
        size = [1] * messages.dim()
        size[call.conv.node_dim] = -1
        return messages * self._aligned(call).to(messages.dtype).view(size)

    def _aligned(self, call: LayerCall) -> Tensor:
        """Return the mask on a layer's own edges, which may lack or add self-loops."""
        copies, mask, edges = self._copies, self._mask, call.edges
        assert copies is not None
        assert mask is not None
        if copies.subject.graph.types is not None:
            return self._aligned_types(call, copies, mask)
        entries = copies.entries_of_messages(call.number, edges)
        if entries is not None:
            return (
                mask[entries.clamp(min=0)].masked_fill(entries < 0, 1.0)
                if mask.numel()
                else mask.new_ones(edges[0].shape)
            )
        if not copies.masks_loops and torch.equal(edges, copies.edge_index):
            return mask
        proper = edges[0] != edges[1]
        if not torch.equal(edges[:, proper], copies.edge_index[:, copies.proper]):
            raise _other_edges(call.conv)
        of_edges, of_loops = mask.split([copies.num_edges, mask.numel() - copies.num_edges])
        aligned = of_loops[edges[0]] if copies.masks_loops else mask.new_ones(edges.shape[1])
        return aligned.masked_scatter(proper, of_edges[copies.proper])

    def _aligned_types(self, call: LayerCall, copies: TargetCopies, mask: Tensor) -> Tensor:
        """Do the same for a heterogeneous graph, where a layer has the edges of one type, or of several in one list."""
        call_edges, edges = plain(call.given_edges), call.edges
        ids = edge_ids(copies.graph, call_edges, edges)
        if ids is None:
            raise _other_edges(call.conv)
        if copies.masks_loops:
            return mask[ids]
        aligned = torch.cat([mask, mask.new_ones(copies.graph.num_nodes)])[ids]
        if isinstance(call_edges, Tensor) and not torch.equal(edges, call_edges):
            # The layer replaced given self-loops by its own.
            aligned = torch.where(edges[0] == edges[1], 1.0, aligned)
        return aligned


def _other_edges(conv: MessagePassing) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Expected {type(conv).__name__} to run on the edges it was called with, in their order, but it ran on others: "
        "a mask of edges has no meaning there."
    )


@contextmanager
def masked_run(subject: Subject) -> Iterator[MaskedRun]:
    """Context in which the returned run masks messages in the subject's model, which must be frozen."""
    run = MaskedRun(subject)
    with instrument(subject.model, run):
        yield run


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
        check_runs_on_data(subject, self)
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
