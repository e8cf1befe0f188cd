"""Rows of the dataset: an edge's scores for a target by every method, and the effect of reducing the edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from attree.attribution import Attribution, AttributionMethod, FlowMethod, GAtt, Pairs, Random, subject_pairs
from attree.attribution.baselines import hashed_uniform
from attree.attribution.result import edge_columns
from attree.attribution.subgraphs import SubgraphScorer
from attree.faithfulness import Effects, Reducer, Reduction, ReductionProtocol, score_pairs
from attree.subject import Subject

TARGET = "target"
"""Name of the first column. The columns of `edge_columns`, which name an edge, follow it."""


@dataclass(frozen=True)
class ScoredRows:
    """Rows of some targets: one column per method and three per protocol.

    Attributes:
        pairs: The (target, edge) pair of each row.
        columns: The columns by name.
    """

    pairs: Pairs
    columns: dict[str, Tensor]

    @classmethod
    def of(cls, pairs: Pairs, scores: Mapping[str, Tensor], reductions: Mapping[str, Reduction]) -> ScoredRows:
        """Make rows from scores and reductions of the same pairs."""
        columns = dict(scores)
        for protocol, reduction in reductions.items():
            columns[f"dpc_{protocol}"] = reduction.delta_pc
            columns[f"dne_{protocol}"] = reduction.delta_ne
            columns[f"changed_{protocol}"] = reduction.changed
        return cls(pairs, columns)

    def only(self, mask: Tensor) -> ScoredRows:
        """Return the rows that a mask selects."""
        return ScoredRows(self.pairs.only(mask), {name: values[mask] for name, values in self.columns.items()})

    def table(self, ids: Tensor | None = None, first_node: Tensor | None = None) -> pa.Table:
        """Return the rows as an Arrow table.

        Args:
            ids: Ids of the targets, in the order of `pairs.targets`; None takes `pairs.targets`.
            first_node: For graphs in a batch, the id of each graph's first node; None otherwise.
        """
        pairs, owner = self.pairs, self.pairs.owner
        whole = pairs.graph.whole_nodes(pairs.targets)
        columns = {TARGET: (whole if ids is None else ids).cpu()[owner.cpu()].numpy()}
        columns |= edge_columns(pairs.graph, pairs.edges)
        if first_node is not None:
            first = first_node.cpu()[owner.cpu()].numpy()
            columns |= {end: columns[end] - first for end in ("source", "destination")}
        columns |= {name: values.detach().cpu().numpy() for name, values in self.columns.items()}
        return pa.table(columns)


class SubjectRows:
    """Makes the rows of targets with a model that runs on the whole graph.

    With protocols, a target has a row for every edge of its neighbourhood. Without protocols, it has a row for every
    edge that carries a flow to it.

    Args:
        subject: The subject.
        methods: The attribution methods by name.
        protocols: The reduction protocols; may be empty.
    """

    def __init__(
        self, subject: Subject, methods: Mapping[str, AttributionMethod], protocols: Sequence[ReductionProtocol]
    ) -> None:
        self.subject = subject
        self.methods = methods
        self.protocols = protocols

    def of(self, targets: Tensor) -> ScoredRows:
        """Return the rows of some targets."""
        if not self.protocols:
            return self._flows(targets)
        effects = self._effects
        pairs = subject_pairs(self.subject, targets)
        reductions = {protocol.name: effects.reduce(pairs, protocol) for protocol in self.protocols}
        scores = {name: score_pairs(method, self.subject, pairs, effects) for name, method in self.methods.items()}
        effects.forget()
        return ScoredRows.of(pairs, scores, reductions)

    def _flows(self, targets: Tensor) -> ScoredRows:
        """Return the rows of targets without protocols: the scores of all edges that carry a flow to a target."""
        effects = self._effects if any(method.reads_effects for method in self.methods.values()) else None
        subject = self.subject
        flows = {
            name: method.attribute(subject, targets)
            for name, method in self.methods.items()
            if isinstance(method, FlowMethod)
        }
        attribution = next(iter(flows.values())) if flows else GAtt().attribute(subject, targets)
        pairs = listed_pairs(attribution, None if subject.level == "graph" else subject.num_layers)
        scores = {
            name: pairs.scores(flows[name]) if name in flows else score_pairs(method, subject, pairs, effects)
            for name, method in self.methods.items()
        }
        if effects is not None:
            effects.forget()
        return ScoredRows(pairs, scores)

    @cached_property
    def _effects(self) -> Effects:
        effects = Reducer(self.subject).record()
        self.subject = self.subject.with_attention(effects.attention)
        return effects


class SubgraphRows:
    """Makes the rows of targets of a graph that is too large for one pass: the model runs on their neighbourhoods.

    Args:
        scorers: Scorers of the methods that read attention, by name of the method.
        random: Random methods by name.
    """

    def __init__(self, scorers: Mapping[str, SubgraphScorer], random: Mapping[str, Random]) -> None:
        self.scorers = scorers
        self.random = random
        self.num_layers = next(iter(scorers.values())).num_layers

    def of(self, targets: Tensor, order: Sequence[str]) -> ScoredRows:
        """Return the rows of some targets, with the methods in the given order."""
        flows = {name: Attribution.concat(list(scorer.stream(targets))) for name, scorer in self.scorers.items()}
        attribution = next(iter(flows.values()))
        pairs = listed_pairs(attribution, self.num_layers)
        scores = {name: pairs.scores(flow_scores) for name, flow_scores in flows.items()}
        target = pairs.targets[pairs.owner]
        for name, method in self.random.items():
            scores[name] = hashed_uniform(method.seed, target, pairs.edges, attribution.scores.dtype)
        return ScoredRows(pairs, {name: scores[name] for name in order})


def strongest_rows(table: pa.Table, method: str, count: int) -> pa.Table:
    """Return the rows of each target's strongest edges, for or against, in their original order. Ties go to the first.

    Args:
        table: Rows, with those of each target together.
        method: The column of scores to rank by, by size; NaN ranks last.
        count: Number of rows to keep per target.
    """
    target, sizes = table[TARGET].to_numpy(), np.abs(table[method].to_numpy())
    sizes = np.where(np.isnan(sizes), -np.inf, sizes)
    begins = np.flatnonzero(np.r_[True, target[1:] != target[:-1]]) if len(target) else np.zeros(0, dtype=np.int64)
    owner = np.repeat(np.arange(len(begins)), np.diff(np.r_[begins, len(target)]))
    order = np.lexsort((-sizes, owner))  # stable
    rank = np.empty(len(target), dtype=np.int64)
    rank[order] = np.arange(len(target)) - begins[owner]
    return table.filter(pa.array(rank < count))


def listed_pairs(attribution: Attribution, num_layers: int | None) -> Pairs:
    """Return the (target, edge) pairs that an attribution lists."""
    flow = torch.ones_like(attribution.edges, dtype=torch.bool)
    return Pairs(attribution.targets, attribution.ptr, attribution.edges, flow, attribution.graph, num_layers)
