"""The strongest edges of a target, and what reducing them does, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from torch import Tensor

from attree.evaluation import Evaluation

MOST_EDGES = 8


def top_edges_table(evaluation: Evaluation, labels: Tensor, count: int, ids: Tensor | None = None) -> Iterator[Table]:
    """One table each for the first few targets: edges by the first method's score, and what reducing each does.

    Args:
        evaluation: The result.
        labels: True class by target id.
        count: How many targets.
        ids: What targets are called elsewhere, where they are positions in a batch.
    """
    pairs, bounds = evaluation.pairs, evaluation.pairs.ptr.tolist()
    first = next(iter(evaluation.pair_scores))
    for position, target in enumerate(evaluation.targets[:count].tolist()):
        part = slice(bounds[position], bounds[position + 1])
        strongest = evaluation.pair_scores[first][part].argsort(descending=True)[:MOST_EDGES] + part.start
        name = target if ids is None else int(ids[position])
        table = Table(title=f"Target {name}, true class {int(labels[target])}", title_style="bold")
        table.add_column("edge")
        for method in evaluation.pair_scores:
            table.add_column(evaluation.labels.get(method, method), justify="right")
        for protocol in evaluation.reductions:
            table.add_column(f"dPC ({protocol})", justify="right")
            table.add_column("class changes", justify="right")
        for pair in strongest.tolist():
            source, destination = pairs.graph.edge_index[:, pairs.edges[pair]].tolist()
            cells = [f"{float(scores[pair]):.4f}" for scores in evaluation.pair_scores.values()]
            for reduction in evaluation.reductions.values():
                cells += [f"{float(reduction.delta_pc[pair]):+.4f}", "yes" if bool(reduction.changed[pair]) else ""]
            table.add_row(f"{source} -> {destination}", *cells)
        yield table
