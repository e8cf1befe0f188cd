"""What attention does not see of a subject: paths that go around it, and nodes beyond the layers' reach."""

from __future__ import annotations

from torch import Tensor

from attree.attention.bypass import Bypass, measure_bypass
from attree.attention.locality import measure_locality
from attree.subject.subject import Subject


def bypass_of(subject: Subject, targets: Tensor | None = None) -> Bypass:
    """How much of the targets' predictions is left when all attention weights are 0.

    Args:
        subject: What is explained.
        targets: Ids of nodes or graphs; None for all.
    """
    inputs, head = subject.inputs, subject.head.resolve(subject.attention.output)
    measured = head.measured(subject.attention.output)

    def predict(output: Tensor) -> Tensor:
        return head.logits(output, measured).argmax(dim=1)

    return measure_bypass(
        subject.model, inputs.x, inputs.edge_index, *inputs.args, targets=targets, predict=predict, **inputs.kwargs
    )


def what_attention_misses(subject: Subject, bypass: Bypass) -> list[str]:
    """Sentences to say once of a model whose predictions attention explains only in part; none for most."""
    said = [str(bypass)] if bypass.exists else []
    inputs = subject.inputs
    if inputs.x.is_floating_point():
        locality = measure_locality(
            subject.model,
            inputs.x,
            inputs.edge_index,
            *inputs.args,
            num_layers=subject.num_layers,
            graph=subject.graph,
            graph_of=subject.batch,
            **inputs.kwargs,
        )
        if not locality.local:
            said.append(str(locality))
    return said
