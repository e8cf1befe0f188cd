"""Targets of `attree explain` that are graphs of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from attree.attribution import AttributionMethod
from attree.callbacks.explained_data import ExplainedData
from attree.errors import ArgumentError
from attree.evaluation.target_labels import predicted_classes
from attree.explain_run.call import asks_for_errors, parse_targets
from attree.explain_run.rows import SubjectRows
from attree.explain_run.targets import ExplainedTargets, predicted_labels, true_labels
from attree.faithfulness import ReductionProtocol
from attree.subject import Subject

GRAPHS_AT_ONCE = 1024
"""Number of graphs in a forward pass that computes only predictions."""


class ExplainedGraphs(ExplainedTargets):
    """Graphs of a dataset. In the rows, nodes are numbered within their graph.

    Args:
        make_subject: Makes the subject of a batch of graphs.
        data: The run's data.
        text: The graphs, as in `--targets`; see `parse_targets`.
        seed: Seed of random targets.
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
        self.labels = torch.cat([true_labels(graph.get("y"), 1) for graph in self.graphs])

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
