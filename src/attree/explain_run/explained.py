"""What a call explains of a run: which nodes, pairs or graphs, and how their rows are made, some at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from attree.attention import Graph
from attree.attribution import METHODS, AttributionMethod, FlowMethod, GAtt, Random
from attree.attribution.flows import frontier_bound
from attree.attribution.subgraphs import SubgraphScorer
from attree.callbacks.explained_data import ExplainedData
from attree.callbacks.find_data import find_module_data
from attree.callbacks.module_subject import find_subject, known_head
from attree.data import GroundTruth
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.evaluation import Evaluation
from attree.evaluation.evaluator import predicted_classes
from attree.explain_run.call import asks_for_errors, parse_targets
from attree.explain_run.rows import ScoredRows, SubgraphRows, SubjectRows
from attree.faithfulness import ReductionProtocol
from attree.models import Classifier, GraphClassifier
from attree.runs.load_run import FinishedRun
from attree.subject import Head, Subject
from attree.subject.labels import labels_of
from attree.tensors.memory import chunk_bounds

LOGITS = Head("multiclass_classification", "raw")
GRAPHS_AT_ONCE = 1024
"""Graphs in one forward pass where only their predictions are asked for."""


class ExplainedTargets(ABC):
    """Targets of a run, and their rows.

    Attributes:
        ids: What the targets are called: nodes, columns of pairs, or positions of graphs in the dataset.
        labels: The true class of each.
        truth: True edges of nodes that have some.
        methods: The attribution methods.
        protocols: The reduction protocols.
        graphs: What the network runs on.
        class_names: What classes are called, if that is known.
        node_types: What one-hot features of nodes stand for, if that is known.
        name: What the dataset is called, if that is known.
    """

    truth: GroundTruth | None = None
    ids: Tensor
    labels: Tensor
    graphs: Sequence[Data]
    class_names: Sequence[str] | None = None
    node_types: Sequence[str] | None = None
    name: str | None = None

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
        """For graphs in a batch, the id of each graph's first node; None otherwise."""
        return None

    def only(self, part: Tensor) -> ExplainedTargets:
        """Some of the targets.

        Args:
            part: Their positions among all.
        """
        some = copy(self)
        some.ids, some.labels = self.ids[part], self.labels[part]
        return some

    @abstractmethod
    def sizes(self) -> Tensor:
        """An upper bound of each target's number of rows, [T]."""

    @abstractmethod
    def predictions(self) -> Tensor | None:
        """Class probabilities of the targets, [T, classes]; None where labels or numbers are predicted."""

    @property
    def has_truth(self) -> Tensor | None:
        """Whether each target has ground truth, [T]; None if the data has none."""
        return None if self.truth is None else torch.isin(self.ids, self.truth.targets.to(self.ids))

    @abstractmethod
    def table(self, begin: int, end: int) -> pa.Table:
        """The rows of the targets `begin` to `end`."""

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Which targets make each part: as many as have at most so many rows, or one."""
        return chunk_bounds(self.sizes(), rows)

    def evaluated_table(self, evaluation: Evaluation, begin: int, end: int) -> pa.Table:
        """As `table`, but taken from an evaluation of all targets."""
        pairs, part = evaluation.pairs, torch.arange(begin, end)
        inside = (pairs.owner >= begin) & (pairs.owner < end)
        rows = ScoredRows.of(pairs, evaluation.pair_scores, evaluation.reductions).only(inside)
        rows = ScoredRows(pairs.of_targets(part), rows.columns)
        if not self.protocols:
            rows = rows.only(rows.pairs.flow)
        first = self.first_nodes
        return rows.table(self.ids[begin:end], None if first is None else first[begin:end])


class ExplainedNodes(ExplainedTargets):
    """Nodes of one graph, or pairs of its nodes. In a heterogeneous graph, nodes of one type, numbered within it.

    Args:
        subject: What is explained.
        data: The run's data.
        text: Which nodes or pairs, as `parse_targets` reads them.
        seed: Seed of random ones.
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
        labels = _labels(graph.get("y") if data.has_plain_nodes else labels_of(graph, subject), number)
        if asks_for_errors(text):
            expect(not by_neighbourhood, "targets", "named or random ones with --by_neighbourhood", text)
            wrong = ((_predicted(subject) != labels) & (labels >= 0)).nonzero().view(-1)
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
        # Every edge that enters a node fewer than so many steps away; the pairs have those of one step more.
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


class ExplainedGraphs(ExplainedTargets):
    """Graphs of a dataset; nodes are numbered within their graph.

    Args:
        make_subject: Makes the subject of a batch of graphs.
        data: The run's data.
        text: Which graphs, as `parse_targets` reads them.
        seed: Seed of random ones.
        methods: The attribution methods.
        protocols: The reduction protocols.
    """

    def __init__(
        self,
        make_subject: Callable[[Batch], Subject],
        data: ExplainedData,
        text: str,
        seed: int,
        methods: Mapping[str, AttributionMethod],
        protocols: Sequence[ReductionProtocol],
    ) -> None:
        super().__init__(methods, protocols)
        self._make_subject = make_subject
        self.class_names, self.node_types, self.name = data.class_names, data.node_types, data.name
        wrong = _misclassified(make_subject, data.graphs) if asks_for_errors(text) else None
        self.ids = parse_targets(text, len(data.graphs), wrong, None, seed)
        self.graphs = [data.graphs[position] for position in self.ids.tolist()]
        self.labels = torch.cat([_labels(graph.get("y"), 1) for graph in self.graphs])

    @cached_property
    def subject(self) -> Subject:
        return self._subject_of(self.graphs)

    def sample(self) -> Subject:
        return self._subject_of(self.graphs[:GRAPHS_AT_ONCE])

    def only(self, part: Tensor) -> ExplainedTargets:
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

    @torch.no_grad()
    def predictions(self) -> Tensor | None:
        parts = []
        for begin in range(0, len(self.graphs), GRAPHS_AT_ONCE):
            subject = self._subject_of(self.graphs[begin : begin + GRAPHS_AT_ONCE])
            part = predicted_classes(subject, subject.targets("all"))
            if part is None:
                return None
            parts.append(part)
        return torch.cat(parts)

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
        return self._make_subject(Batch.from_data_list(list(graphs)))


def explained_of(
    run: FinishedRun,
    text: str,
    seed: int,
    methods: Mapping[str, AttributionMethod],
    protocols: Sequence[ReductionProtocol],
    by_neighbourhood: bool = False,
) -> ExplainedTargets:
    """What a call explains of a run: whatever `ExplainCallback` finds in its module and its data module.

    Args:
        run: The run.
        text: Which nodes, pairs or graphs, as `parse_targets` reads them.
        seed: Seed of random ones.
        methods: The attribution methods.
        protocols: The reduction protocols.
        by_neighbourhood: Never run the network on the whole graph.
    """
    module, data = run.module, find_module_data(run.data, seed)

    def make_subject(graph: Data) -> Subject:
        if isinstance(module, GraphClassifier):
            return Subject.of(module, graph.x, graph.edge_index, batch=graph.batch, readout=module.readout, head=LOGITS)
        return find_subject(
            module,
            graph,
            head=known_head(module),
            num_classes=data.count_classes(),
            only_links=data.only_links,
            node_type=data.node_type,
        )

    if not data.is_one_graph:
        expect(not by_neighbourhood, "by_neighbourhood", "used where nodes are explained", "a run on many graphs")
        explained: ExplainedTargets = ExplainedGraphs(make_subject, data, text, seed, methods, protocols)
        _expect_level(explained.sample(), "graph", module)
        return explained
    graph = data.graphs[0]
    if by_neighbourhood:
        found = "a heterogeneous graph" if isinstance(graph, HeteroData) else "pairs of nodes"
        expect(data.has_plain_nodes, "by_neighbourhood", "used where nodes of one type are explained", found)
    if (isinstance(module, Classifier) and data.has_plain_nodes) or by_neighbourhood:  # not run to look at its outputs
        subject = Subject.of(run.net, graph.x, graph.edge_index, level="node", head=LOGITS)
    else:
        subject = make_subject(graph)
        if data.has_links and subject.level == "node":  # the graph has pairs, which this module does not predict
            data = replace(data, has_links=False)
        _expect_level(subject, "edge" if data.has_links else "node", module)
    return ExplainedNodes(subject, data, text, seed, methods, protocols, by_neighbourhood)


def _expect_level(subject: Subject, level: str, module: nn.Module) -> None:
    """Refuse what has no targets by number: nodes of many graphs, and the one graph as a whole."""
    if subject.level != level:
        expected = {
            "graph": "predict classes of graphs, as its data has many",
            "edge": "predict pairs of nodes, as its data asks for them",
        }.get(level, "predict classes of nodes")
        raise UnsupportedModelError(
            f"Expected {type(module).__name__} to {expected}, but it predicts one row a {subject.level}: use "
            "attree.evaluate and attree.explain on it."
        )


def _predicted(subject: Subject) -> Tensor:
    """The predicted classes."""
    expect(subject.head.mode != "regression", "targets", "others than errors, as numbers are predicted", "errors")
    return subject.head.logits(subject.output).argmax(dim=-1)


def _labels(y: Any, number: int) -> Tensor:
    """True classes; -1 where the data has none that are classes."""
    if isinstance(y, Tensor) and y.is_floating_point() and bool((y == y.round()).all()):
        y = y.long()  # PyG labels pairs by 0.0 and 1.0
    if isinstance(y, Tensor) and not y.is_floating_point() and y.numel() >= number and y.numel() == y.shape[0]:
        return y.view(-1)[:number] if number == 1 else y.view(-1)
    return torch.full((number,), -1)


def _depth(rows: SubgraphRows) -> int:
    return next(iter(rows.scorers.values())).num_layers


def _first_nodes(graphs: Sequence[Data]) -> Tensor:
    sizes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
    return sizes.cumsum(0) - sizes


@torch.no_grad()
def _misclassified(make_subject: Callable[[Batch], Subject], graphs: Sequence[Data]) -> Tensor:
    wrong = []
    for begin in range(0, len(graphs), GRAPHS_AT_ONCE):
        batch = Batch.from_data_list(list(graphs[begin : begin + GRAPHS_AT_ONCE]))
        wrong.append((_predicted(make_subject(batch)) != batch.y.view(-1)).nonzero().view(-1) + begin)
    return torch.cat(wrong)
