"""The output that is explained for each target: the logit of its predicted class, or a predicted number."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.attention.capture import Attention, capture_run
from attree.subject import Subject
from attree.subject.head import check_output
from attree.tensors.limits import exact_dtype


class Predictions:
    """The predictions of a subject's model for all targets, and losses of other outputs against them.

    Args:
        subject: The subject.

    Attributes:
        output: What the model returns, [rows, ...].
        logits: Logits of classes as the subject's head reads them, [rows, classes]; of numbers, the numbers [rows, 1].
        classes: The predicted classes, [rows].
    """

    def __init__(self, subject: Subject) -> None:
        output = full_pass(subject).output
        check_output(output)
        self._subject = subject
        self._head = subject.head
        self.output = output.detach()
        self._measured = self._head.measured(output)
        self.logits = self._head.logits(output, self._measured).detach()
        self.classes = self.logits.argmax(dim=1)

    @property
    def are_numbers(self) -> bool:
        """Whether numbers are predicted, not classes."""
        return self._head.mode == "regression"

    @property
    def every(self) -> Tensor:
        """The target of each row of the output."""
        nodes = self._subject.outputs.nodes
        return torch.arange(self.classes.numel(), device=self.classes.device) if nodes is None else nodes

    def of(self, targets: Tensor) -> Tensor:
        """The logits (or numbers) of targets."""
        return self.logits[self._subject.rows(targets)]

    def read(self, output: Any, targets: Tensor) -> Tensor:
        """The logits (or numbers) of targets, from their rows of an output."""
        measured = None if self._measured is None else self._measured[self._subject.rows(targets)]
        return self._head.logits(output, measured)

    def explained(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The logit of each target's predicted class, [targets]."""
        return logits.gather(1, self.classes[self._subject.rows(targets)].unsqueeze(1)).view(-1)

    def probability(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The probability of each target's predicted class, or its number, [targets]."""
        wide = logits.to(exact_dtype(logits.device))  # or a saturated softmax would have no gradient left
        return self.explained(wide if self.are_numbers else wide.softmax(dim=1), targets)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How far each target is from its prediction: cross-entropy, or the squared difference of numbers."""
        if self.are_numbers:
            return (logits - self.of(targets)).square().view(-1)
        return F.cross_entropy(logits, self.classes[self._subject.rows(targets)], reduction="none")


def full_pass(subject: Subject) -> Attention:
    """The attention of a pass over the whole graph, with output and embedding.

    Attention that was captured elsewhere may lack one of the two; then the model runs again.
    """
    attention = subject.attention
    if attention.output is not None and attention.embedding is not None:
        return attention
    return capture_run(subject.model, subject.call.run, subject.graph)
