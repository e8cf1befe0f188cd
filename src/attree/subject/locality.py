"""Whether a model computes the outputs of targets from a part of its graph: one experiment for all engines.

The model runs on the part among decoys. These are two more copies with loud noise in place of features, one in front
and one behind. The targets stand in the opposite order, and one of them stands there twice. If the outputs still equal
those of the whole graph, the model reads neither other nodes nor the position of a node.
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
    """An engine cannot serve a model; the next one may.

    Args:
        expected: What the engine needs, as a noun phrase.
        reason: Why the model does not have it, as the end of a sentence.
    """

    def __init__(self, expected: str, reason: str) -> None:
        super().__init__(f"Expected {expected}, but {reason}.")
        self.reason = reason


class NotRowwiseError(EngineError):
    """A model cannot be run on the rows that a reduction changes."""

    def __init__(self, reason: str) -> None:
        super().__init__("a model that can be run on the rows that a reduction changes", reason)


class NotLocalError(EngineError):
    """A model cannot be run on copies of what a target depends on.

    Args:
        name: The model's class.
        reason: Why, as the end of a sentence.
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
        call: The call of the model on its whole graph.
        part: A graph for each target.
        expected: The outputs of the targets when the model runs on the whole graph, or on more of it, a row each.
        run: Runs a call.
        seed: Seed of the noise in decoys.

    Raises:
        NotLocalError: If outputs differ; the message says by how much.
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
    found = difference(output[1:-1], expected[which[1:-1]], output.dtype)
    if found is not None:
        raise NotLocalError(
            call.name,
            f"on a part of the graph its outputs differ by {found:.2g}: it has paths beside attention, such as norms "
            "or pooling over nodes, features computed from all edges, or code that depends on the position of a node",
        )


def target_outputs(call: ModelCall, part: Part, output: Any) -> Tensor:
    """The outputs of the targets of a part, a row each, in what a model returned on the part.

    Raises:
        NotLocalError: If the model returned other rows than those of the part.
    """
    rows, count = call.target_rows(part)
    if not isinstance(output, Tensor) or output.dim() == 0 or output.shape[0] != count:
        raise NotLocalError(call.name, "on copies it returns other rows than those of the copies")
    return output[rows]


def _with_decoys(call: ModelCall, decoy: Tensor, seed: int) -> ModelCall:
    """The same call with loud noise in the features of some nodes, given as a mask."""
    features = call.features
    if features is None:
        return call
    if call.types is None:
        return call.with_features(with_noise(features, decoy.nonzero().view(-1), seed))
    nodes = {kind: call.types.nodes(kind) for kind in features}
    own = {kind: decoy[those.start : those.stop].nonzero().view(-1) for kind, those in nodes.items()}
    by_type = {kind: with_noise(rows, own[kind], seed) for kind, rows in features.items()}
    return call.changed(lambda _, value: by_type if value is features else value)
