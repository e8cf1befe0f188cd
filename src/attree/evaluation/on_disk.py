"""Evaluate explanations of nodes of a graph on disk: neighbourhood after neighbourhood, and the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attree.attention.graph import Graph, Origin
from attree.attribution import Pairs, Random, make_methods
from attree.data.on_disk import joined_cuts
from attree.defaults import NUM_TARGETS
from attree.errors import expect
from attree.evaluation.certainty import mean_over_targets
from attree.evaluation.config import EvaluationConfig
from attree.evaluation.disk_subjects import DiskSubjects, check_untrained
from attree.evaluation.evaluate import check_defined
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.names import BYPASS
from attree.evaluation.result import Evaluation
from attree.evaluation.statistics import PooledStatistics
from attree.faithfulness import Reduction
from attree.faithfulness.reduction import Progress
from attree.io.terminal import progress_bar
from attree.source import TargetLabels, choose_targets
from attree.subject.roots import Targets
from attree.tensors.limits import chunk_bounds
from attree.tensors.ragged import pointers


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
    graph.origin = Origin(*(torch.from_numpy(ids).to(device) for ids in (nodes, every)))
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
    names = [str(node) for node in _whole(pairs.graph).tolist()]
    about = replace(evaluation.about, node_names=names)
    nothing = {"subject": None, "attention": None, "roots": None, "named": TargetLabels()}
    return replace(evaluation, pairs=pairs, reductions=reductions, about=about, **nothing)  # type: ignore[arg-type]


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
        about=_joined_labels([part.about for part in parts]),
    )
    return replace(with_pairs(evaluation, pairs), reductions=reductions)


def _joined_labels(parts: Sequence[TargetLabels]) -> TargetLabels:
    def joined(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    return replace(parts[0], labels=joined("labels"), measured=joined("measured"))
