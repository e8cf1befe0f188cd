"""The strongest edges of a target, and what reducing them does, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text
from torch import Tensor

from attree.evaluation import Evaluation
from attree.evaluation.target_labels import TargetLabels

MOST_EDGES = 8
CHANGED = "*: the predicted class changes"


def top_edges_table(
    evaluation: Evaluation,
    ids: Tensor,
    labels: Tensor,
    count: int,
    first_nodes: Tensor | None = None,
    class_names: Sequence[str] | None = None,
) -> Iterator[Table]:
    """One table each for the first few targets: edges by the first method's score, and what reducing each does.

    Args:
        evaluation: The result.
        ids: What the targets are called.
        labels: Their true classes.
        count: How many targets.
        first_nodes: Where targets are graphs of a batch: the number that the nodes of each count from.
        class_names: What classes are called; by default their numbers.
    """
    pairs, bounds = evaluation.pairs, evaluation.pairs.ptr.tolist()
    first = next(iter(evaluation.pair_scores))
    for position, name in enumerate(ids[:count].tolist()):
        part = slice(bounds[position], bounds[position + 1])
        strongest = evaluation.pair_scores[first][part].argsort(descending=True)[:MOST_EDGES] + part.start
        true = TargetLabels(class_names=class_names).class_name(int(labels[position]))
        title = Text(f"Target {name}, true class {true}", style="bold")
        table = Table(title=title, caption=CHANGED if evaluation.reductions else None, padding=(0, 1, 0, 0))
        first_node = 0 if first_nodes is None else int(first_nodes[position])
        table.add_column("edge", no_wrap=True)
        for method in evaluation.pair_scores:
            words = evaluation.labels.get(method, method).replace(" ", "\n")
            table.add_column(Text(words), justify="right")
        for protocol in evaluation.reductions:
            table.add_column(Text(f"dPC\n{protocol}"), justify="right")
        for pair in strongest.tolist():
            source, destination = (pairs.graph.edge_index[:, pairs.edges[pair]] - first_node).tolist()
            cells = [f"{float(scores[pair]):.4f}" for scores in evaluation.pair_scores.values()]
            for reduction in evaluation.reductions.values():
                cells.append(f"{float(reduction.delta_pc[pair]):+.4f}{'*' if bool(reduction.changed[pair]) else ' '}")
            table.add_row(f"{source} -> {destination}", *cells)
        yield table
