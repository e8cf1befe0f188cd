"""A frozen model, for methods that compute gradients through it or train against it, and its predictions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.attention.capture import Attention, capture_run
from attree.attention.eval_mode import eval_mode
from attree.attention.stand_ins import frozen, stand_in
from attree.subject import Subject
from attree.subject.head import check_output
from attree.tensors.limits import exact_dtype


@contextmanager
def frozen_subject(subject: Subject, seed: int = 0) -> Iterator[Subject]:
    """Context that yields a subject with another stand-in of its model, whose parameters get no gradients.

    Gradients are enabled, also inside `torch.inference_mode` (as in Lightning's `test`). Methods may leave hooks,
    masks and attributes on the stand-in: nobody else has it. Torch's random generators start from `seed`, and are
    restored on exit.

    Args:
        subject: The subject.
        seed: Seed of the random generators.
    """
    model = stand_in(subject.model, frozen)
    devices = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices), eval_mode(model):
        torch.manual_seed(seed)
        yield replace(subject, model_call=replace(subject.call, model=model))


def differentiable(value: Any) -> Any:
    """Return a detached tensor, or dict of tensors, that autograd accepts: a copy if made in inference mode.

    Other values are returned unchanged.
    """
    if isinstance(value, dict):
        return {key: differentiable(item) for key, item in value.items()}
    if not isinstance(value, Tensor):
        return value
    return value.clone() if value.is_inference() else value.detach()


class Predictions:
    """Predictions of a subject's model for all targets, and losses of other outputs against them.

    Args:
        subject: The subject to explain.

    Attributes:
        output: The model's output, [rows, ...].
        logits: Class logits, [rows, classes]; for regression, the predicted numbers [rows, 1].
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
        """Return the logits (or numbers) of targets."""
        return self.logits[self._subject.rows(targets)]

    def read(self, output: Any, targets: Tensor) -> Tensor:
        """Return the logits (or numbers) of targets, from their rows of an output."""
        measured = None if self._measured is None else self._measured[self._subject.rows(targets)]
        return self._head.logits(output, measured)

    def explained(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the logit of each target's predicted class, [targets]."""
        return logits.gather(1, self.classes[self._subject.rows(targets)].unsqueeze(1)).view(-1)

    def probability(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the probability of each target's predicted class, or its number, [targets]."""
        wide = logits.to(exact_dtype(logits.device))  # a saturated softmax in float32 would have no gradient
        return self.explained(wide if self.are_numbers else wide.softmax(dim=1), targets)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return each target's loss against its prediction: cross-entropy, or the squared difference of numbers."""
        if self.are_numbers:
            return (logits - self.of(targets)).square().view(-1)
        return F.cross_entropy(logits, self.classes[self._subject.rows(targets)], reduction="none")


def full_pass(subject: Subject) -> Attention:
    """Return the attention of a pass over the whole graph, with output and embedding.

    If the subject's attention lacks one of the two, the model runs again.
    """
    attention = subject.attention
    if attention.output is not None and attention.embedding is not None:
        return attention
    return capture_run(subject.model, subject.call.run, subject.graph)
