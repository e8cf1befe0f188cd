"""The explained targets of a run: nodes, pairs of nodes, or graphs, found as `ExplainCallback` finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from attree.attribution import METHODS, FlowMethod, GAtt, Random
from attree.attribution.flows import frontier_bound
from attree.attribution.subgraphs import SubgraphScorer
from attree.callbacks.explained_data import ExplainedData
from attree.callbacks.find_data import find_module_data
from attree.callbacks.module_subject import find_subject, known_head
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.evaluation.target_labels import predicted_classes
from attree.explain_run.rows import SubgraphRows, SubjectRows
from attree.explain_run.targets import (
    ExplainedTargets,
    ExplainRequest,
    needs_predictions,
    parse_targets,
    predicted_labels,
    true_labels,
)
from attree.models import Classifier, GraphClassifier
from attree.runs.load_run import FinishedRun
from attree.subject import Head, Subject
from attree.subject.head import labels_of

LOGITS = Head("multiclass_classification", "raw")

GRAPHS_AT_ONCE = 1024
"""Number of graphs in a forward pass that computes only predictions."""


class ExplainedNodes(ExplainedTargets):
    """Nodes of one graph, or pairs of its nodes. Nodes of a heterogeneous graph are numbered within their type.

    Args:
        subject: The subject of the whole graph.
        data: The run's data.
        request: The user's request.
    """

    def __init__(self, subject: Subject, data: ExplainedData, request: ExplainRequest) -> None:
        super().__init__(data, request)
        graph, number, wrong = data.graphs[0], data.num_targets, None
        self.graphs = [graph]
        self.truth = data.truth
        self._subject = subject
        self._by_neighbourhood = request.by_neighbourhood
        labels = true_labels(graph.get("y") if data.has_plain_nodes else labels_of(graph, subject), number)
        if needs_predictions(request.targets):
            named = "named or random ones with --by_neighbourhood"
            expect(not request.by_neighbourhood, "targets", named, request.targets)
            wrong = ((predicted_labels(subject) != labels) & (labels >= 0)).nonzero().view(-1)
        true = None if data.truth is None else data.truth.targets
        self.ids = parse_targets(request.targets, number, wrong, true, request.seed)
        self.labels = labels[self.ids]

    @property
    def subject(self) -> Subject:
        return self._subject

    @property
    def positions(self) -> Tensor:
        return self.ids

    def sizes(self) -> Tensor:
        """Return an upper bound on each target's number of rows, [T]: the edges in the target's neighbourhood."""
        subgraphs = self._subgraph_rows
        depth = self.subject.num_layers if subgraphs is None else subgraphs.num_layers
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
        """Return the maker of rows that runs the model on neighbourhoods; None without --by_neighbourhood."""
        if not self._by_neighbourhood:
            return None
        expect(not self.protocols, "protocols", "none with --by_neighbourhood", [str(one) for one in self.protocols])
        random = {name: method for name, method in self.methods.items() if isinstance(method, Random)}
        others = {name: method for name, method in self.methods.items() if name not in random}
        flows = {name: method for name, method in others.items() if isinstance(method, FlowMethod)}
        if len(flows) < len(others):
            able = ", ".join(name for name, method in METHODS.items() if issubclass(method, FlowMethod))
            unable = ", ".join(name for name in others if name not in flows)
            raise ArgumentError(
                f"Expected argument `methods` to be among {able} with --by_neighbourhood, as other methods need a pass "
                f"over the whole graph, but got {unable}."
            )
        subject = self.subject
        scorers = {
            name: SubgraphScorer(method, subject.model, subject.call.x, subject.graph, self.ids[:1])
            for name, method in (flows or {"gatt": GAtt()}).items()
        }
        return SubgraphRows(scorers, random)


class ExplainedGraphs(ExplainedTargets):
    """Graphs of a dataset. In the rows, nodes are numbered within their graph.

    Args:
        make_subject: Makes the subject of a batch of graphs.
        data: The run's data.
        request: The user's request.
    """

    def __init__(self, make_subject: Callable[[Batch], Subject], data: ExplainedData, request: ExplainRequest) -> None:
        super().__init__(data, request)
        self._make_subject = make_subject
        wrong = _misclassified(make_subject, data.graphs) if needs_predictions(request.targets) else None
        self.ids = parse_targets(request.targets, len(data.graphs), wrong, None, request.seed)
        self.graphs = [data.graphs[position] for position in self.ids.tolist()]
        self.labels = torch.cat([true_labels(graph.get("y"), 1) for graph in self.graphs])

    @cached_property
    def subject(self) -> Subject:
        return self._subject_of(self.graphs)

    def sample(self) -> Subject:
        return self._subject_of(self.graphs[:GRAPHS_AT_ONCE])

    def only(self, part: Tensor) -> ExplainedTargets:
        some = super().only(part)
        vars(some).pop("subject", None)  # the cached subject has all graphs
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
        """Return the class probabilities of the explained graphs, [T, classes]; None if the model predicts none."""
        parts = []
        for begin in range(0, len(self.graphs), GRAPHS_AT_ONCE):
            subject = self._subject_of(self.graphs[begin : begin + GRAPHS_AT_ONCE])
            part = predicted_classes(subject, subject.targets("all"))
            if part is None:
                return None
            parts.append(part)
        return torch.cat(parts)

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Return the first and last graph of each part; raise if there are several and a method needs training."""
        bounds = super().bounds(rows)
        trained = [name for name, method in self.methods.items() if method.needs_training]
        if trained and len(bounds) > 1:
            raise ArgumentError(
                f"Expected argument `methods` to be methods that explain graphs one by one, or all graphs to fit into "
                f"one part (--part_rows {int(self.sizes().sum())}), but got {', '.join(trained)}, fitted to all."
            )
        return bounds

    def table(self, begin: int, end: int) -> pa.Table:
        graphs = self.graphs[begin:end]
        rows = SubjectRows(self._subject_of(graphs), self.methods, self.protocols).of(torch.arange(end - begin))
        return rows.table(self.ids[begin:end], _first_nodes(graphs))

    def _subject_of(self, graphs: Sequence[Data]) -> Subject:
        return self._make_subject(Batch.from_data_list(list(graphs)))


def _first_nodes(graphs: Sequence[Data]) -> Tensor:
    sizes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
    return sizes.cumsum(0) - sizes


@torch.no_grad()
def _misclassified(make_subject: Callable[[Batch], Subject], graphs: Sequence[Data]) -> Tensor:
    wrong = []
    for begin in range(0, len(graphs), GRAPHS_AT_ONCE):
        batch = Batch.from_data_list(list(graphs[begin : begin + GRAPHS_AT_ONCE]))
        wrong.append((predicted_labels(make_subject(batch)) != batch.y.view(-1)).nonzero().view(-1) + begin)
    return torch.cat(wrong)


def find_targets(run: FinishedRun, request: ExplainRequest) -> ExplainedTargets:
    """Return the targets of a run, found in its module and data module as `ExplainCallback` finds them."""
    module, data, by_neighbourhood = run.module, find_module_data(run.data, request.seed), request.by_neighbourhood

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
        expect(not by_neighbourhood, "by_neighbourhood", "used only to explain nodes", "a run on many graphs")
        explained = ExplainedGraphs(make_subject, data, request)
        _expect_level(explained.sample(), "graph", module)
        return explained
    graph = data.graphs[0]
    if by_neighbourhood:
        found = "a heterogeneous graph" if isinstance(graph, HeteroData) else "pairs of nodes"
        expect(data.has_plain_nodes, "by_neighbourhood", "used only to explain nodes of one type", found)
    predicts_nodes = isinstance(module, Classifier) and data.has_plain_nodes
    if predicts_nodes or by_neighbourhood:  # no forward pass is needed to see what the outputs are
        subject = Subject.of(run.net, graph.x, graph.edge_index, level="node", head=LOGITS)
    else:
        subject = make_subject(graph)
        if data.has_links and subject.level == "node":  # the module does not predict the graph's pairs
            data = replace(data, has_links=False)
        _expect_level(subject, "edge" if data.has_links else "node", module)
    return ExplainedNodes(subject, data, request)


def _expect_level(subject: Subject, level: str, module: nn.Module) -> None:
    """Raise if the model's outputs do not belong to the targets of the data."""
    if subject.level != level:
        expected = {
            "graph": "predict classes of graphs, as its data has many",
            "edge": "predict pairs of nodes, as its data has pairs to predict",
        }.get(level, "predict classes of nodes")
        raise UnsupportedModelError(
            f"Expected {type(module).__name__} to {expected}, but it predicts one row per {subject.level}. Use "
            "attree.evaluate and attree.explain instead."
        )
