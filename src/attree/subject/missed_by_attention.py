"""Find what attention cannot explain in a subject: paths around layers, influence of distant nodes, odd outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attree.attention.bypass_and_locality import (
    Bypass,
    Locality,
    measure_bypass,
    measure_locality,
    odd_outputs,
    predicted_class,
    random_outputs,
)
from attree.attention.stand_ins import eval_mode, score_tensor
from attree.attention.wiring import is_plain_stack
from attree.errors import AttreeError, UnsupportedModelError
from attree.subject.facts import BYPASSED, RUNS_ON_ROWS, facts_of
from attree.subject.subject import Subject


def bypass_of(subject: Subject, targets: Tensor | None = None) -> Bypass:
    """Return the share of targets that keep their prediction without the attention of one or all layers, see `Bypass`.

    Args:
        subject: The subject.
        targets: Ids of nodes or graphs; None for all.
    """
    if is_plain_stack(subject.model):
        return Bypass(0.0)
    attention, call = subject.layers, subject.call
    # Bypasses are found by changing features.
    if call.features is None or not attention.has_attention or attention.untraced is not None:
        return Bypass(0.0)
    layout = attention.layout
    layers = layout.layers if layout.is_chain else (layout.calls,)
    if attention.attends is not None and layout.is_chain:
        layers = tuple(layer for layer, attends in zip(layers, attention.attends, strict=True) if attends)
    facts = facts_of(call)
    bypassed_before = facts.get(BYPASSED, frozenset())
    bypass = measure_bypass(
        subject.model,
        _run(subject),
        call.features,
        layers=layers,
        usual=attention.output,
        targets=None if targets is None else subject.rows(targets),
        predict=_predict(subject),
        bypassed_before=bypassed_before,
    )
    facts[BYPASSED] = bypassed_before | bypass.bypassed_layers
    return bypass


def what_attention_misses(subject: Subject, bypass: Bypass) -> list[str]:
    """Return warnings if attention explains the predictions only in part; an empty list for most models."""
    call = subject.call
    if call.features is None:
        return []
    if (odd := odd_outputs(score_tensor(subject.layers.output))) is not None:
        return [odd]
    if (untraced := subject.layers.untraced) is not None:
        return [f"GAtt and other methods that walk the computation tree do not apply to {call.name}. {untraced.reason}"]
    sentences = [str(bypass)] if bypass.exists else []
    if facts_of(call).get(RUNS_ON_ROWS):
        return sentences
    locality = _locality_of(subject)
    # If outputs did not change with noise far away, they are not random, and no further run is needed.
    if locality is None or not locality.compared or not locality.local:
        chance = random_outputs(subject.model, _run(subject), call.features, _own_output(subject))
        if chance is not None:
            return [chance]
    if locality is None or locality.local or follows_all_nodes(subject):
        return sentences
    layer, score = (
        ("attention layer", "score from attention")
        if subject.layers.attends is None
        else ("layer", "score from methods that walk the computation tree")
    )
    return [
        *sentences,
        f"Outputs change by {locality.change:.2g} of their size with features that no {layer} reaches: "
        f"{why_beyond(subject)}. Edges there get no {score}.",
    ]


def follows_all_nodes(subject: Subject) -> bool:
    """Whether walks over the computation tree follow the model's attention over all nodes."""
    try:
        return subject.global_trace is not None
    except UnsupportedModelError:
        return False


def why_beyond(subject: Subject) -> str:
    """Say why outputs depend on more than the attention layers reach: what the model is seen to do."""
    everywhere = sorted(
        {type(module).__name__ for module in subject.model.modules() if isinstance(module, nn.MultiheadAttention)}
        | {type(module).__name__ for module in subject.model.modules() if "nn.attention" in type(module).__module__}
    )
    if everywhere:
        return f"it has attention over all nodes ({', '.join(everywhere)})"
    farther = _locality_of(subject, FARTHER)
    if farther is None or (farther.compared and not farther.local):
        return "it has a step over all nodes, such as a norm, a pooling or a difference to one node"
    if subject.layers.attends is not None:
        return (
            "a layer without attention, or a step between the layers, reads degrees or other edges (in a GCN, an edge "
            "changes the weights of all messages that its end sends)"
        )
    return (
        "it has a step outside its attention layers that reads edges, such as degrees, a mean over neighbours or a "
        "convolution without attention"
    )


FARTHER = 3
"""A step that reads edges outside attention layers reaches fewer further hops than this; one over all nodes, more."""


def _locality_of(subject: Subject, farther: int = 0) -> Locality | None:
    """Measure how much outputs change with features out of reach; None if features cannot be changed.

    Args:
        subject: The subject.
        farther: Number of hops beyond those of the layers that still count as within reach.
    """
    call = subject.call
    if not call.has_features or not call.x.is_floating_point():
        return None
    nodes = subject.outputs.nodes
    if subject.level == "edge" or (nodes is not None and subject.graph.types is not None):
        return None
    return measure_locality(
        subject.model,
        _run(subject),
        call.x,
        num_layers=subject.num_layers + farther,
        graph=subject.graph,
        graph_of=subject.batch,
        nodes=nodes,
        usual=_own_output(subject),
    )


def _own_output(subject: Subject) -> Tensor:
    """Return the output in the model's own type: that of the captured pass may have been computed in a wider one."""
    output = subject.layers.output
    weights = [tensor.dtype for tensor in subject.model.parameters() if tensor.is_floating_point()]
    if not isinstance(output, Tensor) or not weights or output.dtype in weights:
        return output
    with eval_mode(subject.model), torch.no_grad():
        return score_tensor(subject.call.run())


def _run(subject: Subject) -> Callable[[Any], Any]:
    return lambda features: subject.call.with_features(features).run()


def _predict(subject: Subject) -> Callable[[Tensor], Tensor] | None:
    """Return a function from outputs to predicted classes; None for regression."""
    output = subject.layers.output
    try:
        head = subject.head.resolve(output)
    except AttreeError:  # the meaning of the outputs is unknown
        return predicted_class
    if head.mode == "regression":
        return None
    measured = head.measured(output)
    return lambda scores: head.logits(scores, measured).argmax(dim=1)
