"""What a call explains of a run: which nodes or graphs, and how their rows are made, some at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property

import pyarrow as pa
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from attree.attention import Graph
from attree.attribution import METHODS, AttributionMethod, FlowMethod, GAtt, Random
from attree.attribution.flows import frontier_bound
from attree.attribution.subgraphs import SubgraphScorer
from attree.data import GraphDataModule, GroundTruth, NodeDataModule
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.evaluation import Evaluation
from attree.explain_run.parse_targets import asks_for_errors, parse_targets
from attree.explain_run.rows import ScoredRows, SubgraphRows, SubjectRows
from attree.faithfulness import ReductionProtocol
from attree.models import GraphClassifier
from attree.runs.load_run import FinishedRun
from attree.subject import Head, Subject
from attree.tensors.memory import chunk_bounds

LOGITS = Head("multiclass_classification", "raw")
GRAPHS_AT_ONCE = 1024
"""Graphs in one forward pass where only their predictions are asked for."""


class Explained(ABC):
    """Targets of a run, and their rows.

    Attributes:
        ids: What the targets are called: nodes, or positions of graphs in the dataset.
        labels: The true class of each.
        truth: True edges of nodes that have some.
        methods: The attribution methods.
        protocols: The reduction protocols.
        graphs: What the network runs on.
        class_names: What classes are called, if that is known.
        node_types: What one-hot features of nodes stand for, if that is known.
    """

    truth: GroundTruth | None = None
    ids: Tensor
    labels: Tensor
    graphs: Sequence[Data]
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None

    def __init__(self, methods: Mapping[str, AttributionMethod], protocols: Sequence[ReductionProtocol]) -> None:
        self.methods = methods
        self.protocols = protocols

    @property
    @abstractmethod
    def subject(self) -> Subject:
        """All targets in one subject."""

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """The targets as the subject numbers them."""

    def sample(self) -> Subject:
        """All targets, or enough of them to see what attention misses."""
        return self.subject

    @property
    def first_nodes(self) -> Tensor | None:
        """Where targets are graphs of a batch: the number that the nodes of each count from."""
        return None

    def only(self, part: Tensor) -> Explained:
        """Some of the targets.

        Args:
            part: Their positions among all.
        """
        some = copy(self)
        some.ids, some.labels = self.ids[part], self.labels[part]
        return some

    @abstractmethod
    def sizes(self) -> Tensor:
        """At least how many rows each target has room for, [T]."""

    @abstractmethod
    def table(self, begin: int, end: int) -> pa.Table:
        """The rows of the targets `begin` to `end`."""

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Which targets make each part: as many as have at most so many rows, or one."""
        return chunk_bounds(self.sizes(), rows)

    def evaluated_table(self, evaluation: Evaluation, begin: int, end: int) -> pa.Table:
        """As `table`, of what an evaluation of all targets has found."""
        pairs, part = evaluation.pairs, torch.arange(begin, end)
        inside = (pairs.owner >= begin) & (pairs.owner < end)
        rows = ScoredRows.of(pairs, evaluation.pair_scores, evaluation.reductions).only(inside)
        rows = ScoredRows(pairs.of_targets(part), rows.columns)
        if not self.protocols:
            rows = rows.only(rows.pairs.flow)
        first = self.first_nodes
        return rows.table(self.ids[begin:end], None if first is None else first[begin:end])


class ExplainedNodes(Explained):
    """Nodes of one graph.

    Args:
        run: The run.
        data: Its data.
        text: Which nodes, as `parse_targets` reads them.
        seed: Seed of random ones.
        methods: The attribution methods.
        protocols: The reduction protocols.
        by_neighbourhood: Never run the network on the whole graph.
    """

    def __init__(
        self,
        run: FinishedRun,
        data: NodeDataModule,
        text: str,
        seed: int,
        methods: Mapping[str, AttributionMethod],
        protocols: Sequence[ReductionProtocol],
        by_neighbourhood: bool = False,
    ) -> None:
        super().__init__(methods, protocols)
        graph = data.graph
        self.graphs = [graph]
        self.truth = data.truth
        self.class_names, self.node_types = data.class_names, data.node_types
        self._subject = Subject.of(run.net, graph.x, graph.edge_index, level="node", head=LOGITS)
        self._by_neighbourhood = by_neighbourhood
        wrong = None
        if asks_for_errors(text):
            expect(not by_neighbourhood, "targets", "named or random ones with --by_neighbourhood", text)
            wrong = (self._subject.attention.output.argmax(dim=-1) != graph.y).nonzero().view(-1)
        true = None if data.truth is None else data.truth.targets
        self.ids = parse_targets(text, int(graph.num_nodes or 0), wrong, true, seed)
        self.labels = graph.y[self.ids]

    @property
    def subject(self) -> Subject:
        return self._subject

    @property
    def positions(self) -> Tensor:
        return self.ids

    def sizes(self) -> Tensor:
        subgraphs = self._subgraph_rows
        depth = self.subject.num_layers if subgraphs is None else _depth(subgraphs)
        # Every edge that enters a node fewer than so many steps away; the pairs have those of one step more.
        steps = depth + 1 + bool(self.protocols)
        bound = frontier_bound(self.subject.graph, steps)[self.ids]
        return bound.clamp(max=float(self.subject.graph.num_edges))

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
                f"Expected argument `methods` to be some of {able} with --by_neighbourhood, as others need one pass "
                f"over the whole graph, but got {odd}."
            )
        graph: Graph = self.subject.graph
        x = self.subject.call.x
        scorers = {
            name: SubgraphScorer(method, self.subject.model, x, graph, self.ids[:1])
            for name, method in (flows or {"gatt": GAtt()}).items()
        }
        return SubgraphRows(scorers, random)


class ExplainedGraphs(Explained):
    """Graphs of a dataset; nodes are numbered within their graph.

    Args:
        module: The network.
        data: The run's data.
        text: Which graphs, as `parse_targets` reads them.
        seed: Seed of random ones.
        methods: The attribution methods.
        protocols: The reduction protocols.
    """

    def __init__(
        self,
        module: GraphClassifier,
        data: GraphDataModule,
        text: str,
        seed: int,
        methods: Mapping[str, AttributionMethod],
        protocols: Sequence[ReductionProtocol],
    ) -> None:
        super().__init__(methods, protocols)
        self._module = module
        self.class_names, self.node_types = data.class_names, data.node_types
        wrong = _misclassified(module, data.graphs) if asks_for_errors(text) else None
        self.ids = parse_targets(text, len(data.graphs), wrong, None, seed)
        self.graphs = [data.graphs[position] for position in self.ids.tolist()]
        self.labels = torch.cat([graph.y.view(-1)[:1] for graph in self.graphs])

    @cached_property
    def subject(self) -> Subject:
        return self._subject_of(self.graphs)

    def sample(self) -> Subject:
        return self._subject_of(self.graphs[:GRAPHS_AT_ONCE])

    def only(self, part: Tensor) -> Explained:
        some = super().only(part)
        vars(some).pop("subject", None)  # it has all graphs
        some.graphs = [self.graphs[position] for position in part.tolist()]
        return some

    @property
    def positions(self) -> Tensor:
        return torch.arange(len(self.graphs))

    @property
    def first_nodes(self) -> Tensor:
        return _first_nodes(self.graphs)

    def sizes(self) -> Tensor:
        return torch.tensor([float((graph.num_nodes or 0) + graph.num_edges) for graph in self.graphs])

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        bounds = super().bounds(rows)
        trained = [name for name, method in self.methods.items() if method.needs_training]
        if trained and len(bounds) > 1:
            raise ArgumentError(
                f"Expected argument `methods` to be some that explain graphs one by one, or all graphs to fit one part "
                f"(--part_rows {int(self.sizes().sum())}), but got {', '.join(trained)}, fitted to all at once."
            )
        return bounds

    def table(self, begin: int, end: int) -> pa.Table:
        graphs = self.graphs[begin:end]
        rows = SubjectRows(self._subject_of(graphs), self.methods, self.protocols).of(torch.arange(end - begin))
        return rows.table(self.ids[begin:end], _first_nodes(graphs))

    def _subject_of(self, graphs: Sequence[Data]) -> Subject:
        batch = Batch.from_data_list(list(graphs))
        return Subject.of(
            self._module, batch.x, batch.edge_index, batch=batch.batch, readout=self._module.readout, head=LOGITS
        )


def explained_of(
    run: FinishedRun,
    text: str,
    seed: int,
    methods: Mapping[str, AttributionMethod],
    protocols: Sequence[ReductionProtocol],
    by_neighbourhood: bool = False,
) -> Explained:
    """What a call explains of a run; the arguments are those of `ExplainedNodes`."""
    data, module = run.data, run.module
    if isinstance(data, NodeDataModule):
        return ExplainedNodes(run, data, text, seed, methods, protocols, by_neighbourhood)
    if isinstance(data, GraphDataModule) and isinstance(module, GraphClassifier):
        expect(not by_neighbourhood, "by_neighbourhood", "used where nodes are explained", "a run on many graphs")
        return ExplainedGraphs(module, data, text, seed, methods, protocols)
    raise UnsupportedModelError(
        f"Expected a run on one of attree's data modules, but got {type(data).__name__} with {type(module).__name__}."
    )


def _depth(rows: SubgraphRows) -> int:
    return next(iter(rows.scorers.values())).num_layers


def _first_nodes(graphs: Sequence[Data]) -> Tensor:
    sizes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
    return sizes.cumsum(0) - sizes


@torch.no_grad()
def _misclassified(module: GraphClassifier, graphs: Sequence[Data]) -> Tensor:
    wrong = []
    for begin in range(0, len(graphs), GRAPHS_AT_ONCE):
        batch = Batch.from_data_list(list(graphs[begin : begin + GRAPHS_AT_ONCE]))
        predicted = module(batch.x, batch.edge_index, batch.batch, batch.num_graphs).argmax(dim=-1)
        wrong.append((predicted != batch.y).nonzero().view(-1) + begin)
    return torch.cat(wrong)
