"""One edge of an explanation, and the explanation in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attree.evaluation import Evaluation
from attree.source.target_labels import LINK_NAMES
from attree.subject import Subject

REDUCED = {"removal": "Without {edge}", "weight": "With no attention on {edge}"}
"""Start of the sentence about a reduced edge, by protocol; for other protocols it contains their name."""


NO_EDGE = "No edge reaches it."


@dataclass(frozen=True)
class EdgeEffect:
    """One edge of an explanation.

    Attributes:
        source: The source node.
        destination: The destination node.
        score: The score that the method gives to the edge.
        effect: The drop in the probability of the predicted class (or in the number) when the edge is reduced.
        probability: Probability of the class that is predicted after the reduction; None for regression.
        predicted: The class that is predicted after the reduction; None for regression.
        changes: Whether the reduction changes the predicted class.
        name: The edge in words.
    """

    source: int
    destination: int
    score: float
    effect: float
    probability: float | None
    predicted: int | None
    changes: bool
    name: str

    @property
    def side(self) -> str:
        """Whether the edge speaks `for` or `against` the prediction (`raises` or `lowers` a number); may be empty."""
        if self.effect == 0 or math.isnan(self.effect):
            return ""
        words = ("raises", "lowers") if self.predicted is None else ("for", "against")
        return words[0] if self.effect > 0 else words[1]


def sentence_of(evaluation: Evaluation, subject: Subject, edges: Sequence[EdgeEffect], protocol: str) -> str:
    """Return a sentence with the prediction, and the prediction after the strongest edge is reduced.

    Args:
        evaluation: The measurements for the one target.
        subject: The model and its inputs.
        edges: The edges of the explanation, the strongest first.
        protocol: Name of the protocol that reduces an edge.
    """
    if evaluation.predictions is None:
        prediction, strongest = _number(evaluation, subject), _strongest(edges)
        return (
            prediction
            if strongest is None
            else f"{prediction} {_reduced(protocol, strongest)} {_then_number(strongest)}."
        )
    best = evaluation.predictions[0].max(dim=-1)
    predicted, label = int(best.indices), evaluation.target_labels.label_name(0)
    named = class_name(evaluation, subject, predicted) + (f" for {label}" if label else "")
    prediction = (
        f"The network predicts {named} ({percent(float(best.values))}{_if_wrong(evaluation, subject, predicted)})."
    )
    edge = _strongest(edges)
    if edge is None:
        return f"{prediction} {NO_EDGE}"
    reduced = _reduced(protocol, edge) + (", which speaks against it," if edge.effect < 0 else "")
    if edge.predicted is None or edge.probability is None:
        return f"{prediction} {reduced} its probability would be {percent(float(best.values) - edge.effect)}."
    if not edge.changes:
        return f"{prediction} {reduced} it would still predict the same ({percent(edge.probability)})."
    after = class_name(evaluation, subject, edge.predicted)
    return f"{prediction} {reduced} it would predict {after} ({percent(edge.probability)})."


def class_name(evaluation: Evaluation, subject: Subject, number: int) -> str:
    """Return the name of a class; without class names, `LINK_NAMES` for links and else the number."""
    about = evaluation.target_labels
    if about.class_names is None and subject.level == "edge" and number < len(LINK_NAMES):
        return LINK_NAMES[number]
    name = about.class_name(number)
    return f"class {name}" if about.class_names is None and about.measured is None else name


def percent(share: float) -> str:
    """Format a probability as a percentage; a probability below 1 never reads as 100 %.

    >>> percent(0.8961), percent(0.99996), percent(0.00001), percent(1.0)
    ('90 %', '> 99.9 %', '< 0.1 %', '100 %')
    """
    if 0.999 < share < 1:
        return "> 99.9 %"
    if 0 < share < 0.001:
        return "< 0.1 %"
    digits = 1 if 0.99 < share < 1 or 0 < share < 0.01 else 0
    return f"{100 * share:.{digits}f} %"


def _if_wrong(evaluation: Evaluation, subject: Subject, predicted: int) -> str:
    labels = evaluation.target_labels.labels
    if labels is None or float(labels[0]) < 0 or float(labels[0]) != round(float(labels[0])):
        return ""
    true = int(labels[0])
    return "" if true == predicted else f"; labelled {class_name(evaluation, subject, true)}"


def _strongest(edges: Sequence[EdgeEffect]) -> EdgeEffect | None:
    """Return the first edge that is no self-loop; if there is none, the first self-loop."""

    proper = [edge for edge in edges if edge.source != edge.destination]
    return next(iter(proper), next(iter(edges), None))


def _reduced(protocol: str, edge: EdgeEffect) -> str:
    name = f"the {edge.name}" if edge.source == edge.destination else edge.name
    return REDUCED.get(protocol, f"With {protocol} of {{edge}} reduced").format(edge=name)


def _number(evaluation: Evaluation, subject: Subject) -> str:
    row = subject.rows(evaluation.pairs.targets)
    output = subject.output[row]
    measured = subject.head.measured(output)
    value = float(subject.head.logits(output, measured).detach().view(-1)[0])
    return f"The network predicts {value:.4g}."


def _then_number(edge: EdgeEffect) -> str:
    return f"it would predict {abs(edge.effect):.3g} {'less' if edge.effect > 0 else 'more'}"
