"""GAtt of many targets beside what else gives edge attributions, as ratios in one process.

    python benchmarks/attribution.py [--data data] [--datasets infection,cora] [--sample 50]

Ours is timed for all targets: once from the captured attention on (`attribute`), and once from the bare model and graph
on, forward pass included (`all in`), each the best of several runs. The others explain one target after the other, so
they are timed on a sample of targets and extrapolated to all: the matrix form by its mean, as its work depends on the
target, with what it prepares once counted once; PyG's explainers by their fastest target. The ratios are what carries
over to other machines.

- matrix form, edge by edge: the paper's equation with sparse matrices, C(k) = A(L) ... A(L - k + 1) made once, then
  for every edge of a target's L-hop subgraph the sum over the layers. Its scores are compared with ours.
- PyG AttentionExplainer, CaptumExplainer (Saliency) and GNNExplainer (100 epochs), as PyG's Explainer runs them.

Models are the authors' where their files are in the data folder, else GATs as they are initialised: times do not
depend on the weights.
"""

from __future__ import annotations

import argparse
import copy
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import AttentionExplainer, CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.utils import k_hop_subgraph

from attree.attention import Attention, capture_attention
from attree.attribution import Attribution, GAtt
from attree.data import BAShapes, Infection, Planetoid
from attree.models import GAT
from attree.paper.networks import load_authors_gat
from timing import best

NUM_LAYERS = 3
MODEL_CONFIG = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}


class Case(NamedTuple):
    """What is explained."""

    name: str
    graph: Data
    model: nn.Module
    targets: Tensor


class Timing(NamedTuple):
    """Seconds for all targets, and of how many that was measured."""

    name: str
    seconds: float
    measured: int


def load(name: str, root: str) -> Case:
    """A dataset, its targets, and a model for it."""
    weights = Path(root, "gatt_paper", f"gat_{name}_3layer.npz")
    authors = weights.is_file()
    if name == "infection":
        data: Any = Infection(num_layers=NUM_LAYERS, source="authors" if authors else "generated", root=root)
    elif name == "ba_shapes":
        data = BAShapes(source="authors" if authors else "generated", root=root)
    else:
        data = Planetoid(name="Cora", root=root)
    torch.manual_seed(0)
    model = load_authors_gat(weights) if authors else GAT(data.num_features, data.num_classes, num_layers=NUM_LAYERS)
    targets = torch.arange(data.graph.num_nodes) if data.truth is None else data.truth.targets
    return Case(data.name, data.graph, model.eval(), targets)


def elapsed(function: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def matrix_form(attention: Attention, targets: Tensor) -> tuple[float, float, list[dict[int, float]]]:
    """Seconds to prepare, seconds for the targets, and their scores by edge, from the paper's equation."""
    graph, size = attention.graph, (attention.graph.num_nodes,) * 2
    start = time.perf_counter()
    # A[m - 1] is A(m), with A(m)[j, i] the attention of edge i -> j; reach[k] is C(k).
    matrices = [torch.sparse_coo_tensor(graph.edge_index.flip(0), w, size).coalesce() for w in attention.per_edge()]
    reach = [torch.sparse_coo_tensor(torch.arange(size[0]).expand(2, -1), torch.ones(size[0]), size).coalesce()]
    for matrix in reversed(matrices[1:]):
        reach.append(torch.sparse.mm(reach[-1], matrix).coalesce())
    prepared = time.perf_counter()
    scores: list[dict[int, float]] = []
    for target in track(targets.tolist(), "matrix form, edge by edge", transient=True):
        _, _, _, inside = k_hop_subgraph(target, len(matrices), graph.edge_index, num_nodes=graph.num_nodes)
        scores.append({})
        for edge in inside.nonzero().view(-1).tolist():
            i, j = graph.edge_index[:, edge].tolist()
            terms = (reach[len(matrices) - m][target, j] * matrices[m - 1][j, i] for m in range(1, len(matrices) + 1))
            scores[-1][edge] = float(sum(terms))
    return prepared - start, time.perf_counter() - prepared, scores


def largest_difference(scores: list[dict[int, float]], targets: Tensor, ours: Attribution) -> float:
    """How far the matrix form's scores are from ours."""
    worst = 0.0
    for target, of_edge in zip(targets.tolist(), scores, strict=True):
        dense = ours.dense(target)
        worst = max([worst, *(abs(score - float(dense[edge])) for edge, score in of_edge.items())])
    return worst


def explain_each(case: Case, name: str, algorithm: Any, targets: Tensor) -> float:
    """Seconds that PyG's Explainer takes for a target, at best: its work does not depend on the target."""
    explainer = Explainer(
        copy.deepcopy(case.model),
        algorithm=algorithm,
        explanation_type="model",
        edge_mask_type="object",
        model_config=MODEL_CONFIG,
    )
    explainer(case.graph.x, case.graph.edge_index, index=int(targets[0]))  # warm
    calls = (
        lambda target=target: explainer(case.graph.x, case.graph.edge_index, index=target)
        for target in targets.tolist()
    )
    return min(elapsed(call) for call in track(calls, name, targets.numel(), transient=True))


def measure(case: Case, sample: int, epochs_sample: int, console: Console) -> None:
    x, edge_index = case.graph.x, case.graph.edge_index
    method = GAtt()
    attention = capture_attention(case.model, x, edge_index)
    ours = method.attribute(attention, case.targets)
    total = case.targets.numel()

    alone, _ = best(lambda: method.attribute(attention, case.targets), 30)
    all_in, _ = best(lambda: method.attribute(capture_attention(case.model, x, edge_index), case.targets), 30)

    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    slow_targets, few = case.targets[order[:sample]], case.targets[order[:epochs_sample]]
    once, seconds, scores = matrix_form(attention, slow_targets)
    timings = [Timing("matrix form, edge by edge", once + seconds / slow_targets.numel() * total, slow_targets.numel())]
    for name, algorithm, targets_of_method in (
        ("PyG AttentionExplainer", AttentionExplainer(), slow_targets),
        ("CaptumExplainer Saliency", CaptumExplainer("Saliency"), slow_targets),
        ("GNNExplainer, 100 epochs", GNNExplainer(epochs=100), few),
    ):
        timings.append(
            Timing(name, explain_each(case, name, algorithm, targets_of_method) * total, targets_of_method.numel())
        )

    threads = torch.get_num_threads()
    table = Table(
        title=f"{case.name}: {total:,} targets, {NUM_LAYERS} layers, {ours.scores.numel():,} scores, {threads} threads"
    )
    for column in ("", "seconds", "measured on", "x ours, attribute", "x ours, all in"):
        table.add_column(column, justify="left" if column == "" else "right")
    table.add_row("attree GAtt, attribute", f"{alone:.4f}", f"all {total:,}", "1", "")
    table.add_row("attree GAtt, all in", f"{all_in:.4f}", f"all {total:,}", "", "1")
    for timing in timings:
        measured = f"{timing.measured:,}, extrapolated" if timing.measured < total else f"all {total:,}"
        ratios = (f"{timing.seconds / ours_seconds:,.0f}" for ours_seconds in (alone, all_in))
        table.add_row(timing.name, f"{timing.seconds:,.1f}", measured, *ratios)
    console.print(table)
    console.print(
        f"largest difference between the matrix form and ours: {largest_difference(scores, slow_targets, ours):.1e}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder")
    parser.add_argument("--datasets", default="ba_shapes,infection,cora", help="any of ba_shapes, infection, cora")
    parser.add_argument("--sample", type=int, default=50, help="targets that the others are timed on")
    parser.add_argument("--epochs-sample", type=int, default=5, help="targets that GNNExplainer is timed on")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", "Sparse")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    names = arguments.datasets.split(",")
    unknown = sorted(set(names) - {"ba_shapes", "infection", "cora"})
    if unknown:
        parser.error(f"unknown datasets: {', '.join(unknown)}")
    for name in names:
        measure(load(name, arguments.data), arguments.sample, arguments.epochs_sample, Console(width=110))


if __name__ == "__main__":
    main()
