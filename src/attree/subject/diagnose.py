"""What attention does not see of a subject: paths around layers, nodes beyond the layers' reach, odd outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from attree.attention.diagnostics import Bypass, measure_bypass, odd_outputs, predicted_class, random_outputs
from attree.attention.locality import Locality, measure_locality
from attree.errors import AttreeError
from attree.subject.plain_stack import is_plain_stack
from attree.subject.subject import Subject


def bypass_of(subject: Subject, targets: Tensor | None = None, known: Collection[int] = ()) -> Bypass:
    """The share of targets whose prediction stays without the attention of one layer, or of all; see `Bypass`.

    Args:
        subject: What is explained.
        targets: Ids of nodes or graphs; None for all.
        known: `Bypass.around` of an earlier measurement of the same model.
    """
    if is_plain_stack(subject.model):
        return Bypass(0.0)
    attention, call = subject.attention, subject.call
    if call.features is None:  # what goes around can only be seen by changing features
        return Bypass(0.0)
    layout = attention.layout
    return measure_bypass(
        subject.model,
        _run(subject),
        call.features,
        layers=layout.layers if layout.is_chain else (layout.calls,),
        usual=attention.output,
        targets=None if targets is None else subject.rows(targets),
        predict=_predict(subject),
        known=known,
    )


def what_attention_misses(subject: Subject, bypass: Bypass) -> list[str]:
    """Warnings about a model whose predictions attention explains only in part; an empty list for most models."""
    call, output = subject.call, subject.attention.output
    if call.features is None:
        return []
    if (odd := odd_outputs(output)) is not None:
        return [odd]
    locality = _locality_of(subject)
    # Outputs that stay as they are with noise far away are not random either: that takes no run of its own.
    if locality is None or not locality.compared or not locality.local:
        chance = random_outputs(subject.model, _run(subject), call.features, output)
        if chance is not None:
            return [chance]
    said = [str(bypass)] if bypass.exists else []
    return said if locality is None or locality.local else [*said, str(locality)]


def _locality_of(subject: Subject) -> Locality | None:
    """How far outputs change with features out of reach; None where it cannot be told by changing features."""
    call = subject.call
    if not call.has_features or not call.x.is_floating_point():
        return None
    if subject.level == "edge" or subject.outputs.nodes is not None:
        return None
    return measure_locality(
        subject.model,
        _run(subject),
        call.x,
        num_layers=subject.num_layers,
        graph=subject.graph,
        graph_of=subject.batch,
        usual=subject.attention.output,
    )


def _run(subject: Subject) -> Callable[[Any], Any]:
    return lambda features: subject.call.with_features(features).run()


def _predict(subject: Subject) -> Callable[[Tensor], Tensor] | None:
    """A function from outputs to predicted classes; None for regression."""
    output = subject.attention.output
    try:
        head = subject.head.resolve(output)
    except AttreeError:  # attention can be explained without knowing what outputs mean
        return predicted_class
    if head.mode == "regression":
        return None
    measured = head.measured(output)
    return lambda scores: head.logits(scores, measured).argmax(dim=1)
