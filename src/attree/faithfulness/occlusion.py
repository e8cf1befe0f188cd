"""Occlusion: the exact effect of reducing the attention of each edge, as a method and as a PyG explainer."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

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
from attree.faithfulness.beyond_tree import BeyondTree, reduce_all
from attree.faithfulness.choose import RecordedPass, Reducer
from attree.faithfulness.protocol import ReductionProtocol, check_protocols, resolve_protocol
from attree.faithfulness.reduction import Progress, Reduction
from attree.subject import Subject
from attree.subject.roots import Targets
from attree.tensors.limits import REDUCTION_MEMORY, chunk_bounds

BYTES_PER_PAIR = 128
"""Bytes per pair while its effect is measured; the working memory of the engine comes on top."""

DEFAULT_PROTOCOL = "removal"


class Effects:
    """Effects of reducing edges on the predictions of a subject, with the weights of one forward pass.

    An evaluation compares methods with these effects, and `Occlusion` scores edges by them. Both use the same object,
    so that each effect is measured once.

    Args:
        recorded: The forward pass in which edges are reduced.
    """

    def __init__(self, recorded: RecordedPass) -> None:
        self.recorded = recorded
        self._kept: dict[tuple[int, ReductionProtocol], Reduction] = {}

    @classmethod
    def of(cls, subject: Subject, recorded: RecordedPass | None = None) -> Effects:
        """Return the effects of a subject; they are cached as long as the subject exists.

        Args:
            subject: The subject. Its effects are measured when they are first needed.
            recorded: A forward pass of this subject, if there is one already.
        """
        if recorded is not None:
            _CACHE[subject] = cls(recorded)
        elif subject not in _CACHE:
            _CACHE[subject] = cls(Reducer(subject).record())
        return _CACHE[subject]

    def are_local(self, protocol: ReductionProtocol) -> bool:
        """Whether, as far as is known, only edges that carry a flow to a target can affect it."""
        return self.recorded.reach(protocol) == self.recorded.attention.num_layers

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        progress: Progress | None = None,
        *,
        with_probability: bool = False,
    ) -> Reduction:
        """Reduce the edge of every pair, one at a time; a second call with the same pairs returns the same result.

        Args:
            pairs: The pairs of target and edge.
            protocol: How an edge is reduced.
            progress: Called as `progress(done, total)` with numbers of pairs after each batch of reductions.
            with_probability: Also store the class probabilities after each reduction.
        """
        key = id(pairs), protocol  # a cached reduction holds its pairs, so their id cannot be reused
        kept = self._kept.get(key)
        if kept is not None and (kept.probability is not None or not with_probability):
            return kept
        reduction = self.recorded.reduce(pairs, protocol, with_probability=with_probability, progress=progress)
        self._kept[key] = reduction
        return reduction

    def reduce_all(self, subject: Subject, pairs: Pairs, protocol: ReductionProtocol) -> BeyondTree:
        """Reduce the pairs and all further edges that affect their targets, with the probabilities after each.

        The reduction of all these pairs is kept for methods that score them.
        """
        found = reduce_all(self.recorded, subject, pairs, protocol, with_probability=True)
        self._kept[id(found.reduction.pairs), protocol] = found.reduction
        return found

    def once(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """Return the dPC of every pair, [P], without caching."""
        return self.recorded.effect(pairs, protocol)


_CACHE: WeakKeyDictionary[Subject, Effects] = WeakKeyDictionary()
"""The effects of each subject that is alive."""


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
            effect = effects.once(pairs, protocol)
            if not effects.are_local(protocol):  # the model has other paths than attention: any edge may have an effect
                reduction = reduce_all(
                    effects.recorded, subject, subject_pairs(subject, ids[begin:end]), protocol
                ).reduction
                pairs, effect = reduction.pairs, reduction.delta_pc
                listed = pairs.flow | (effect != 0)
                pairs, effect = pairs.only(listed), effect[listed]
            yield Attribution(self.name, subject.graph, pairs.targets, pairs.ptr, pairs.edges, effect)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        """Return the effect of each pair, [P]; shared with an evaluation that measures the same protocol."""
        subject = as_subject(subject)
        return Effects.of(subject).reduce(pairs, resolve_protocol(self.protocol, subject.model)).delta_pc


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
