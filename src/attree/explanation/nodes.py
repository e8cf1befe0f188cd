"""The nodes that a prediction reads, with their scores and exact effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attree.attribution import AttributionMethod, GAtt, attribute_nodes
from attree.faithfulness import NodeEffects, ReductionProtocol, node_effects
from attree.subject import Subject


@dataclass(frozen=True)
class NodeScore:
    """One node of an explanation.

    Attributes:
        node: The node.
        score: The score that the method gives to the node; its effect, if the method has no node scores.
        effect: The drop in the probability of the predicted class (or in the number) without the node's messages.
        changes: Whether the predicted class changes.
        name: The node in words.
    """

    node: int
    score: float
    effect: float
    changes: bool
    name: str


def nodes_of_target(
    subject: Subject,
    target: int,
    method: AttributionMethod | None,
    protocol: ReductionProtocol,
    name: Callable[[int], str],
) -> list[NodeScore]:
    """Return the nodes that a target reads, by descending size of the score.

    Args:
        subject: The subject.
        target: A node, pair or graph.
        method: The method that scores the nodes: a walk by its r at the input; any other, or None, by the effect.
        protocol: How the messages of a node are removed.
        name: Returns the name of a node.
    """
    effects: NodeEffects = node_effects(subject, [target], protocol)
    scores = effects.delta_pc.double()
    if isinstance(method, GAtt):
        scores = attribute_nodes(subject, [target], method).dense(target).double()[effects.node]
    order = scores.abs().argsort(descending=True, stable=True)
    nodes, values = effects.node[order].tolist(), scores[order].tolist()
    return [
        NodeScore(node, score, effect, changes, name(node))
        for node, score, effect, changes in zip(
            nodes, values, effects.delta_pc[order].tolist(), effects.changed[order].tolist(), strict=True
        )
    ]
