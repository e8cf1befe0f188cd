"""An explanation in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attree.evaluation import Evaluation
from attree.subject import Subject

if TYPE_CHECKING:
    from attree.explanation.explanation import EdgeEffect

LINK_NAMES = ("no link", "a link")
"""What the classes of a link predictor are called where nothing names them."""

REDUCED = {"removal": "Without {edge}", "weight": "With no attention on {edge}"}
"""How a protocol reads in a sentence; others are named."""


def sentence_of(evaluation: Evaluation, subject: Subject, edges: Sequence[EdgeEffect], protocol: str) -> str:
    """Say what is predicted, and what would be if the strongest edge were reduced.

    Args:
        evaluation: What was measured of the one target.
        subject: The model and its inputs.
        edges: The edges of the explanation, the highest-scored first.
        protocol: What reducing an edge means.
    """
    if evaluation.predictions is None:
        said, strongest = _number(evaluation, subject), _strongest(edges)
        return said if strongest is None else f"{said} {_reduced(protocol, strongest)} {_then_number(strongest)}."
    best = evaluation.predictions[0].max(dim=-1)
    named = class_name(evaluation, subject, int(best.indices))
    said = f"The network says {named} ({percent(float(best.values))}{_truly(evaluation, subject, int(best.indices))})."
    edge = _strongest(edges)
    if edge is None:
        return f"{said} No edge reaches it."
    reduced = _reduced(protocol, edge)
    if edge.predicted is None or edge.probability is None:
        return f"{said} {reduced} its probability would be {percent(float(best.values) - edge.effect)}."
    if not edge.changes:
        return f"{said} {reduced} it would still say so ({percent(edge.probability)})."
    after = class_name(evaluation, subject, edge.predicted)
    return f"{said} {reduced} it would say {after} ({percent(edge.probability)})."


def class_name(evaluation: Evaluation, subject: Subject, number: int) -> str:
    """What a class is called: its name, what a link is called, or its number."""
    about = evaluation.about
    if about.class_names is None and subject.level == "edge" and number < len(LINK_NAMES):
        return LINK_NAMES[number]
    name = about.class_name(number)
    return f"class {name}" if about.class_names is None else name


def percent(share: float) -> str:
    """A probability as people read it; what is not quite certain does not read as certain.

    >>> percent(0.8961), percent(0.99996), percent(0.00001), percent(1.0)
    ('90 %', '> 99.9 %', '< 0.1 %', '100 %')
    """
    if 0.999 < share < 1:
        return "> 99.9 %"
    if 0 < share < 0.001:
        return "< 0.1 %"
    digits = 1 if 0.99 < share < 1 or 0 < share < 0.01 else 0
    return f"{100 * share:.{digits}f} %"


def _truly(evaluation: Evaluation, subject: Subject, predicted: int) -> str:
    labels = evaluation.about.labels
    if labels is None or float(labels[0]) < 0 or float(labels[0]) != round(float(labels[0])):
        return ""
    true = int(labels[0])
    return "" if true == predicted else f"; truly {class_name(evaluation, subject, true)}"


def _strongest(edges: Sequence[EdgeEffect]) -> EdgeEffect | None:
    """The first edge between two nodes; a self-loop only where there is nothing else."""
    between = [edge for edge in edges if edge.source != edge.destination]
    return next(iter(between), next(iter(edges), None))


def _reduced(protocol: str, edge: EdgeEffect) -> str:
    name = f"the {edge.name}" if edge.source == edge.destination else edge.name
    return REDUCED.get(protocol, f"With {protocol} of {{edge}} reduced").format(edge=name)


def _number(evaluation: Evaluation, subject: Subject) -> str:
    row = subject.rows(evaluation.targets)
    output = subject.output[row]
    measured = subject.head.measured(output)
    value = float(subject.head.logits(output, measured).detach().view(-1)[0])
    return f"The network predicts {value:.4g}."


def _then_number(edge: EdgeEffect) -> str:
    return f"it would predict {abs(edge.effect):.3g} {'less' if edge.effect > 0 else 'more'}"
