"""Measure one target: the score of every edge around it, and what the model says without that edge."""

from __future__ import annotations

import torch

from attree.attribution import AttributionMethod, subject_pairs
from attree.data import GroundTruth
from attree.effects import Effects
from attree.evaluation import Evaluation
from attree.evaluation.target_labels import TargetLabels, describe_network, predicted_classes
from attree.explanation.explanation import TargetExplanation
from attree.faithfulness import Reducer, ReductionProtocol, resolve_protocol
from attree.subject import Subject


def explain_subject(
    subject: Subject,
    target: int,
    method: AttributionMethod,
    protocol: str | ReductionProtocol,
    labels: TargetLabels | None = None,
    truth: GroundTruth | None = None,
) -> TargetExplanation:
    """Score and reduce every edge around one target.

    Args:
        subject: What is explained.
        target: A node, pair or graph.
        method: What scores the edges.
        protocol: What reducing an edge means.
        labels: True classes and names of all targets.
        truth: True edges of the nodes that have some.
    """
    resolved = resolve_protocol(protocol, subject.model)
    recorded = Reducer(subject).record()
    subject = subject.seen(recorded.attention)
    effects = Effects.of(subject, recorded)
    ids = subject.targets([target])
    pairs = subject_pairs(subject, ids)
    reduction = effects.reduce(pairs, resolved, with_probability=True)
    scores = method.score_pairs(subject, pairs)
    evaluation = Evaluation(
        {},
        pairs,
        {method.name: scores},
        {resolved.name: reduction},
        {method.name: method.label},
        {method.name: method.settings()},
        {resolved.name: resolved.meaning},
        predicted_classes(subject, ids),
        (TargetLabels() if labels is None else labels).at(ids),
        describe_network(subject),
        subject.attention,
        truth,
        roots=subject.roots(ids),
        subject=subject,
        resamples=0,
    )
    # Of equal scores, what the model depends on more comes first; undefined ones come last.
    strength = reduction.delta_pc.abs().nan_to_num(nan=0.0)
    order = strength.argsort(descending=True, stable=True)
    known = scores.detach().to(torch.float64).nan_to_num(nan=-torch.inf)
    order = order[known[order].argsort(descending=True, stable=True)]
    return TargetExplanation(evaluation, subject, order)
