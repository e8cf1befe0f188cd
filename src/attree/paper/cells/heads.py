"""What GAtt makes of single heads: one head a layer instead of their mean."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from attree.attribution import GAtt
from attree.evaluation import evaluate
from attree.metrics.functional import pearson
from attree.paper.cells.base import Cell, Result
from attree.paper.cells.cell_context import CellContext
from attree.paper.cells.faithfulness import authors_targets
from attree.paper.net import Net
from attree.subject import Subject


@dataclass(frozen=True)
class HeadSelection(Cell):
    """Pearson of GAtt with dPC for every choice of one head a layer, the network being the same.

    Attributes:
        net: The network, of several heads in all layers but the last.
        targets: How many nodes are explained: the authors' draw.
    """

    net: Net
    targets: int = 100
    kind: ClassVar[str] = "heads"

    def __str__(self) -> str:
        return f"single heads of {self.net}"

    @property
    def dataset(self) -> str:
        return self.net.dataset

    def measure(self, context: CellContext) -> Result:
        model, accuracy = context.model(self.net)
        graph = context.node_data(self.net.dataset, self.net.layers, self.net.seed).graph
        subject = Subject.of_data(model, graph)
        evaluation = evaluate(model, subject, authors_targets(graph.num_nodes, self.targets), [GAtt()], ["weight"])
        delta = evaluation.reductions["weight"].delta_pc
        counts = [weight.shape[1] for weight in subject.attention.weights]
        found = {
            ",".join(map(str, heads)): float(pearson(GAtt(heads).score_pairs(subject, evaluation.pairs), delta))
            for heads in product(*(range(count) for count in counts))
        }
        return {"accuracy": accuracy, "pearson": found}
