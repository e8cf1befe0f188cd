"""Run a model with its messages multiplied by an edge mask, as PyG's explainers do, without changing its layers.

PyG's explainers multiply the message of every edge, in every layer and head, by the edge's entry of a mask. Self-loops
that a layer adds itself are not masked. PyG sets flags and masks on the layers; here, temporary hooks do the same, and
self-loops can be masked too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attention.conv_edges import edge_ids
from attree.attention.graph import plain
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.locality import difference
from attree.attribution.posthoc.frozen_model import Predictions
from attree.attribution.posthoc.target_copies import TargetCopies
from attree.errors import UnsupportedModelError
from attree.subject import Subject
from attree.subject.part_check import NotLocalError, check_local

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
        return self.predictions.read(copies.rows(call.run()), copies.targets)

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

    def messages(self, call: LayerCall, messages: Tensor) -> Tensor | None:
        """Multiply messages by the mask, if there is one."""
        # As in PyG's explainers, layers with `explain` set to False are not masked.
        if not self.is_masking or call.conv.explain is False:
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
