"""Edges beyond the computation tree that affect a prediction: for models that read more than attention layers do."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attree.attribution.neighbourhoods import root_pairs
from attree.attribution.pairs import Pairs
from attree.faithfulness.choose import Effects
from attree.faithfulness.protocol import ReductionProtocol
from attree.faithfulness.reduction import Reduction
from attree.subject import Subject
from attree.subject.diagnose import follows_all_nodes, why_beyond
from attree.tensors.ragged import pointers

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
        hops = f"the {subject.num_layers} hops" if subject.num_layers > 1 else "the hop"
        layers = "attention layers" if subject.attention.has_attention else "layers"
        reason = f"{subject.call.name} reads beyond {hops} of its {layers}: {why_beyond(subject)}."
        if not self.is_complete:
            return (
                f"{reason} The graph has more than {MOST_EDGES:,} edges, so edges farther away were not measured; some "
                "of them may matter."
            )
        many = f"{self.count} edges beyond the computation tree affect" if self.count > 1 else "One edge beyond the "
        many = many if self.count > 1 else f"{many}computation tree affects"
        scores = "scores of attention" if subject.attention.has_attention else "walks along the layers"
        walk = "GAtt walks to them" if follows_all_nodes(subject) else f"{scores} leave them out"
        return f"{reason} {many} the prediction, by up to {self.largest:.3g}, and {walk}."


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
    graph, present = subject.graph, subject.attention.present
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
