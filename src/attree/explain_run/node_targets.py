"""Targets of `attree explain` that are nodes of one graph, or pairs of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import pyarrow as pa
import torch
from torch import Tensor

from attree.attention import Graph
from attree.attribution import METHODS, AttributionMethod, FlowMethod, GAtt, Random
from attree.attribution.flows import frontier_bound
from attree.attribution.subgraphs import SubgraphScorer
from attree.callbacks.explained_data import ExplainedData
from attree.errors import ArgumentError, expect
from attree.evaluation.target_labels import predicted_classes
from attree.explain_run.call import asks_for_errors, parse_targets
from attree.explain_run.rows import SubgraphRows, SubjectRows
from attree.explain_run.targets import ExplainedTargets, predicted_labels, true_labels
from attree.faithfulness import ReductionProtocol
from attree.subject import Subject
from attree.subject.labels import labels_of


class ExplainedNodes(ExplainedTargets):
    """Nodes of one graph, or pairs of its nodes. Of a heterogeneous graph: nodes of one type, numbered within the type.

    Args:
        subject: The subject of the whole graph.
        data: The run's data.
        text: The nodes or pairs, as in `--targets`; see `parse_targets`.
        seed: Seed of random targets.
        methods: The attribution methods.
        protocols: The reduction protocols.
        by_neighbourhood: Never run the network on the whole graph.
    """

    def __init__(
        self,
        subject: Subject,
        data: ExplainedData,
        text: str,
        seed: int,
        methods: Mapping[str, AttributionMethod],
        protocols: Sequence[ReductionProtocol],
        by_neighbourhood: bool = False,
    ) -> None:
        super().__init__(methods, protocols)
        graph = data.graphs[0]
        self.graphs = [graph]
        self.truth, self.name = data.truth, data.name
        self.class_names, self.node_types = data.class_names, data.node_types
        self._subject = subject
        self._by_neighbourhood = by_neighbourhood
        wrong, number = None, data.num_targets
        labels = true_labels(graph.get("y") if data.has_plain_nodes else labels_of(graph, subject), number)
        if asks_for_errors(text):
            expect(not by_neighbourhood, "targets", "named or random ones with --by_neighbourhood", text)
            wrong = ((predicted_labels(subject) != labels) & (labels >= 0)).nonzero().view(-1)
        true = None if data.truth is None else data.truth.targets
        self.ids = parse_targets(text, number, wrong, true, seed)
        self.labels = labels[self.ids]

    @property
    def subject(self) -> Subject:
        return self._subject

    @property
    def positions(self) -> Tensor:
        return self.ids

    def sizes(self) -> Tensor:
        subgraphs = self._subgraph_rows
        depth = self.subject.num_layers if subgraphs is None else _depth(subgraphs)
        # All edges into nodes fewer than `steps` hops away. With protocols, pairs reach one hop further.
        steps = depth + 1 + bool(self.protocols)
        bound = frontier_bound(self.subject.graph, steps)
        if subgraphs is None:
            roots = self.subject.roots(self.ids)
            sizes = torch.zeros(self.ids.numel(), dtype=bound.dtype).index_add(0, roots.owner, bound[roots.node])
        else:
            sizes = bound[self.ids]
        return sizes.clamp(max=float(self.subject.graph.num_edges))

    def predictions(self) -> Tensor | None:
        return predicted_classes(self.subject, self.subject.targets(self.ids))

    def table(self, begin: int, end: int) -> pa.Table:
        targets = self.ids[begin:end]
        if self._subgraph_rows is not None:
            return self._subgraph_rows.of(targets, list(self.methods)).table()
        return self._rows.of(targets).table()

    @cached_property
    def _rows(self) -> SubjectRows:
        return SubjectRows(self.subject, self.methods, self.protocols)

    @cached_property
    def _subgraph_rows(self) -> SubgraphRows | None:
        if not self._by_neighbourhood:
            return None
        expect(not self.protocols, "protocols", "none with --by_neighbourhood", [str(one) for one in self.protocols])
        random = {name: method for name, method in self.methods.items() if isinstance(method, Random)}
        others = {name: method for name, method in self.methods.items() if name not in random}
        flows = {name: method for name, method in others.items() if isinstance(method, FlowMethod)}
        if len(flows) < len(others):
            able = ", ".join(name for name, method in METHODS.items() if issubclass(method, FlowMethod))
            odd = ", ".join(name for name in others if name not in flows)
            raise ArgumentError(
                f"Expected argument `methods` to be among {able} with --by_neighbourhood, as other methods need a pass "
                f"over the whole graph, but got {odd}."
            )
        graph: Graph = self.subject.graph
        x = self.subject.call.x
        scorers = {
            name: SubgraphScorer(method, self.subject.model, x, graph, self.ids[:1])
            for name, method in (flows or {"gatt": GAtt()}).items()
        }
        return SubgraphRows(scorers, random)


def _depth(rows: SubgraphRows) -> int:
    return next(iter(rows.scorers.values())).num_layers
