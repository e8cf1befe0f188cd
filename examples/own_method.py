"""Compare your own attribution method with GAtt: `python examples/own_method.py`.

A method is a class with a name and a method `attribute`, which scores the edges around each target.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.attention import Attention
from attree.attribution import Attribution, AttributionMethod, GAtt
from attree.evaluation import Evaluation
from attree.subject import Subject


class NeighboursOnly(AttributionMethod):
    """GAtt of the edges between different nodes. Self-loops score 0."""

    name = "neighbours_only"
    label = "GAtt, no loops"

    def attribute(self, subject: Subject | Attention, targets: Any = "all") -> Attribution:
        """Score as GAtt does, then set the scores of self-loops to 0."""
        attribution = GAtt().attribute(subject, targets)
        source, destination = attribution.graph.edge_index[:, attribution.edges]
        return replace(attribution, method=self.name, scores=attribution.scores * (source != destination))


def main() -> Evaluation:
    """Evaluate both methods on an untrained model, and print the table."""
    torch.manual_seed(0)
    graph = Data(x=torch.randn(100, 8), edge_index=torch.randint(0, 100, (2, 400)))
    model = GAT(8, 16, num_layers=2, out_channels=3)
    result = attree.evaluate(model, graph, num_targets=20, methods=["gatt", NeighboursOnly(), "random"])
    print(result)
    return result


if __name__ == "__main__":
    main()
