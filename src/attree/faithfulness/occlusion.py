"""Occlusion: the exact effect of reducing the attention of each edge, as a method and as a PyG explainer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.explainer import TreeExplainer
from attree.attribution.flows import frontier_bound
from attree.attribution.method import AttributionMethod, as_subject
from attree.attribution.neighbourhoods import subject_pairs
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.errors import expect_memory
from attree.faithfulness.beyond_tree import reduce_all
from attree.faithfulness.choose import Effects
from attree.faithfulness.protocol import ReductionProtocol, check_protocols, resolve_protocol
from attree.subject import Subject
from attree.subject.roots import Targets
from attree.tensors.limits import REDUCTION_MEMORY, chunk_bounds

BYTES_PER_PAIR = 128
"""Bytes per pair while its effect is measured; the working memory of the engine comes on top."""

DEFAULT_PROTOCOL = "removal"


class Occlusion(AttributionMethod):
    r"""Occlusion: the drop in the probability of the predicted class when the attention of an edge is reduced.

    .. math:: \phi^v_e = p_c(v) - p_c(v \mid e \text{ reduced})

    where :math:`c` is the class predicted for target :math:`v`. The edge is reduced in every layer and head at once.
    For regression, the score is the drop in the predicted number. A negative score means that the edge lowers the
    predicted probability or number. The idea is from Zeiler and Fergus (2014). If `ExactReducer` supports the model, no
    edge needs a forward pass of its own.

    By definition no method predicts the effect of a single edge better, so also evaluate it on sets of edges.

    Args:
        protocol: How an edge is reduced: `removal`, `weight`, `coefficient`, `authors`, or a `ReductionProtocol`.

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
            subject: The subject; it must have a model.
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
        """Like `attribute`, but yield the result in chunks of consecutive targets that fit into `memory` bytes."""
        subject = as_subject(subject)
        protocol = resolve_protocol(self.protocol, subject.model)
        expect_memory(memory)
        ids = subject.targets(targets)
        effects = Effects.of(subject)
        for begin, end in chunk_bounds(_pair_counts(subject, ids) * BYTES_PER_PAIR, memory):
            pairs = subject_pairs(subject, ids[begin:end], only_flows=True)
            effect = effects.effect(pairs, protocol)
            if effects.reach(protocol) != effects.attention.num_layers:  # edges that carry no flow may have an effect
                reduction = reduce_all(effects, subject, subject_pairs(subject, ids[begin:end]), protocol).reduction
                effects.forget()
                pairs, effect = reduction.pairs, reduction.delta_pc
                is_listed = pairs.flow | (effect != 0)
                pairs, effect = pairs.only(is_listed), effect[is_listed]
            yield Attribution(self.name, subject.graph, pairs.targets, pairs.ptr, pairs.edges, effect)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs, effects: Effects | None = None) -> Tensor:
        """Return the effect of each pair, [P].

        Args:
            subject: The subject; it must have a model.
            pairs: The pairs.
            effects: Effects on the subject, with those that were measured already; None measures all.
        """
        subject = as_subject(subject)
        effects = Effects.of(subject) if effects is None else effects
        return effects.reduce(pairs, resolve_protocol(self.protocol, subject.model)).delta_pc


def score_pairs(method: AttributionMethod, subject: Subject, pairs: Pairs, effects: Effects | None = None) -> Tensor:
    """Score pairs by any method, [P]; a method that reads effects gets those that were measured already."""
    if isinstance(method, Occlusion):
        return method.score_pairs(subject, pairs, effects)
    return method.score_pairs(subject, pairs)


class OcclusionExplainer(TreeExplainer):
    """PyG explainer for the exact effect of reducing the attention of each edge, see `attree.Occlusion`.

    Entries of `edge_mask` can be negative.

    .. code-block:: python

        explainer = Explainer(
            model, algorithm=OcclusionExplainer(), explanation_type="model", edge_mask_type="object",
            model_config=dict(mode="multiclass_classification", task_level="node", return_type="raw"),
        )
        explanation = explainer(x, edge_index, index=10)

    Args:
        protocol: How an edge is reduced: `removal`, `weight`, `coefficient`, `authors`, or a `ReductionProtocol`.
        normalize: Divide the mask by its largest absolute value.
    """

    def __init__(self, protocol: str | ReductionProtocol = DEFAULT_PROTOCOL, normalize: bool = False) -> None:
        super().__init__(normalize=normalize, method=Occlusion(protocol))


def _pair_counts(subject: Subject, targets: Tensor) -> Tensor:
    """Return an upper bound of the number of pairs of each target."""

    graph, batch = subject.graph, subject.batch
    if batch is None:
        roots = subject.roots(targets, torch.float32)
        return roots.sums(frontier_bound(graph, subject.num_layers + 2)).clamp(max=float(graph.num_edges))
    return batch[graph.destination].bincount(minlength=subject.num_targets)[targets].float()
