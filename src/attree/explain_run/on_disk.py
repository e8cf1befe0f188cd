"""The explained nodes of a graph on disk, for a run whose network was trained on it or on another graph."""

from __future__ import annotations

from functools import cached_property
from typing import cast

import pyarrow as pa
import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.attribution import make_methods
from attree.data.on_disk import OnDiskGraph, TooLargeError
from attree.data.on_disk.graph import DESCRIPTION
from attree.errors import ArgumentError, expect
from attree.evaluation import EvaluationConfig
from attree.evaluation.on_disk import DiskSubjects, evaluated_parts, sizes_of, with_methods
from attree.explain_run.rows import ScoredRows
from attree.explain_run.targets import ExplainedTargets, ExplainRequest, needs_predictions, parse_targets, true_labels
from attree.runs.load_run import FinishedRun
from attree.source import Source, TargetLabels
from attree.source.explained_model import known_head
from attree.source.source import choose_targets
from attree.source.target_labels import predicted_classes
from attree.subject import Subject
from attree.tensors.memory import chunk_bounds

CHECKED_TARGETS = 1_000
"""With no more targets than this, every neighbourhood is counted before anything starts."""

SAMPLED_TARGETS = 64
"""Number of targets whose neighbourhoods are counted to find how many fit into a part."""


class ExplainedDiskNodes(ExplainedTargets):
    """Nodes of a graph on disk: the network runs on their exact neighbourhoods only.

    Args:
        run: The run, whose network explains.
        graph: The graph.
        request: The user's request. Without methods, those of a graph in memory that read no farther than the output.
        has_methods: Whether the user named the methods.
    """

    def __init__(self, run: FinishedRun, graph: OnDiskGraph, request: ExplainRequest, has_methods: bool) -> None:
        name = {"name": graph.name, "class_names": graph.class_names}
        # The description holds a checksum of every array, and stands for the graph in the hashes of a call.
        described = Data(description=torch.tensor(list((graph.folder / DESCRIPTION).read_bytes())))
        super().__init__(Source([described], **name), request)  # type: ignore[arg-type]
        self.graphs = [described]
        expect(not request.by_neighbourhood, "by_neighbourhood", "left out for a graph on disk, which implies it", True)
        if needs_predictions(request.targets) or request.targets.strip().startswith("truth"):
            raise ArgumentError(
                f"Expected argument `targets` to be ids, random:N or all for a graph on disk, but got "
                f"{request.targets}."
            )
        self.ids = parse_targets(request.targets, graph.num_nodes, seed=request.seed)
        head = known_head(run.module)
        options = {"mode": head.mode, "return_type": head.return_type, "label": head.label}
        self._subjects = DiskSubjects(run.net, graph, **options)
        config = EvaluationConfig(request.methods.values() if has_methods else None, request.protocols, intervals=False)
        config = with_methods(self._subjects, self.ids[:1], config)
        self.methods = make_methods(config.methods or (), seed=request.seed)
        self._config = EvaluationConfig(self.methods.values(), request.protocols, seed=request.seed)
        self.labels = self._true_classes()
        if self.ids.numel() <= CHECKED_TARGETS:
            self._sizes_of(self.ids)

    def _true_classes(self) -> Tensor:
        graph, ids = self._subjects.graph, self.ids
        if "y" not in graph:
            return torch.full_like(ids, -1)
        order = ids.argsort()
        labels = torch.empty_like(ids)
        labels[order] = true_labels(graph.rows("y", ids[order]).long(), ids.numel())
        return labels

    def _sizes_of(self, ids: Tensor) -> Tensor:
        """Return the number of bytes of the neighbourhoods of targets; raise if one does not fit."""
        return sizes_of(self._subjects, ids, self._subjects.hops_for(self.methods.values()))

    @cached_property
    def _together(self) -> tuple[Subject, Tensor, TargetLabels]:
        return self._subjects.together(self.ids, self.methods.values())

    @property
    def subject(self) -> Subject:
        return self._together[0]

    @property
    def positions(self) -> Tensor:
        return self._together[1]

    def target_labels(self) -> TargetLabels:
        return self._together[2]

    def sample(self) -> Subject:
        return self._subjects.subject(self._subjects.around(self.ids[:1]))[0]

    def only(self, part: Tensor) -> ExplainedTargets:
        explained = super().only(part)
        vars(explained).pop("_together", None)  # the cached subject has all targets
        return explained

    def fitting(self, part: Tensor, rows: int) -> ExplainedTargets:
        """Return the targets at positions `part`, without the last ones if their neighbourhoods do not fit together."""
        while True:
            explained = super().fitting(part, rows)
            explained = self if explained.ids.numel() == self.ids.numel() else explained
            try:
                _ = explained.subject
            except TooLargeError:
                if part.numel() == 1:
                    raise
                part = part[: part.numel() // 2]
            else:
                return explained

    def sizes(self) -> Tensor:
        """Return the approximate number of rows of each target, [T]: the mean of some targets."""
        sample = self.ids[choose_targets(SAMPLED_TARGETS, self.ids.numel(), 0)]
        edges = [self._subjects.around(node).edges.size for node in sample.split(1)]
        return torch.full(self.ids.shape, sum(edges) / len(edges))

    @property
    def predicts_all(self) -> bool:
        return self.ids.numel() <= CHECKED_TARGETS

    def predictions(self) -> Tensor | None:
        parts = []
        for begin, end in chunk_bounds(self._sizes_of(self.ids), self._subjects.room.memory):
            subject, places, _ = self._subjects.together(self.ids[begin:end], self.methods.values())
            parts.append(predicted_classes(subject, places))
        return None if any(part is None for part in parts) else torch.cat(cast("list[Tensor]", parts))

    def table(self, begin: int, end: int) -> pa.Table:
        tables = []
        for part in evaluated_parts(self._subjects, self.ids[begin:end], self._config):
            rows = ScoredRows.of(part.pairs, part.pair_scores, part.reductions)
            tables.append((rows if self.protocols else rows.only(rows.pairs.flow)).table())
        return pa.concat_tables(tables).combine_chunks()
