"""Run a model with its messages multiplied by an edge mask, as PyG's explainers do, without touching its layers.

PyG's explainers multiply the message of every edge, in every layer and head, by the edge's entry of a mask; self-loops
that a layer adds itself are not masked. They set flags and masks on the layers for it. Here the same is done by hooks
that are gone afterwards, and self-loops can be masked too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from attree.attribution.posthoc.class_scores import class_scores, subject_scores
from attree.attribution.posthoc.copies import Copies
from attree.errors import UnsupportedModelError
from attree.subject import Subject


class NotLocalError(Exception):
    """A model's outputs on copies of neighbourhoods are not those on the whole graph."""


class MaskedRun:
    """Runs a subject's model on copies, with masked messages; made by `masked_run`.

    Args:
        subject: The subject.
    """

    def __init__(self, subject: Subject) -> None:
        self.model = subject.model
        self.graph_level = subject.batch is not None
        self._expected = subject_scores(subject)
        self._classes = self._expected.argmax(dim=1)
        self._copies: Copies | None = None
        self._mask: Tensor | None = None
        self._edges: dict[MessagePassing, Tensor] = {}

    def scores(self, copies: Copies, mask: Tensor) -> Tensor:
        """Class scores of the targets, [B, classes].

        Args:
            copies: The batch.
            mask: One factor per entry of the batch's masks: per edge, and per self-loop if those are masked.
        """
        self._copies, self._mask = copies, mask
        return class_scores(copies.inputs.call(self.model))[copies.rows]

    def classes(self, copies: Copies) -> Tensor:
        """The classes that the model predicts for the targets, [B]."""
        return self._classes[copies.targets]

    def check(self, copies: Copies, scores: Tensor) -> None:
        """Raise unless the targets' scores, with nothing masked, are those on the whole graph."""
        expected = self._expected[copies.targets]
        if expected.numel() == 0:
            return
        difference, scale = float((scores.detach() - expected).abs().max()), max(float(expected.abs().max()), 1.0)
        if not difference <= torch.finfo(scores.dtype).eps ** 0.5 * scale:
            raise NotLocalError

    @torch.no_grad()
    def check_unmasked(self, copies: Copies) -> None:
        """As `check`, by a pass of its own."""
        self.check(copies, self.scores(copies, self.unmasked(copies)))

    def unmasked(self, copies: Copies) -> Tensor:
        """A mask that leaves every message as it is."""
        return torch.ones(copies.entry_owner.numel(), dtype=self._expected.dtype, device=copies.edge.device)

    def see_edges(self, conv: MessagePassing, inputs: Any) -> None:
        """Hook: note the edges that messages are about to be sent along."""
        self._edges[conv] = inputs[0]

    def scale(self, conv: MessagePassing, inputs: Any, messages: Tensor) -> Tensor:
        """Hook: multiply messages by the mask."""
        mask = self._aligned(conv, self._edges[conv])
        size = [1] * messages.dim()
        size[conv.node_dim] = -1
        return messages * mask.to(messages.dtype).view(size)

    def _aligned(self, conv: MessagePassing, edges: Tensor) -> Tensor:
        """The mask on a layer's own edges, which may lack or add self-loops."""
        copies, mask = self._copies, self._mask
        assert copies is not None
        assert mask is not None
        if not copies.masks_loops and torch.equal(edges, copies.edge_index):
            return mask
        proper = edges[0] != edges[1]
        if not torch.equal(edges[:, proper], copies.edge_index[:, copies.proper]):
            raise UnsupportedModelError(
                f"Expected {type(conv).__name__} to run on the edges it was called with, in their order, but it ran on "
                "others: a mask of edges has no meaning there."
            )
        of_edges, of_loops = mask.split([copies.edge.numel(), mask.numel() - copies.edge.numel()])
        aligned = of_loops[edges[0]] if copies.masks_loops else mask.new_ones(edges.shape[1])
        return aligned.masked_scatter(proper, of_edges[copies.proper])


@contextmanager
def masked_run(subject: Subject) -> Iterator[MaskedRun]:
    """While open, the returned run masks messages in the subject's model, which must be borrowed."""
    run = MaskedRun(subject)
    with ExitStack() as stack:
        for conv in subject.model.modules():
            # As in PyG's explainers, layers whose `explain` is False are left alone.
            if isinstance(conv, MessagePassing) and conv.explain is not False:
                stack.callback(conv.register_propagate_forward_pre_hook(run.see_edges).remove)
                stack.callback(conv.register_message_forward_hook(run.scale).remove)
        yield run
