"""Evaluate explanations of nodes of a graph on disk: neighbourhood after neighbourhood, and the same numbers.

The output for a target depends on the nodes within L hops of it, for L layers. A network that also reads degrees (a
GCN) depends on the edges that enter these nodes, one hop more. Which of the two holds is found by an experiment: the
model runs on larger neighbourhoods of a few targets, and then on copies of the exact ones, between decoys. A network
that reads the whole graph (a norm over all nodes, global attention) gives other outputs there, and is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attention.capture import check_model
from attree.attention.graph import Graph, Origin
from attree.attention.stand_ins import eval_mode, score_tensor
from attree.attribution import AttributionMethod, FlowMethod, Pairs, Random, make_methods
from attree.data.on_disk import OnDiskGraph, Room, Surroundings, cut_out, joined_cuts
from attree.data.on_disk.surroundings import probe_nodes, read_type, room_of, sparse_nodes
from attree.defaults import NUM_TARGETS
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.evaluation.certainty import mean_over_targets
from attree.evaluation.config import EvaluationConfig
from attree.evaluation.evaluate import check_defined
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.metric_names import BYPASS
from attree.evaluation.result import Evaluation
from attree.evaluation.statistics import PooledStatistics
from attree.faithfulness import Reduction
from attree.faithfulness.effect_measures import Progress
from attree.io.terminal import progress_bar
from attree.source import (
    DiskSource,
    Drawn,
    ExplainedModel,
    Reading,
    Source,
    TargetLabels,
    choose_targets,
    explained_by_user,
    find_subject,
)
from attree.source.explained_model import known_head
from attree.subject import Head, Part, Subject
from attree.subject.arguments import parameters
from attree.subject.facts import model_structure
from attree.subject.model_call import NotLocalError, check_local
from attree.subject.target_roots import Targets, as_targets
from attree.tensors.arrays import pointers
from attree.tensors.memory import chunk_bounds

PROBES = 4
"""Number of targets of the experiment; as many others are beside them."""

EXPERIMENT_MEMORY = 2**26
"""Bytes that the experiment may take even if the budget is smaller."""

_FACTS: WeakKeyDictionary[OnDiskGraph, WeakKeyDictionary[nn.Module, tuple[Any, int, int, Surroundings]]]
_FACTS = WeakKeyDictionary()
"""By graph and model: the structure of the model, its number of layers and of hops, and a small neighbourhood."""


class DiskSubjects:
    """Makes the subjects of a model on the neighbourhoods of targets of a graph on disk.

    Args:
        model: The model, on the device to run on.
        graph: The graph.
        call: Function that calls the model with a `Data`; None uses its forward.
        head: Meaning of the outputs: `mode`, `return_type` and `label`.

    Attributes:
        num_layers: Number of layers that the output depends on.
        hops: Number of hops that the output, and the effect of deleting an edge, depend on.
    """

    def __init__(self, model: nn.Module, graph: OnDiskGraph, *, call: Any = None, **head: Any) -> None:
        check_model(model)
        expect("x" in graph, "graph", "one with node features `x`", f"one with {', '.join(graph.attributes)}")
        self.model, self.graph, self._call, self._head = model, graph, call, head
        self._device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
        self._takes_ids = call is None and any(parameter.name == "n_id" for parameter in parameters(model))
        self.room = room_of(graph, model)
        self._proper_edges = graph.num_edges - len(graph.array("self_loops"))
        self._wide_room = replace(self.room, memory=max(graph.memory, EXPERIMENT_MEMORY))
        facts = _FACTS.setdefault(graph, WeakKeyDictionary())
        structure = model_structure(model), id(call)
        if model not in facts or facts[model][0] != structure:
            self.num_layers = self._subject_on(self._cut(sparse_nodes(graph)[:1], 1, closed=False)).num_layers
            self.hops = self._find_reach()
            probes = probe_nodes(graph, self.hops, 2 * PROBES)
            smallest = min((self._cut(probe, self.hops, closed=False) for probe in probes[:, None]), key=_num_edges)
            facts[model] = structure, self.num_layers, self.hops, smallest
        _, self.num_layers, self.hops, self._elsewhere = facts[model]

    def targets(self, targets: Targets) -> Tensor:
        """Check the ids of targets, and return them as a tensor."""
        return as_targets(targets, self.graph.num_nodes, torch.device("cpu"))

    def hops_for(self, methods: Iterable[AttributionMethod]) -> int:
        """Return the number of hops that some methods read. Most read as far as the output does.

        `avgatt` also reads the attention of late layers at edges far from the target, which depends on nodes that are
        up to L hops farther away.
        """
        far = [2 * self.num_layers for method in methods if isinstance(method, FlowMethod) and _reads_beyond(method)]
        return max([self.num_layers, *far]) + self.hops - self.num_layers

    def around(self, targets: Tensor, hops: int | None = None) -> Surroundings:
        """Cut out the neighbourhood of some targets; raise a `TooLargeError` if it does not fit.

        A small neighbourhood elsewhere is always there, too: what a model does is found by experiments, and a target
        without edges shows nothing.
        """
        hops = self.hops if hops is None else hops
        # At L hops, the pairs of a target are also the edges between its outermost nodes.
        cut = self._cut(targets.unique().numpy(), hops, closed=hops == self.num_layers, room=self.room)
        return joined_cuts([cut, self._elsewhere])

    def together(self, targets: Tensor, methods: Iterable[AttributionMethod]) -> tuple[Subject, Tensor, TargetLabels]:
        """Return one subject for all of some targets, their ids in it, and labels; raise if it does not fit.

        Args:
            targets: Ids of the targets.
            methods: The methods that will score edges.
        """
        cut = self.around(targets, self.hops_for(methods))
        subject, labels = self.subject(cut)
        return subject, torch.from_numpy(np.searchsorted(cut.nodes, targets.numpy())).to(subject.device), labels

    def data(self, cut: Surroundings) -> Data:
        """Read the attributes of nodes and edges, and return them as a graph on the model's device."""
        data = Data(edge_index=torch.from_numpy(cut.edge_index))
        for name, of in self.graph.attributes.items():
            kind = read_type(self.graph, name, self.model)
            data[name] = self.graph.rows(name, cut.nodes if of == "node" else cut.edges, kind)
        data.num_nodes = cut.nodes.size
        if self._takes_ids:
            data.n_id = torch.from_numpy(cut.nodes)
        if self.graph.class_names is not None:
            data.class_names = self.graph.class_names
        return data.to(self._device)

    def subject(self, cut: Surroundings) -> tuple[Subject, TargetLabels]:
        """Return the subject of the model on a neighbourhood, with the labels of its nodes. It knows the whole ids."""
        reading = Reading(self._call, "node", head=Head(**self._head))
        explained = explained_by_user(self.model, self.data(cut), "all", None, reading, None, 0)
        subject = explained.subject
        self._set_origin(subject.graph, cut)
        labels = TargetLabels() if explained.labels is None else explained.labels
        return subject, replace(labels, dataset=self.graph.name)

    def _subject_on(self, cut: Surroundings) -> Subject:
        return Subject.of_data(self.model, self.data(cut), call=self._call, level="node", head=Head(**self._head))

    def _set_origin(self, graph: Graph, cut: Surroundings) -> None:
        """Tell a graph which ids its nodes and edges have in the whole graph."""
        loops, nodes = self.graph.array("self_loops"), torch.from_numpy(cut.nodes)
        data_edges = torch.from_numpy(cut.edges - np.searchsorted(loops, cut.edges))
        proper = cut.edge_index[0] != cut.edge_index[1]
        edges = torch.cat([data_edges[torch.from_numpy(proper)], self._proper_edges + nodes])
        graph.origin = Origin(nodes.to(graph.device), edges.to(graph.device), self.graph.num_nodes)

    def _cut(self, targets: np.ndarray, hops: int, *, closed: bool, room: Room | None = None) -> Surroundings:
        return cut_out(self.graph, targets, hops, closed=closed, room=self._wide_room if room is None else room)

    def _find_reach(self) -> int:
        """Return the number of hops that outputs depend on; raise if they depend on the whole graph."""
        reason = ""
        for hops in (self.num_layers, self.num_layers + 1):
            small = probe_nodes(self.graph, hops + 1, 2 * PROBES)
            try:
                self._check(self._cut(np.sort(small), hops + 1, closed=False), np.sort(small[:PROBES]), hops)
            except NotLocalError as error:
                reason = error.reason
            else:
                return hops
        name = type(self.model).__name__
        raise UnsupportedModelError(
            f"Expected {name} to depend on the neighbourhood of a node only, but {reason}. A graph on disk is never "
            "run as a whole: load it with `to_data()` if it fits into memory."
        )

    def _check(self, larger: Surroundings, probes: np.ndarray, hops: int) -> None:
        """Raise a `NotLocalError` if the outputs of probes change when the model runs on so many hops alone."""
        subject = self._subject_on(larger)
        call, graph = subject.call, subject.graph
        targets = torch.from_numpy(np.searchsorted(larger.nodes, probes)).to(graph.device)
        inner = [Part.around(graph, target, hops - 1).node for target in targets.split(1)]
        owner = torch.cat([torch.full_like(nodes, number) for number, nodes in enumerate(inner)])
        part = Part.entering(graph, targets.numel(), owner, torch.cat(inner))
        positions = torch.arange(targets.numel(), device=graph.device)
        with eval_mode(call.model), torch.no_grad():
            expected = score_tensor(call.run())[targets]
            check_local(call, replace(part, target=part.find(positions, targets)), expected)


def _num_edges(cut: Surroundings) -> int:
    return cut.edges.size


def _reads_beyond(method: FlowMethod) -> bool:
    """Whether a method reads attention where the output does not depend on it."""
    return method.hops(2) > 2


def check_plain(**options: Any) -> None:
    """Raise if an option was given that a graph on disk does not have.

    Args:
        **options: The options by name: None, or what the user passed.
    """
    for name, value in options.items():
        fits = value is None or (name == "level" and value == "node")
        if not fits:
            raise ArgumentError(
                f"Expected no argument `{name}` for a graph on disk, whose targets are its nodes, but got {value!r}: "
                "load the graph with `to_data()` if it fits into memory."
            )


def check_untrained(methods: Mapping[str, AttributionMethod]) -> None:
    """Raise if a method is trained on a whole graph, which is never read from disk."""
    trained = [name for name, method in methods.items() if method.needs_training]
    if trained:
        raise ArgumentError(
            f"Expected argument `methods` to be methods that explain targets one by one for a graph on disk, but "
            f"got {', '.join(trained)}, which is trained on a whole graph."
        )


def explained_in_disk_fit(
    module: nn.Module,
    source: DiskSource,
    reading: Reading,
    config: EvaluationConfig,
    before: Drawn | None = None,
) -> tuple[ExplainedModel, EvaluationConfig]:
    """Return what a run on a graph on disk explains, on the neighbourhoods of all targets together.

    The evaluation's numbers are those of the whole graph in memory. The configuration has the methods to compare.

    Args:
        module: The LightningModule.
        source: The graph, and the nodes that targets are drawn from.
        reading: How the module is called, and what its outputs mean.
        config: What to measure.
        before: Targets that were drawn before.
    """
    model = module if reading.call is not None else _network(module, source, reading)
    head = known_head(module) if reading.head == Head() else reading.head
    options = {"mode": head.mode, "return_type": head.return_type, "label": head.label}
    subjects = DiskSubjects(model, source.graph, call=reading.call, **options)
    drawn = source.draw(config.num_targets, config.seed, before)
    config = with_methods(subjects, drawn.targets, config)
    subject, targets, labels = subjects.together(drawn.targets, make_methods(config.methods or ()).values())
    return ExplainedModel(subject, targets, labels, drawn=drawn), config


def _network(module: nn.Module, source: DiskSource, reading: Reading) -> nn.Module:
    """Return the network in a LightningModule whose outputs fit the data, found on a small neighbourhood."""
    graph = source.graph
    small = cut_out(graph, sparse_nodes(graph)[:1], 1, closed=False, room=Room(max(graph.memory, EXPERIMENT_MEMORY)))
    data = Data(edge_index=torch.from_numpy(small.edge_index), num_nodes=small.nodes.size)
    for name, of in graph.attributes.items():
        rows = small.nodes if of == "node" else small.edges
        data[name] = graph.rows(name, rows, read_type(graph, name, module))
    device = next((weight.device for weight in module.parameters()), torch.device("cpu"))
    in_memory = Source([data], num_classes=source.num_classes)
    return find_subject(module, data.to(device), in_memory, reading).call.user_model


def evaluate_on_disk(
    subjects: DiskSubjects,
    targets: Targets | None,
    num_targets: int | None,
    config: EvaluationConfig,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure how well methods explain a model's predictions for nodes of a graph on disk.

    Args:
        subjects: Makes subjects of the model.
        targets: Nodes to explain; None draws some at random.
        num_targets: Number of nodes to draw.
        config: What to measure.
        progress: Called as `progress(done, total)` with numbers of targets after each chunk of targets.
    """
    if targets is None:
        count = NUM_TARGETS if num_targets is None else num_targets
        ids = choose_targets(count, subjects.graph.num_nodes, config.seed)
    else:
        expect(num_targets is None, "num_targets", "None if `targets` is given", num_targets)
        ids = subjects.targets(targets)
        expect(ids.numel() > 0, "targets", "at least one target", "none")
    config = with_methods(subjects, ids, config)
    parts = []
    with progress_bar("Explaining", ids.numel()) as advance:
        for part in evaluated_parts(subjects, ids, config):
            is_only = part.num_targets == ids.numel()
            parts.append(part if is_only else with_pairs(part, joined_pairs([part.pairs])))
            advance(part.num_targets)
            if progress is not None:
                progress(sum(part.num_targets for part in parts), ids.numel())
    return parts[0] if len(parts) == 1 else pooled(parts, config)


def with_methods(subjects: DiskSubjects, ids: Tensor, config: EvaluationConfig) -> EvaluationConfig:
    """Return the configuration with methods: by default those of a graph in memory that read no farther than outputs.

    `avgatt` is not among the defaults, because it reads attention up to twice as many hops away.
    """
    if config.methods is not None:
        check_untrained(make_methods(config.methods))
        return config
    subject, _ = subjects.subject(subjects.around(ids[:1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        local = subject.targets([int(np.searchsorted(_whole(subject.graph), int(ids[0])))])
        methods = Evaluator(subject, local, config, warn=False).methods
    near = [method for method in methods.values() if subjects.hops_for([method]) == subjects.hops]
    return replace(config, methods=near)


def evaluated_parts(subjects: DiskSubjects, ids: Tensor, config: EvaluationConfig) -> Iterator[Evaluation]:
    """Yield evaluations of consecutive targets; the neighbourhoods of each part fit into the memory budget together."""
    hops = subjects.hops_for(make_methods(config.methods or ()).values())
    bounds = chunk_bounds(sizes_of(subjects, ids, hops), subjects.room.memory)
    for number, (begin, end) in enumerate(bounds):
        cut = joined_cuts([subjects.around(node, hops) for node in ids[begin:end].split(1)])
        subject, labels = subjects.subject(cut)
        local = torch.from_numpy(np.searchsorted(cut.nodes, ids[begin:end].numpy())).to(subject.device)
        with warnings.catch_warnings():
            if number:  # the first part has said it
                warnings.simplefilter("ignore")
            check_defined(subject, local)
            # The intervals of a part are not needed, and neither are its metrics, but for those of single targets.
            part = replace(config, intervals=config.intervals and len(bounds) == 1)
            yield Evaluator(subject, local, part, labels=labels).evaluate()


def sizes_of(subjects: DiskSubjects, ids: Tensor, hops: int) -> Tensor:
    """Return the bytes that each target's neighbourhood takes in a pass; raise if one does not fit.

    Only the edges are read. So a hub that does not fit is named before anything runs.
    """
    cuts = (subjects.around(node, hops) for node in ids.split(1))
    return torch.tensor([subjects.room.bytes(cut.nodes.size, cut.edges.size) for cut in cuts], dtype=torch.float64)


def _whole(graph: Graph) -> np.ndarray:
    assert graph.origin is not None
    return graph.origin.nodes.cpu().numpy()


def joined_pairs(parts: Sequence[Pairs]) -> Pairs:
    """Return the pairs of consecutive targets on one graph: the union of the edges of the pairs, and their nodes.

    Args:
        parts: The pairs of some targets each, on a part of the whole graph each.
    """
    ids, ends, targets = [], [], []
    for pairs in parts:
        graph = pairs.graph
        ids.append(graph.whole_edges(pairs.edges).cpu().numpy())
        ends.append(graph.whole_nodes(graph.edge_index[:, pairs.edges]).cpu().numpy())
        targets.append(graph.whole_nodes(pairs.targets).cpu().numpy())
    edges, first = np.unique(np.concatenate(ids), return_index=True)
    source, destination = np.concatenate(ends, axis=1)[:, first]
    nodes = np.unique(np.concatenate([source, destination, *targets]))
    proper = source != destination
    edge_index = torch.from_numpy(np.searchsorted(nodes, np.stack([source, destination])[:, proper]))
    device = parts[0].graph.device
    graph = Graph(edge_index.to(device), nodes.size)
    origin = parts[0].graph.origin
    assert origin is not None
    proper_edges = int(origin.edges[-1] - origin.nodes[-1])  # a self-loop has the number of its node after all others
    every = np.concatenate([edges[proper], proper_edges + nodes])
    ids_there, edges_there = (torch.from_numpy(whole_ids).to(device) for whole_ids in (nodes, every))
    graph.origin = Origin(ids_there, edges_there, origin.num_nodes)
    return Pairs(
        torch.from_numpy(np.searchsorted(nodes, np.concatenate(targets))).to(device),
        pointers(torch.cat([pairs.ptr.diff() for pairs in parts])),
        torch.from_numpy(np.searchsorted(every, np.concatenate(ids))).to(device),
        torch.cat([pairs.flow for pairs in parts]),
        graph,
        parts[0].num_layers,
    )


def with_pairs(evaluation: Evaluation, pairs: Pairs) -> Evaluation:
    """Return an evaluation of the same pairs on another graph, without the model and what the graph before held."""
    reductions = {name: replace(reduction, pairs=pairs) for name, reduction in evaluation.reductions.items()}
    return replace(
        evaluation,
        pairs=pairs,
        reductions=reductions,
        subject=None,
        attention=None,
        roots=None,
        all_target_labels=TargetLabels(),
    )


def pooled(parts: Sequence[Evaluation], config: EvaluationConfig) -> Evaluation:
    """Return one evaluation of the targets of several: the same numbers as if all had been measured together.

    Args:
        parts: The evaluations of consecutive targets.
        config: What was measured.
    """
    first, pairs = parts[0], joined_pairs([part.pairs for part in parts])

    def joined(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(tensors))

    reductions = {
        name: Reduction(
            pairs,
            joined([part.reductions[name].delta_pc for part in parts]),
            joined([part.reductions[name].delta_ne for part in parts]),
            joined([part.reductions[name].changed for part in parts]),
        )
        for name in first.reductions
    }
    scores = {name: joined([part.pair_scores[name] for part in parts]) for name in first.pair_scores}
    by_target = {name: joined([part.by_target[name] for part in parts]) for name in first.by_target}
    count = sum(part.num_targets for part in parts)
    columns = {name: [name] for name in scores}
    drawn = dict(scores)
    for method in make_methods(config.methods or ()).values():
        if isinstance(method, Random):
            columns[method.name] = [f"{method.name} {number}" for number in range(config.random_draws)]
            targets, dtype = pairs.targets[pairs.owner], scores[method.name].dtype
            for column, draw in zip(columns[method.name], method.draws(config.random_draws), strict=True):
                drawn[column] = draw.draw_scores(pairs.graph, targets, pairs.edges, dtype)
    columns_drawn = {column: drawn[column] for of_method in columns.values() for column in of_method}
    metrics = PooledStatistics(columns, (), False).metrics(columns_drawn, reductions, count)
    numbers = {name: float(value) for name, value in (metrics | mean_over_targets(by_target)).items()}
    shares = [(part.metrics[BYPASS], part.num_targets) for part in parts if BYPASS in part.metrics]
    if shares:
        numbers[BYPASS] = sum(share * number for share, number in shares) / sum(number for _, number in shares)
    predictions = [part.predictions for part in parts if part.predictions is not None]
    seconds = {name: sum(part.seconds[name] for part in parts) for name in first.seconds}
    evaluation = replace(
        first,
        metrics=numbers,
        pair_scores=scores,
        predictions=joined(predictions) if predictions else None,
        by_target=by_target,
        seconds=seconds,
        all_targets=count,
        has_intervals=config.intervals,
        target_labels=_joined_labels([part.target_labels for part in parts]),
    )
    return replace(with_pairs(evaluation, pairs), reductions=reductions)


def _joined_labels(parts: Sequence[TargetLabels]) -> TargetLabels:
    def joined(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    return replace(parts[0], labels=joined("labels"), measured=joined("measured"))
