"""The strongest edges of a target, and what reducing them does, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from torch import Tensor

from attree.evaluation import Evaluation

MOST_EDGES = 8


def top_edges_table(
    evaluation: Evaluation, ids: Tensor, labels: Tensor, count: int, first_nodes: Tensor | None = None
) -> Iterator[Table]:
    """One table each for the first few targets: edges by the first method's score, and what reducing each does.

    Args:
        evaluation: The result.
        ids: What the targets are called.
        labels: Their true classes.
        count: How many targets.
        first_nodes: Where targets are graphs of a batch: the number that the nodes of each count from.
    """
    pairs, bounds = evaluation.pairs, evaluation.pairs.ptr.tolist()
    first = next(iter(evaluation.pair_scores))
    for position, name in enumerate(ids[:count].tolist()):
        part = slice(bounds[position], bounds[position + 1])
        strongest = evaluation.pair_scores[first][part].argsort(descending=True)[:MOST_EDGES] + part.start
        table = Table(title=f"Target {name}, true class {int(labels[position])}", title_style="bold")
        first_node = 0 if first_nodes is None else int(first_nodes[position])
        table.add_column("edge")
        for method in evaluation.pair_scores:
            table.add_column(evaluation.labels.get(method, method), justify="right")
        for protocol in evaluation.reductions:
            table.add_column(f"dPC ({protocol})", justify="right")
            table.add_column("class changes", justify="right")
        for pair in strongest.tolist():
            source, destination = (pairs.graph.edge_index[:, pairs.edges[pair]] - first_node).tolist()
            cells = [f"{float(scores[pair]):.4f}" for scores in evaluation.pair_scores.values()]
            for reduction in evaluation.reductions.values():
                cells += [f"{float(reduction.delta_pc[pair]):+.4f}", "yes" if bool(reduction.changed[pair]) else ""]
            table.add_row(f"{source} -> {destination}", *cells)
        yield table
