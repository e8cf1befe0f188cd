"""What GAtt-avg's printed faithfulness could have been made of: Pearson with dPC under other readings of "average".

    python benchmarks/ablation_average.py [--data data] [--cells logs/paper/cells]

The paper prints .811/.690 (Cora, 2/3 layers), .476/.820 (CiteSeer) and .592/.830 (PubMed). Its formula is the first
column; every other one divides otherwise, or leaves a part out. Networks by the paper's recipe, seed 0, the authors'
targets, protocol `weight`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from attree.attention.capture import Attention
from attree.attribution import GAtt, GAttSim, Pairs
from attree.evaluation import evaluate
from attree.metrics.functional import pearson
from attree.paper.cells import CellContext, paper_targets
from attree.paper.networks import Net
from attree.subject import Subject


def readings(attention: Attention, pairs: Pairs, scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scores of all pairs under every reading."""
    graph, layers = pairs.graph, attention.num_layers
    ones = torch.ones(graph.num_edges)
    zeros = torch.zeros(graph.num_edges)
    weights = attention.per_edge()

    def count(only: int | None = None) -> Tensor:
        layer_weights = [zeros if only is not None and layer != only else ones for layer in range(layers)]
        return GAttSim().score_pairs(Attention.from_weights(graph, layer_weights), pairs)

    def from_layer(first: int) -> Tensor:
        layer_weights = [weights[layer] if layer >= first else zeros for layer in range(layers)]
        return GAtt().score_pairs(Attention.from_weights(graph, layer_weights), pairs)

    flows = count()
    by_layer = [count(layer) for layer in range(layers)]
    parts = [from_layer(layer) - (from_layer(layer + 1) if layer + 1 < layers else 0) for layer in range(layers)]
    means = torch.stack([part / flow.clamp(min=1) for part, flow in zip(parts, by_layer, strict=True)]).sum(dim=0)
    occurs = torch.stack([flow > 0 for flow in by_layer]).sum(dim=0).clamp(min=1)
    total = torch.zeros(pairs.targets.numel()).index_add_(0, pairs.owner, flows)[pairs.owner]
    degree = torch.bincount(graph.destination, minlength=graph.num_nodes).float()
    gatt = scores["gatt"]
    return {
        "by flows (formula)": scores["gatt_avg"],
        "by layers": gatt / occurs,
        "mean of layers' means": means / occurs,
        "by flows squared": gatt / flows.clamp(min=1) ** 2,
        "by all flows of the target": gatt / total,
        "by in-degree": gatt / degree[graph.destination[pairs.edges]],
        "by target's in-degree": gatt / degree[pairs.targets[pairs.owner]],
        "GAtt-sim by flows": scores["gatt_sim"] / flows.clamp(min=1),
        "first layer alone": parts[0],
        "without first layer": gatt - parts[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder; reads planetoid in it")
    parser.add_argument("--cells", default="logs/paper/cells", help="where `attree paper` keeps its networks")
    arguments = parser.parse_args()
    context = CellContext(arguments.data, Path(arguments.cells))
    table = Table("network")
    for dataset in ("Cora", "CiteSeer", "PubMed"):
        for layers in (2, 3):
            net = Net(dataset, "GAT", layers)
            model, _ = context.model(net)
            graph = context.node_data(Net(dataset, layers=layers)).graph
            result = evaluate(
                model, graph, paper_targets(graph.num_nodes), ["gatt", "gatt_avg", "gatt_sim"], ["weight"]
            )
            attention = Subject.of_data(model, graph).attention
            scores_by_reading = readings(attention, result.pairs, dict(result.pair_scores))
            if not table.rows:
                for name in scores_by_reading:
                    table.add_column(name)
            delta = result.reductions["weight"].delta_pc
            table.add_row(
                f"{dataset}-{layers}",
                *(f"{float(pearson(scores, delta)):.3f}" for scores in scores_by_reading.values()),
            )
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
