"""Occlusion, the exact effect of each edge; edges beyond the computation tree; several edges deleted at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution.explainer import TreeExplainer
from attree.attribution.flows import frontier_bound
from attree.attribution.method import AttributionMethod, as_subject
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.attribution.subgraphs import root_pairs, subject_pairs
from attree.errors import expect, expect_instance, expect_ints, expect_memory
from attree.faithfulness.effect_measures import Reduction
from attree.faithfulness.engine_choice import SET_ENGINES, Effects, Reducer
from attree.faithfulness.protocol import PROTOCOLS, ReductionProtocol, check_protocols, resolve_protocol
from attree.subject import Subject
from attree.subject.missed_by_attention import follows_all_nodes, why_beyond
from attree.subject.target_roots import Targets
from attree.tensors.arrays import Rows, expand, pointers, row_of
from attree.tensors.memory import REDUCTION_MEMORY, chunk_bounds

MOST_EDGES = 5_000
"""In a graph with more edges than this, edges beyond the tree are not measured if each needs a pass of its own."""


@dataclass(frozen=True)
class BeyondTree:
    """What is known of edges that can affect targets, but are not among their pairs.

    Attributes:
        reduction: The effects on the pairs, and on all further pairs of a target and an edge that has an effect on it.
        count: Number of the further pairs that have an effect.
        largest: The largest size of an effect among the further pairs.
        is_complete: Whether all edges that can have an effect were measured.
    """

    reduction: Reduction
    count: int = 0
    largest: float = 0.0
    is_complete: bool = True

    def sentence(self, subject: Subject) -> str | None:
        """Say why and how far a model reads beyond its layers, for a warning; None if nothing was found."""
        if self.is_complete and not self.count:
            return None
        if not subject.layers.runs_on_data:
            return self._beyond_graph(subject)
        hops = f"the {subject.num_layers} hops" if subject.num_layers > 1 else "the hop"
        layers = "attention layers" if subject.layers.has_attention else "layers"
        reason = f"{subject.call.name} reads beyond {hops} of its {layers}: {why_beyond(subject)}."
        if not self.is_complete:
            return (
                f"{reason} The graph has more than {MOST_EDGES:,} edges, so edges farther away were not measured; some "
                "of them may matter."
            )
        many = f"{self.count} edges beyond the computation tree affect" if self.count > 1 else "One edge beyond the "
        many = many if self.count > 1 else f"{many}computation tree affects"
        scores = "scores of attention" if subject.layers.has_attention else "walks along the layers"
        walk = "GAtt walks to them" if follows_all_nodes(subject) else f"{scores} leave them out"
        return f"{reason} {many} the prediction, by up to {self.largest:.3g}, and {walk}."

    def _beyond_graph(self, subject: Subject) -> str:
        """Say the same of a model whose layers run on other nodes or edges: all edges of a target's graph are pairs."""
        if not self.is_complete:
            return (
                f"The graph has more than {MOST_EDGES:,} edges, so edges of other graphs were not measured; some may "
                f"matter where {subject.call.name} merges or drops nodes."
            )
        edges = f"{self.count} edges" if self.count > 1 else "One edge"
        return (
            f"{edges} of other graphs of the batch affect the prediction, by up to {self.largest:.3g}: "
            f"{subject.call.name} does not keep the graphs of a batch apart, such as where it sorts equal scores."
        )


def reduce_all(
    effects: Effects, subject: Subject, pairs: Pairs, protocol: ReductionProtocol, with_probability: bool = False
) -> BeyondTree:
    """Reduce the edges of all pairs, and all further edges that can affect their targets.

    Args:
        effects: The effects of a forward pass; the reduction of all these pairs is kept there, too.
        subject: The subject to explain.
        pairs: The pairs of some targets, as `subject_pairs` returns them.
        protocol: The reduction protocol.
        with_probability: Also return the class probabilities after each reduction.
    """
    reduction = effects.reduce(pairs, protocol, with_probability)
    reach = effects.reach(protocol)
    if reach is not None and (subject.level == "graph" or reach <= subject.num_layers):
        return BeyondTree(reduction)
    graph = subject.graph
    if reach is None:
        if graph.num_edges > MOST_EDGES:
            return BeyondTree(reduction, is_complete=False)
        used = _used_edges(subject)
        owner = torch.arange(pairs.targets.numel(), device=graph.device).repeat_interleave(used.numel())
        edges = used.repeat(pairs.targets.numel())
    else:
        further = root_pairs(graph, subject.roots(pairs.targets, torch.float32), reach, only_flows=True)
        is_used = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
        is_used[_used_edges(subject)] = True
        owner, edges = further.owner[is_used[further.edges]], further.edges[is_used[further.edges]]
    is_new = ~torch.isin(owner * graph.num_edges + edges, pairs.owner * graph.num_edges + pairs.edges)
    others = _pairs_like(pairs, owner[is_new], edges[is_new])
    if not len(others):
        return BeyondTree(reduction)
    measured = effects.reduce(others, protocol, with_probability)
    affects = measured.delta_pc.isnan() | (measured.delta_pc != 0) | (measured.delta_ne.nan_to_num(0.0) != 0)
    sizes = measured.delta_pc[affects].abs()
    merged = _merged(reduction, measured, affects)
    effects.keep(merged, protocol)
    return BeyondTree(merged, int(affects.sum()), float(sizes.max()) if sizes.numel() else 0.0)


def _used_edges(subject: Subject) -> Tensor:
    """Return the ids of the edges of the data, and of the self-loops that some layer uses."""
    graph, present = subject.graph, subject.layers.present
    if any(mask is None for mask in present):
        return torch.arange(graph.num_edges, device=graph.device)
    used = torch.stack([mask for mask in present if mask is not None]).any(dim=0)
    used[: graph.num_proper_edges] = True
    return used.nonzero().view(-1)


def _pairs_like(pairs: Pairs, owner: Tensor, edges: Tensor) -> Pairs:
    """Return other pairs of the same targets, none of which carries a flow."""
    order = owner.argsort(stable=True)
    ptr = pointers(owner.bincount(minlength=pairs.targets.numel()))
    return replace(pairs, ptr=ptr, edges=edges[order], flow=torch.zeros_like(edges, dtype=torch.bool))


def _merged(first: Reduction, second: Reduction, affects: Tensor) -> Reduction:
    """Return one reduction of all pairs of the first, then the chosen pairs of the second, target by target."""
    owner = torch.cat([first.pairs.owner, second.pairs.owner[affects]])
    order = owner.argsort(stable=True)

    def joined(first_values: Tensor, second_values: Tensor) -> Tensor:
        return torch.cat([first_values, second_values[affects]])[order]

    ptr = pointers(owner.bincount(minlength=first.pairs.targets.numel()))
    edges, flow = joined(first.pairs.edges, second.pairs.edges), joined(first.pairs.flow, second.pairs.flow)
    has_probability = first.probability is not None and second.probability is not None
    return Reduction(
        replace(first.pairs, ptr=ptr, edges=edges, flow=flow),
        joined(first.delta_pc, second.delta_pc),
        joined(first.delta_ne, second.delta_ne),
        joined(first.changed, second.changed),
        joined(first.probability, second.probability) if has_probability else None,  # type: ignore[arg-type]
    )


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


def delete_edges(
    subject: Subject,
    pairs: Pairs,
    scores: Mapping[str, Tensor],
    counts: Sequence[int],
    protocol: ReductionProtocol = PROTOCOLS["removal"],
    memory: int = REDUCTION_MEMORY,
) -> dict[str, Tensor]:
    """Return the probability of each target's predicted class with its k highest-scored edges reduced at once.

    Only edges that carry a flow to the target count, because no other edge can change its prediction. If a target has
    fewer than k, all are reduced. Among equal scores, the edge that is listed first goes first.

    Args:
        subject: The subject to explain: a classifier whose outputs depend only on a target's own neighbourhood.
        pairs: The pairs of the targets.
        scores: Scores of all pairs, [P], by name.
        counts: The numbers k.
        protocol: The reduction protocol.
        memory: Bytes of working memory.

    Returns:
        By the same names, probabilities [T, len(counts)] of the class that is predicted with all edges.
    """
    expect_instance(subject, "subject", Subject)
    expect_instance(pairs, "pairs", Pairs)
    expect_instance(protocol, "protocol", ReductionProtocol)
    expect_memory(memory)
    counts = expect_ints(counts, "counts", "integers >= 0")
    expect(len(counts) > 0, "counts", "integers >= 0", "none")
    expect(isinstance(scores, Mapping), "scores", "scores by name", scores)
    for name, values in scores.items():
        expect(values.shape == (len(pairs),), f"scores[{name!r}]", f"of shape [{len(pairs)}]", tuple(values.shape))
    recorded = Reducer(subject, memory, SET_ENGINES).record()
    output, head, rows = recorded.attention.output, subject.head, subject.rows(pairs.targets)
    expect(head.mode != "regression", "subject", "one that predicts classes", "one that predicts a number")
    measured = head.measured(output)
    before = head.logits(output, measured)[rows]
    predicted = before.argmax(dim=-1)
    targets = torch.arange(pairs.targets.numel(), device=pairs.edges.device)
    owner = row_of(torch.full_like(targets, len(counts)))
    probabilities = {}
    for name, values in scores.items():
        after = recorded.reduce_sets(pairs, owner, _highest(pairs, values, counts), protocol)
        measured_of_sets = None if measured is None else measured[rows[owner]]
        probability = head.logits(after, measured_of_sets).softmax(dim=-1)
        probabilities[name] = probability.gather(1, predicted[owner].unsqueeze(1)).view(-1, len(counts))
    return probabilities


def _highest(pairs: Pairs, scores: Tensor, counts: Sequence[int]) -> Rows:
    """Return the k highest-scored edges of each target for each number k, as consecutive sets."""
    flow = pairs.flow.nonzero().view(-1)
    owner = pairs.owner[flow]
    # Edges with a score of NaN go last.
    strength = scores[flow].nan_to_num(nan=-torch.inf)
    order = strength.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]
    ranked, sizes = pairs.edges[flow[order]], owner.bincount(minlength=pairs.targets.numel())
    begin = pointers(sizes)[:-1]
    counts_taken = torch.minimum(sizes.unsqueeze(1), torch.tensor(counts, device=sizes.device)).view(-1)
    first = begin.unsqueeze(1).expand(-1, len(counts)).reshape(-1)
    ptr = pointers(counts_taken)
    which, place = expand(ptr, torch.arange(counts_taken.numel(), device=counts_taken.device))
    return Rows(ptr, ranked[first[which] + place - ptr[which]])
