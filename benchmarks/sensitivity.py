"""How much the AUROC of the methods that learn depends on settings that the paper does not give.

    python benchmarks/sensitivity.py [--data data] [--datasets ba_shapes,infection] [--layers 3]

With the paper authors' graphs and weights, self-loops masked and scored as in the paper's numbers. Then what others
make of the same: PyG's own GraphMask, whose gates are never trained, and gradients of the true class's output instead
of the predicted one's, with their sign or without. (The gradient with its sign is what Captum's Guided Backpropagation
comes to where the activation is no nn.ReLU.)
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch_geometric.explain import Explainer, GraphMaskExplainer
from torch_geometric.explain.algorithm.utils import set_masks

from attree.attention.softmax_hook import attention_convs
from attree.attribution import METHODS, Pairs
from attree.evaluation.config import Shard
from attree.evaluation.edge_sets import TruthEvaluator
from attree.metrics.functional import auroc
from runtime import Case, make, synthetic

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gnn_explainer", {"epochs": 50}),
    ("gnn_explainer", {}),
    ("gnn_explainer", {"epochs": 300}),
    ("gnn_explainer", {"lr": 0.1}),
    ("gnn_explainer", {"edge_size": 0.0, "edge_ent": 0.0}),
    ("gnn_explainer", {"epochs": 50, "feature_mask": True}),
    ("gnn_explainer", {"feature_mask": True}),
    ("gnn_explainer", {"epochs": 300, "feature_mask": True}),
    ("pg_explainer", {"epochs": 5}),
    ("pg_explainer", {"epochs": 30}),
    ("pg_explainer", {"epochs": 30, "lr": 0.01}),
    ("pg_explainer", {"epochs": 30, "seed": 1}),
    ("graph_mask", {"epochs": 20}),
    ("graph_mask", {}),
    ("graph_mask", {"epochs": 300}),
    ("graph_mask", {"seed": 1}),
    ("fastdnx", {}),
    ("fastdnx", {"seed": 1}),
    ("fastdnx", {"epochs": 100, "lr": 0.01}),
]


def pyg_graph_mask(case: Case, seed: int) -> tuple[Tensor, bool]:
    """The edge mask of PyG's GraphMask, trained on all targets, and whether any of its gates changed meanwhile."""
    torch.manual_seed(seed)
    net, edges = case.subject.model, case.subject.graph.edge_index
    for conv in attention_convs(net):
        conv.add_self_loops = False  # the graph has them, as the authors' had
    algorithm = GraphMaskExplainer(num_layers=case.subject.num_layers, epochs=20, log=False)
    explainer = Explainer(
        net,
        algorithm,
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    score_columns: list[Tensor] = []
    first = algorithm._set_masks

    def remember(*args: Any) -> None:
        first(*args)
        score_columns[:] = [parameter.detach().clone() for parameter in algorithm.gates.parameters()]

    algorithm._set_masks = remember
    mask = explainer(case.subject.call.x, edges, index=case.targets).edge_mask
    changed = any(not torch.equal(a, b) for a, b in zip(score_columns, algorithm.gates.parameters(), strict=True))
    assert isinstance(mask, Tensor)
    return mask.detach(), changed


def true_class_gradients(case: Case, labels: Tensor, pairs: Pairs) -> Tensor:
    """Gradient of every target's true class's output by the messages of all pairs' edges."""
    net, edges = case.subject.model, case.subject.graph.edge_index
    for conv in attention_convs(net):
        conv.add_self_loops = False
    mask = torch.ones(edges.shape[1], requires_grad=True)
    set_masks(net, mask, edges, apply_sigmoid=False)
    outputs = net(case.subject.call.x, edges)
    parts = []
    for number, target in enumerate(pairs.targets.tolist()):
        (gradient,) = torch.autograd.grad(outputs[target, labels[target]], mask, retain_graph=True)
        parts.append(gradient[pairs.edges[pairs.ptr[number] : pairs.ptr[number + 1]]])
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder; reads gatt_paper in it")
    parser.add_argument("--datasets", default="ba_shapes,infection")
    parser.add_argument("--layers", type=int, default=3, help="layers of the authors' networks, 2 or 3")
    arguments = parser.parse_args()
    console = Console(width=120)
    for name in arguments.datasets.split(","):
        case = synthetic(name, arguments.data, arguments.layers)
        assert case.truth is not None
        evaluator = TruthEvaluator(case.subject, case.truth, Shard())
        console.print(f"**{case.title}**\n\n| method | settings | AUROC |\n|---|---|---:|", highlight=False)
        for method, settings in VARIANTS:
            loops = {"self_loops": True} if "self_loops" in METHODS[method]().settings() else {}
            value = float(evaluator.auroc(case.subject, make(method, **settings, **loops)))
            setting_text = ", ".join(f"{key} {value}" for key, value in settings.items()) or "defaults"
            console.print(f"| {METHODS[method].label} | {setting_text} | {value:.4f} |", highlight=False)
        for seed in range(3):
            # PyG changes the model it explains: it gets one of its own.
            mask, changed = pyg_graph_mask(synthetic(name, arguments.data, arguments.layers), seed)
            pairs, labels = evaluator._pairs, evaluator._labels
            value = float(auroc(mask[pairs.edges], labels))
            console.print(f"| PyG's GraphMask | seed {seed}, gates trained: {changed} | {value:.4f} |", highlight=False)
        other = synthetic(name, arguments.data, arguments.layers)
        gradients = true_class_gradients(other, other.labels, evaluator._pairs)
        for kind, scores in (("without sign (Saliency)", gradients.abs()), ("with sign", gradients)):
            value = float(auroc(scores, evaluator._labels))
            console.print(f"| gradient | true class, {kind} | {value:.4f} |", highlight=False)


if __name__ == "__main__":
    main()
