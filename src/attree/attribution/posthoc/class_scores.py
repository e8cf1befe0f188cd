"""A model's outputs as one score per class, and what it predicts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attree.attention.capture import Attention, capture_attention
from attree.errors import UnsupportedModelError
from attree.subject import Subject


def class_scores(output: Any) -> Tensor:
    """Outputs as logits [rows, classes]; one logit z is that of two classes, -z / 2 and z / 2.

    >>> class_scores(torch.tensor([2.0, -4.0])).tolist()
    [[-1.0, 1.0], [2.0, -2.0]]
    """
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() not in (1, 2):
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise UnsupportedModelError(f"Expected the model to return class scores [rows, classes], but got {got}.")
    if output.dim() == 1 or output.shape[1] == 1:
        half = output.reshape(-1) / 2
        return torch.stack([-half, half], dim=1)
    return output


def subject_scores(subject: Subject) -> Tensor:
    """The class scores of all nodes or graphs of a subject, as its model gives them."""
    return class_scores(full_pass(subject).output).detach()


def full_pass(subject: Subject) -> Attention:
    """What a pass of the model over the whole graph gives, output and embedding included.

    Attention that was seen elsewhere may lack one of the two; then the pass is made again.
    """
    attention = subject.attention
    if attention.output is not None and attention.embedding is not None:
        return attention
    inputs = subject.inputs
    return capture_attention(
        subject.model, inputs.x, inputs.edge_index, *inputs.args, graph=subject.graph, **inputs.kwargs
    )
