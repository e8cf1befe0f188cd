"""Occlusion: the exact effect of reducing each edge's attention; as a method, and as an explainer of PyG."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.explainer import TreeExplainer
from attree.attribution.flows import frontier_bound
from attree.attribution.method import AttributionMethod, as_subject
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.attribution.subject_pairs import subject_pairs
from attree.effects.measured import Effects
from attree.errors import expect_memory
from attree.faithfulness.protocol import ReductionProtocol, check_protocols, resolve_protocol
from attree.subject import Subject
from attree.subject.target_ids import Targets
from attree.tensors.limits import REDUCTION_MEMORY, chunk_bounds

BYTES_PER_PAIR = 128
"""Bytes that a pair takes while its effect is measured, beside the engine's own working memory."""

DEFAULT_PROTOCOL = "removal"


class Occlusion(AttributionMethod):
    r"""Occlusion: how far the predicted class's probability drops when an edge's attention is reduced.

    .. math:: \phi^v_e = p_c(v) - p_c(v \mid e \text{ reduced})

    where :math:`c` is the class predicted for target :math:`v` and the edge is reduced in every layer and head at once
    (of a predicted number, its drop). Scores have a sign: an edge below 0 speaks against the prediction. The idea is
    that of Zeiler and Fergus (2014); where `ExactReducer` serves the model, no edge takes a forward pass of its own.

    By definition no method foretells the effect of a single edge better, so judge it by sets of edges, too.

    Args:
        protocol: What reducing an edge means: `removal`, `weight`, `coefficient`, `authors`, or one of one's own.

    .. code-block:: python

        attree.evaluate(model, data, methods=["gatt", attree.Occlusion("weight")])
    """

    name = "occlusion"
    label = "Occlusion"
    reads_effects = True

    def __init__(self, protocol: str | ReductionProtocol = DEFAULT_PROTOCOL) -> None:
        (self.protocol,) = check_protocols([protocol])
        if str(protocol) != DEFAULT_PROTOCOL:
            self.name, self.label = f"{type(self).name}_{protocol}", f"{type(self).label} ({protocol})"

    def attribute(
        self, subject: Subject | Attention, targets: Targets = "all", memory: int = REDUCTION_MEMORY
    ) -> Attribution:
        """Measure, for every target, the effect of all edges that carry a flow to it.

        Args:
            subject: What is explained, with its model.
            targets: Nodes, pairs of nodes, or graphs.
            memory: Bytes of working memory; the result itself comes on top.
        """
        subject = as_subject(subject)
        parts = list(self.stream(subject, targets, memory))
        if parts:
            return Attribution.concat(parts)
        none = subject.graph.source[:0]
        return Attribution(self.name, subject.graph, none, none.new_zeros(1), none, torch.zeros(0, device=none.device))

    def stream(
        self, subject: Subject | Attention, targets: Targets = "all", memory: int = REDUCTION_MEMORY
    ) -> Iterator[Attribution]:
        """As `attribute`, but yields the result in parts of consecutive targets that fit into `memory` bytes."""
        subject = as_subject(subject)
        protocol = resolve_protocol(self.protocol, subject.model)
        expect_memory(memory)
        ids = subject.targets(targets)
        effects = Effects.of(subject)
        for begin, end in chunk_bounds(_pair_counts(subject, ids) * BYTES_PER_PAIR, memory):
            local = effects.are_local
            pairs = subject_pairs(subject, ids[begin:end], only_flows=local)
            effect = effects.once(pairs, protocol)
            if not effects.are_local:  # paths beside attention: edges without a flow may have an effect
                if local:
                    pairs = subject_pairs(subject, ids[begin:end])
                    effect = effects.once(pairs, protocol)
                listed = pairs.flow | (effect != 0)
                pairs, effect = pairs.only(listed), effect[listed]
            yield Attribution(self.name, subject.graph, pairs.targets, pairs.ptr, pairs.edges, effect)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """The effect of each pair, [P]; an evaluation that measures this protocol shares its measurement."""
        subject = as_subject(subject)
        return Effects.of(subject).reduce(pairs, resolve_protocol(self.protocol, subject.model)).delta_pc


class OcclusionExplainer(TreeExplainer):
    """The exact effect of reducing each edge's attention: see `attree.Occlusion`.

    `edge_mask` has a sign; `normalize` divides it by its largest absolute value.

    .. code-block:: python

        explainer = Explainer(
            model, algorithm=OcclusionExplainer(), explanation_type="model", edge_mask_type="object",
            model_config=dict(mode="multiclass_classification", task_level="node", return_type="raw"),
        )
        explanation = explainer(x, edge_index, index=10)

    Args:
        protocol: What reducing an edge means: `removal`, `weight`, `coefficient`, `authors`, or one of one's own.
        normalize: Divide the mask by its largest absolute value.
    """

    def __init__(self, protocol: str | ReductionProtocol = DEFAULT_PROTOCOL, normalize: bool = False) -> None:
        super().__init__(normalize=normalize, method=Occlusion(protocol))


def _pair_counts(subject: Subject, targets: Tensor) -> Tensor:
    """At most how many pairs each target has."""
    graph, batch = subject.graph, subject.batch
    if batch is None:
        roots = subject.roots(targets, torch.float32)
        return roots.sums(frontier_bound(graph, subject.num_layers + 2)).clamp(max=float(graph.num_edges))
    return batch[graph.destination].bincount(minlength=subject.num_targets)[targets].float()
