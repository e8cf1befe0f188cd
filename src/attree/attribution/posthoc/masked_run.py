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

from attree.attribution.posthoc.copies import Copies
from attree.attribution.posthoc.predictions import Predictions
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
        self.graph_level = subject.level == "graph"
        self.predictions = Predictions(subject)
        self._copies: Copies | None = None
        self._mask: Tensor | None = None
        self._edges: dict[MessagePassing, Tensor] = {}

    def logits(self, copies: Copies, mask: Tensor, x: Tensor | None = None) -> Tensor:
        """Logits of the targets, [B, classes].

        Args:
            copies: The batch.
            mask: One factor per entry of the batch's masks: per edge, and per self-loop if those are masked.
            x: Other features for the batch's nodes, if any.
        """
        self._copies, self._mask = copies, mask
        call = copies.call if x is None else copies.call.with_features(x)
        output = call.run()
        if not isinstance(output, Tensor) or output.shape[0] != copies.num_rows:
            raise NotLocalError  # such as one row per edge, or rows of chosen nodes
        return self.predictions.read(output[copies.rows], copies.targets)

    def explained(self, copies: Copies, logits: Tensor) -> Tensor:
        """The explained output of each target, [B], of their logits."""
        return self.predictions.explained(logits, copies.targets)

    def loss(self, copies: Copies, logits: Tensor) -> Tensor:
        """How far each target's logits are from its prediction, [B]."""
        return self.predictions.loss(logits, copies.targets)

    def check(self, copies: Copies, logits: Tensor) -> None:
        """Raise unless the targets' logits, with nothing masked, are those on the whole graph."""
        expected = self.predictions.of(copies.targets)
        if expected.numel() == 0:
            return
        difference, scale = float((logits.detach() - expected).abs().max()), max(float(expected.abs().max()), 1.0)
        if not difference <= torch.finfo(logits.dtype).eps ** 0.5 * scale:
            raise NotLocalError

    @torch.no_grad()
    def check_unmasked(self, copies: Copies) -> None:
        """As `check`, by a pass of its own."""
        self.check(copies, self.logits(copies, self.unmasked(copies)))

    def unmasked(self, copies: Copies) -> Tensor:
        """A mask that leaves every message as it is."""
        return torch.ones(copies.entry_owner.numel(), dtype=self.predictions.logits.dtype, device=copies.edge.device)

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
    """While open, the returned run masks messages in the subject's model, which must be frozen."""
    run = MaskedRun(subject)
    with ExitStack() as stack:
        for conv in subject.model.modules():
            # As in PyG's explainers, layers whose `explain` is False are left alone.
            if isinstance(conv, MessagePassing) and conv.explain is not False:
                stack.callback(conv.register_propagate_forward_pre_hook(run.see_edges).remove)
                stack.callback(conv.register_message_forward_hook(run.scale).remove)
        yield run
