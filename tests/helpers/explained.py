"""A small explained model with everything that a page shows, and names that a careless page would run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from attree.attention import Attention, capture_attention
from attree.data import GroundTruth
from attree.evaluation import Evaluation, evaluate
from attree.faithfulness import reduce_attention
from attree.models import GAT
from helpers.graphs import randomize

NODES, CLASSES = 40, 3
IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"
TARGETS = (7, 3, 11, 30)
CURVES = {
    "val/acc": [(0, 0.25), (10, 0.75), (20, 0.875)],
    "explain/gatt/weight/within_pearson": [(0, 0.1), (10, float("nan")), (20, 0.5)],
    "explain/gatt/weight/pc_pearson": [(0, 0.2), (20, 0.7)],
    "train/loss": [(0, 2.0), (20, 0.5)],
    "other/thing": [(0, 2.0), (20, 0.5)],
}


@dataclass(frozen=True)
class ExplainedModel:
    """An evaluation, and what a page is told beside it."""

    evaluation: Evaluation
    attention: Attention
    truth: GroundTruth
    options: dict[str, Any]


def explained_model(num_layers: int = 2) -> ExplainedModel:
    """A GAT on a random graph, explained for a few of its nodes."""
    generator = torch.Generator().manual_seed(3)
    edge_index = torch.cat([torch.randint(0, NODES, (2, 90), generator=generator), torch.tensor([[5], [7]])], dim=1)
    graph = Data(x=torch.randn(NODES, 6, generator=generator), edge_index=edge_index)
    net = randomize(GAT(6, CLASSES, hidden_channels=8, num_layers=num_layers, heads=2), seed=1, scale=0.6).eval()
    targets = torch.tensor(TARGETS)
    truth = ground_truth(edge_index)
    evaluation = evaluate(net, graph, targets, ("gatt", "avgatt", "random"), ("weight", "removal"), truth)
    reductions = {
        name: reduce_attention(net, graph.x, edge_index, evaluation.pairs, name, with_probability=True)
        for name in evaluation.reductions
    }
    evaluation = replace(evaluation, reductions=reductions)
    attention = capture_attention(net, graph.x, edge_index)
    names = [f"n{node}" for node in range(NODES)]
    names[3], names[5] = IMAGE, SCRIPT
    options = {
        "title": f"A page {IMAGE}",
        "attention": attention,
        "predictions": attention.output.softmax(-1)[targets],
        "true_classes": (attention.output.argmax(-1)[targets] + torch.tensor([0, 1, 0, 0])) % CLASSES,
        "class_names": ["red", f"green {IMAGE}", "blue"],
        "node_names": names,
        "truth": truth,
        "curves": CURVES,
        "summary": {"data set": SCRIPT},
    }
    return ExplainedModel(evaluation, attention, truth, options)


def ground_truth(edge_index: Tensor) -> GroundTruth:
    """The edges that enter node 7 explain it; the loop of node 11 explains that; others have no ground truth."""
    entering = edge_index[:, (edge_index[1] == 7) & (edge_index[0] != 7)]
    edges = torch.cat([torch.tensor([[11], [11]]), entering], dim=1)
    return GroundTruth(torch.tensor([11, 7]), edges, torch.tensor([0, 1, edges.shape[1]]))
