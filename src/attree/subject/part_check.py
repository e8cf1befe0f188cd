"""Check that a model computes the outputs of targets from a part of its graph; errors of engines that cannot run it.

The check runs the model on the part between two decoys: copies with loud noise as features, one before and one after
the part. The order of targets is reversed, and one target occurs twice. If the outputs equal those on the whole graph,
the model reads neither other nodes nor the position of a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attree.attention.locality import difference, with_noise
from attree.errors import UnsupportedModelError
from attree.subject.model_call import ModelCall
from attree.subject.part import Part


class EngineError(UnsupportedModelError):
    """Raised if an engine cannot run a model; another engine may.

    Args:
        expected: What the engine needs, as a noun phrase.
        reason: Why the model does not fit, as the end of a sentence.
    """

    def __init__(self, expected: str, reason: str) -> None:
        super().__init__(f"Expected {expected}, but {reason}.")
        self.reason = reason


class NotRowwiseError(EngineError):
    """Raised if a model cannot run on only the rows that a reduction changes."""

    def __init__(self, reason: str) -> None:
        super().__init__("a model that can be run on the rows that a reduction changes", reason)


class NotLocalError(EngineError):
    """Raised if a model cannot run on copies of the neighbourhoods of targets.

    Args:
        name: Class name of the model.
        reason: The reason, as the end of a sentence.
    """

    def __init__(self, name: str, reason: str) -> None:
        expected = (
            f"{name} to compute the class scores of a target from its own graph, or from the nodes within reach of its "
            "attention layers"
        )
        super().__init__(expected, reason)


def check_local(
    call: ModelCall, part: Part, expected: Tensor, run: Callable[[ModelCall], Any] = ModelCall.run, seed: int = 0
) -> None:
    """Raise unless a model computes the outputs of targets from a part of its graph.

    Args:
        call: The call of the model on the whole graph.
        part: A part with one graph per target.
        expected: One row of outputs per target, from a run on the whole graph or on a larger part.
        run: Runs a call.
        seed: Seed of the noise in decoys.

    Raises:
        NotLocalError: If outputs differ; the message has the difference.
    """
    if part.count == 0:
        return
    order = torch.arange(part.count, device=part.node.device).flip(0)
    which = torch.cat([order[-1:], order, order[:1], order[:1]])
    among = part.take(which, call.types)
    assert among.graph is not None
    decoy = (among.graph == 0) | (among.graph == which.numel() - 1)
    output = target_outputs(call, among, run(_with_decoys(call.on(among), decoy, seed)))
    if output.shape[1:] != expected.shape[1:]:
        raise NotLocalError(call.name, "on copies it returns rows of another length")
    change = difference(output[1:-1], expected[which[1:-1]], output.dtype)
    if change is not None:
        raise NotLocalError(
            call.name,
            f"on a part of the graph its outputs differ by {change:.2g}: it has paths that bypass attention, such as "
            "norms or pooling over nodes, features computed from all edges, or code that depends on the position of a "
            "node",
        )


def target_outputs(call: ModelCall, part: Part, output: Any) -> Tensor:
    """Return the outputs of the targets of a part, one row per target, from the output of the model on the part.

    Raises:
        NotLocalError: If the number of rows does not fit the part.
    """
    rows, count = call.target_rows(part)
    if not isinstance(output, Tensor) or output.dim() == 0 or output.shape[0] != count:
        raise NotLocalError(call.name, "on copies it returns other rows than those of the copies")
    return output[rows]


def _with_decoys(call: ModelCall, decoy: Tensor, seed: int) -> ModelCall:
    """Return the same call with loud noise as the features of the masked nodes."""

    features = call.features
    if features is None:
        return call
    if call.types is None:
        return call.with_features(with_noise(features, decoy.nonzero().view(-1), seed))
    nodes = {kind: call.types.nodes(kind) for kind in features}
    decoys = {kind: decoy[those.start : those.stop].nonzero().view(-1) for kind, those in nodes.items()}
    by_type = {kind: with_noise(rows, decoys[kind], seed) for kind, rows in features.items()}
    return call.changed(lambda _, value: by_type if value is features else value)
