"""Which arguments a model really reads, found by calling it without them, or with one more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attree.attention.eager import eval_mode
from attree.subject.arguments import Kind
from attree.subject.model_call import ModelCall
from attree.subject.wrapped import parameters


def without_unread_ids(call: ModelCall, output: Any) -> ModelCall:
    """The call without node ids that are in the data but that the model does not read.

    Such ids cannot be cut to a part of the graph.

    Args:
        call: The model's call.
        output: What it returns.
    """
    position = 0
    while call.convention is not None and position < len(call.values):
        if call.kinds[position] is Kind.IDS:
            without = call.without(position)
            if _returns(without, output):
                call = without
                continue
        position += 1
    return call


def telling_graphs(call: ModelCall, batch: Tensor, output: Any) -> ModelCall:
    """The call with an argument that says which graph each node belongs to, where the model takes one.

    Copies of a graph can then be told apart, so that many run at once.

    Args:
        call: The model's call, which has no such argument.
        batch: The graph of each node.
        output: What the call returns.
    """
    call = call.telling_graphs_by(batch)
    if call.batch is not None or call.convention is not None:
        return call
    free = [one.name for one in parameters(call.model) if "batch" in one.name and one.name not in call.names]
    if not free or "size" in free[0]:
        return call
    told = call.with_argument(free[0], batch)
    return told if _returns(told, output) else call


def _returns(call: ModelCall, output: Any) -> bool:
    """Whether a call runs and returns an output."""
    try:
        with eval_mode(call.model), torch.no_grad():
            again = call.run()
    except Exception:
        return False
    same = isinstance(again, Tensor) and isinstance(output, Tensor) and again.shape == output.shape
    return same and torch.allclose(again, output, equal_nan=True)
