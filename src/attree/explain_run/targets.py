"""The explained targets of a run: the `--targets` argument, and what is known of each node, link or graph."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from attree.attribution import METHODS, AttributionMethod, FlowMethod, GAtt, Random
from attree.attribution.flows import frontier_bound
from attree.attribution.subgraphs import SubgraphScorer
from attree.data import GroundTruth
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.evaluation import Evaluation
from attree.explain_run.rows import ScoredRows, SubgraphRows, SubjectRows
from attree.faithfulness import ReductionProtocol
from attree.runs.load_run import FinishedRun
from attree.source import Reading, Source, TargetLabels, choose_targets, find_subject, source_of
from attree.source.target_labels import predicted_classes
from attree.subject import Head, Subject
from attree.subject.head import labels_of
from attree.tensors.memory import chunk_bounds

FORMS = "ids and ranges (2,44,100-110), random:20, errors, errors:20, truth, truth:20 or all"
"""Forms of the `--targets` argument, for messages."""


def needs_predictions(text: str) -> bool:
    """Whether `--targets` needs predictions, because it selects misclassified targets.

    >>> needs_predictions("errors:5"), needs_predictions("random:5")
    (True, False)
    """
    return text.strip().partition(":")[0] == "errors"


def parse_targets(
    text: str, count: int, wrong: Tensor | None = None, true: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Parse the `--targets` argument into ids.

    Args:
        text: Ids and ranges (`2,44,100-110`), `random:20`, `errors` (misclassified targets), `truth` (targets with
            true edges) or `all`. `errors:20` and `truth:20` draw 20 of them at random. A list of ids may be in
            brackets.
        count: Number of nodes, pairs or graphs.
        wrong: Ids of the misclassified targets.
        true: Ids of the targets with true edges; None if the data has no ground truth.
        seed: Seed of random draws.

    >>> parse_targets("2, 7-9", count=10).tolist(), parse_targets("[2,7]", count=10).tolist()
    ([2, 7, 8, 9], [2, 7])
    """
    text = text.strip()
    if text == "all":
        return torch.arange(count)
    if words := re.fullmatch(r"(random|errors|truth)(?::(\d+))?", text):
        kind, number = words.groups()
        if kind == "errors":
            expect(wrong is not None and wrong.numel() > 0, "targets", "other targets, as no prediction is wrong", text)
        if kind == "truth":
            expect(true is not None, "targets", "other targets, as this data has no ground truth", text)
        available = {"random": torch.arange(count), "errors": wrong, "truth": true}[kind]
        if available is not None and (number is not None or kind != "random"):
            return available if number is None else available[choose_targets(int(number), available.numel(), seed)]
    ids: list[int] = []
    for part in text.removeprefix("[").removesuffix("]").split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if ends is None:
            raise ArgumentError(f"Expected argument `targets` to be {FORMS}, but got {text!r}.")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        inside = first <= last < count
        expect(inside, "targets", f"ids in [0, {count}), ranges from low to high", part.strip())
        ids += range(first, last + 1)
    return torch.tensor(list(dict.fromkeys(ids)), dtype=torch.int64)


@dataclass(frozen=True)
class ExplainRequest:
    """The user's request: targets, methods and protocols.

    Attributes:
        targets: The nodes, pairs or graphs, as in `--targets`; see `parse_targets`.
        seed: Seed of random targets.
        methods: The attribution methods.
        protocols: The reduction protocols.
        by_neighbourhood: Never run the network on the whole graph.
    """

    targets: str
    seed: int
    methods: Mapping[str, AttributionMethod]
    protocols: Sequence[ReductionProtocol]
    by_neighbourhood: bool = False


class ExplainedTargets(ABC):
    """The explained targets of a run. Subclasses compute their rows.

    Args:
        source: The run's data.
        request: The user's request.

    Attributes:
        ids: Ids of the targets: nodes, columns of pairs, or positions of graphs in the dataset.
        labels: True class of each target.
        truth: True edges of the nodes that have some.
        methods: The attribution methods.
        protocols: The reduction protocols.
        graphs: The graphs that the network runs on.
    """

    ids: Tensor
    labels: Tensor
    graphs: Sequence[Data]

    def __init__(self, source: Source, request: ExplainRequest) -> None:
        self.source = source
        self.methods, self.protocols = request.methods, request.protocols
        self.truth: GroundTruth | None = None

    @property
    @abstractmethod
    def subject(self) -> Subject:
        """One subject with all targets."""

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """Indices of the targets in the subject."""

    def sample(self) -> Subject:
        """Return a subject with all targets, or with enough of them to see what attention misses."""
        return self.subject

    @property
    def first_nodes(self) -> Tensor | None:
        """For graphs in a batch, the id of each graph's first node; None otherwise."""
        return None

    def only(self, part: Tensor) -> ExplainedTargets:
        """Return the targets at some positions.

        Args:
            part: Positions among all targets.
        """
        explained = copy(self)
        explained.ids, explained.labels = self.ids[part], self.labels[part]
        return explained

    def fitting(self, part: Tensor, rows: int) -> ExplainedTargets:
        """Return the targets at positions `part`, without the last ones if not all fit into so many rows."""
        fitting = int((self.sizes()[part].cumsum(0) <= rows).sum())
        return self.only(part[: max(fitting, 1)])

    def target_labels(self) -> TargetLabels:
        """Return true classes and names, for tables, figures and the page."""
        graph = self.graphs[0] if self.first_nodes is None else Batch.from_data_list(list(self.graphs))
        return self.source.labels(graph, self.subject, self.ids)

    @abstractmethod
    def sizes(self) -> Tensor:
        """Return an upper bound on each target's number of rows, [T]."""

    @property
    def predicts_all(self) -> bool:
        """Whether it takes little time to predict all targets."""
        return True

    @abstractmethod
    def predictions(self) -> Tensor | None:
        """Return class probabilities of the targets, [T, classes]; None if the model predicts no probabilities."""

    @property
    def subject_truth(self) -> GroundTruth | None:
        """The true edges of the explained targets, as the subject numbers targets and nodes; None without any."""
        return None if self.truth is None else self.truth.of_targets(self.ids)

    @property
    def has_truth(self) -> Tensor | None:
        """Whether each target has ground truth, [T]; None if the data has none."""
        return None if self.truth is None else torch.isin(self.ids, self.truth.targets.to(self.ids))

    @abstractmethod
    def table(self, begin: int, end: int) -> pa.Table:
        """Return the rows of the targets `begin` to `end` (exclusive)."""

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Return the first and last target of each part. A part has at most `rows` rows, or a single target."""
        return chunk_bounds(self.sizes(), rows)

    def evaluated_table(self, evaluation: Evaluation, begin: int, end: int) -> pa.Table:
        """Return the same rows as `table`, taken from an evaluation of all targets."""
        pairs, part = evaluation.pairs, torch.arange(begin, end)
        inside = (pairs.owner >= begin) & (pairs.owner < end)
        rows = ScoredRows.of(pairs, evaluation.pair_scores, evaluation.reductions).only(inside)
        rows = ScoredRows(pairs.of_targets(part), rows.columns)
        if not self.protocols:
            rows = rows.only(rows.pairs.flow)
        first = self.first_nodes
        return rows.table(self.ids[begin:end], None if first is None else first[begin:end])


def predicted_labels(subject: Subject) -> Tensor:
    """Return the predicted classes of all targets of a subject."""
    expect(
        subject.head.mode != "regression",
        "targets",
        "other targets than errors, as the model predicts numbers",
        "errors",
    )
    return subject.head.logits(subject.output).argmax(dim=-1).cpu()


def true_labels(y: Any, number: int) -> Tensor:
    """Return the true classes. They are all -1 if the data has no class labels."""
    if isinstance(y, Tensor) and y.is_floating_point() and bool((y == y.round()).all()):
        y = y.long()  # PyG labels pairs by 0.0 and 1.0
    if isinstance(y, Tensor) and not y.is_floating_point() and y.numel() >= number and y.numel() == y.shape[0]:
        return y.view(-1)[:number] if number == 1 else y.view(-1)
    return torch.full((number,), -1)


LOGITS = Head("multiclass_classification", "raw")

GRAPHS_AT_ONCE = 1024
"""Number of graphs in a forward pass that computes only predictions."""


class ExplainedNodes(ExplainedTargets):
    """Nodes of one graph, or pairs of its nodes. Nodes of a heterogeneous graph are numbered within their type.

    Args:
        subject: The subject of the whole graph.
        source: The run's data.
        request: The user's request.
    """

    def __init__(self, subject: Subject, source: Source, request: ExplainRequest) -> None:
        super().__init__(source, request)
        graph, wrong = source.graphs[0], None
        self.graphs = [graph]
        self.truth = source.truth
        self._subject = subject
        self._by_neighbourhood = request.by_neighbourhood
        # By neighbourhoods, not even the level of the outputs may be found by a pass over the graph.
        number = int(graph.num_nodes or 0) if request.by_neighbourhood else subject.num_targets
        labels = true_labels(graph.get("y") if request.by_neighbourhood else labels_of(graph, subject), number)
        if needs_predictions(request.targets):
            named = "named or random ones with --by_neighbourhood"
            expect(not request.by_neighbourhood, "targets", named, request.targets)
            wrong = ((predicted_labels(subject) != labels) & (labels >= 0)).nonzero().view(-1)
        true = None if source.truth is None else source.truth.targets
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
        bound = frontier_bound(self.subject.graph, steps).cpu()
        if subgraphs is None:
            roots = self.subject.roots(self.ids)
            owner, node = roots.owner.cpu(), roots.node.cpu()
            sizes = torch.zeros(self.ids.numel(), dtype=bound.dtype).index_add(0, owner, bound[node])
        else:
            sizes = bound[self.ids]
        return sizes.clamp(max=float(self.subject.graph.num_edges))

    def predictions(self) -> Tensor | None:
        return predicted_classes(self.subject, self.subject.targets(self.ids))

    def table(self, begin: int, end: int) -> pa.Table:
        targets = self.ids[begin:end]
        if self._subgraph_rows is not None:
            return self._subgraph_rows.of(targets.to(self.subject.device), list(self.methods)).table()
        return self._rows.of(targets).table()

    @cached_property
    def _rows(self) -> SubjectRows:
        return SubjectRows(self.subject, self.methods, self.protocols)

    @cached_property
    def _subgraph_rows(self) -> SubgraphRows | None:
        """Return the maker of rows that runs the model on neighbourhoods; None without --by_neighbourhood."""
        if not self._by_neighbourhood:
            return None
        expect(
            not self.protocols,
            "protocols",
            "none with --by_neighbourhood",
            [str(protocol) for protocol in self.protocols],
        )
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
            name: SubgraphScorer(method, subject.model, subject.call.x, subject.graph, self.ids[:1].to(subject.device))
            for name, method in (flows or {"gatt": GAtt()}).items()
        }
        return SubgraphRows(scorers, random)


class ExplainedGraphs(ExplainedTargets):
    """Graphs of a dataset. In the rows, nodes are numbered within their graph.

    Args:
        make_subject: Makes the subject of a batch of graphs.
        source: The run's data.
        request: The user's request.
    """

    def __init__(self, make_subject: Callable[[Batch], Subject], source: Source, request: ExplainRequest) -> None:
        super().__init__(source, request)
        self._make_subject = make_subject
        wrong = _misclassified(make_subject, source.graphs) if needs_predictions(request.targets) else None
        is_true = true_graphs(source.graphs) if request.targets.strip().startswith("truth") else None
        true = None if is_true is None else is_true.nonzero().view(-1)
        self.ids = parse_targets(request.targets, len(source.graphs), wrong, true, request.seed)
        self.graphs = [source.graphs[position] for position in self.ids.tolist()]
        self.labels = torch.cat([true_labels(graph.get("y"), 1) for graph in self.graphs])

    @cached_property
    def subject(self) -> Subject:
        return self._subject_of(self.graphs)

    def sample(self) -> Subject:
        return self._subject_of(self.graphs[:GRAPHS_AT_ONCE])

    def only(self, part: Tensor) -> ExplainedTargets:
        explained = super().only(part)
        vars(explained).pop("subject", None)  # the cached subject has all graphs
        explained.graphs = [self.graphs[position] for position in part.tolist()]
        return explained

    @property
    def positions(self) -> Tensor:
        return torch.arange(len(self.graphs))

    @property
    def first_nodes(self) -> Tensor:
        return _first_nodes(self.graphs)

    @property
    def subject_truth(self) -> GroundTruth | None:
        return GroundTruth.of_graphs(Batch.from_data_list(list(self.graphs)))

    @property
    def has_truth(self) -> Tensor | None:
        return true_graphs(self.graphs)

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


def true_graphs(graphs: Sequence[Data]) -> Tensor | None:
    """Return whether each graph has true edges; None if the data does not say it."""
    masks = [graph.get("true_edge_mask") for graph in graphs]
    true_masks = [mask for mask in masks if isinstance(mask, Tensor)]
    return torch.tensor([bool(mask.any()) for mask in true_masks]) if len(true_masks) == len(masks) else None


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


def find_targets(run: FinishedRun, request: ExplainRequest, device: torch.device) -> ExplainedTargets:
    """Return the targets of a run, found in its module and data module as `ExplainCallback` finds them.

    Args:
        run: The run.
        request: The user's request.
        device: The device to run on. Targets, labels and rows stay on the host.
    """
    module, source = run.module.to(device), source_of(run.data, request.seed)
    by_neighbourhood = request.by_neighbourhood

    def make_subject(graph: Data) -> Subject:
        return find_subject(module, copy(graph).to(device), source, Reading())

    if not source.is_one_graph:
        expect(not by_neighbourhood, "by_neighbourhood", "used only to explain nodes", "a run on many graphs")
        explained = ExplainedGraphs(make_subject, source, request)
        _expect_level(explained.sample(), "graph", module)
        return explained
    graph = source.graphs[0]
    if by_neighbourhood:
        targets = "a heterogeneous graph" if isinstance(graph, HeteroData) else "pairs of nodes"
        expect(source.has_plain_nodes, "by_neighbourhood", "used only to explain nodes of one type", targets)
        # No forward pass may see the whole graph, so none shows what the outputs are.
        subject = Subject.of(run.net, graph.x.to(device), graph.edge_index.to(device), level="node", head=LOGITS)
    else:
        subject = make_subject(graph)
        is_of_links = source.has_links and subject.level != "node"
        _expect_level(subject, "edge" if is_of_links else "node", module)
    return ExplainedNodes(subject, source, request)


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
