"""Occlusion of all nodes: what the exact effect of every edge on every target costs, beside PyG's explainers.

    python benchmarks/occlusion.py [--data data] [--graphs cora,pubmed,arxiv] [--rounds 5] [--peers cora]

A GAT of two layers, 64 hidden units wide (Arxiv: 16). Cora and PubMed: all nodes; Arxiv: 1,000 random ones, on the real
graph with random features and weights, as neither changes the cost. A round is one forward pass of the network and one
call of `Occlusion().attribute`, with all that it takes from model and graph on (pairs, one recorded pass, checks,
plan, reductions); the ratio is taken within rounds: its median and quartiles. Seconds are those of one thread of the
processor (`time.process_time`), which other work on the machine disturbs less than a clock on the wall. Memory is the
growth of the process while it works for the first time, results included.

`--peers` names graphs on which PyG's explainers are timed too, as PyG's `Explainer` runs them: one target after the
other, `--sample` random ones (GNNExplainer and Integrated Gradients: `--slow-sample`), the median of these times the
number of targets. They work on the whole graph whichever the target, so few targets tell. `--steps-alone` times the two
slow ones by one target with 1 and with 3 steps (epochs): the rest of the 50 steps, or 100 epochs, is extrapolated.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.explain import AttentionExplainer, CaptumExplainer, Explainer, GNNExplainer

import attree
from arxiv import NUM_NODES, load
from attree.data import Planetoid
from attree.models import GAT
from attree.subject import Subject
from reduction import growth
from timing import Race, timed

MODEL_CONFIG = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}


class Case(NamedTuple):
    """A network, its features and edges, and the targets."""

    model: nn.Module
    x: Tensor
    edge_index: Tensor
    targets: Tensor


def case(name: str, root: str) -> Case:
    """What is explained."""
    if name == "arxiv":
        model, x, edge_index = load(root, num_layers=2)
        return Case(model, x, edge_index, _some(NUM_NODES, 1000))
    graph = Planetoid("Cora" if name == "cora" else "PubMed", root=root).graph
    torch.manual_seed(0)
    model = GAT(graph.num_features, int(graph.y.max()) + 1, 64).eval()
    return Case(model, graph.x, graph.edge_index, torch.arange(graph.num_nodes))


def _some(total: int, count: int) -> Tensor:
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count]


def measure(name: str, root: str, rounds: int) -> tuple[Case, float]:
    """Print a graph's row of the table; returns what was explained, and the seconds of occlusion."""
    model, x, edge_index, targets = case_of_data = case(name, root)
    subject = Subject.of(model, x, edge_index)
    _ = subject.attention, subject.head

    def forward() -> Tensor:
        with torch.no_grad():
            return model(x, edge_index)

    def occlusion() -> Tensor:
        return attree.Occlusion().attribute(subject.with_current_weights(), targets).scores

    with growth() as memory:
        occlusion()
    contestants: dict[str, Callable[[], Tensor]] = {"forward": forward, "occlusion": occlusion}
    race = Race(contestants, rounds, time.process_time)
    passes, scores = race.ratio("occlusion", "forward"), race.results["occlusion"].numel()
    seconds = race.time("occlusion").median
    cells = (name, f"{targets.numel():,}", f"{scores:,}", f"{seconds:.2f}", f"{passes:.1f}")
    print(f"| {' | '.join(cells)} | {memory.mebibytes:,.0f} MiB |", flush=True)
    return case_of_data, seconds


def explain_each(case_of_data: Case, algorithm: Any, count: int) -> float:
    """Seconds that PyG's Explainer takes for all targets, from the median of some."""
    explainer = Explainer(
        copy.deepcopy(case_of_data.model),
        algorithm=algorithm,
        explanation_type="model",
        edge_mask_type="object",
        model_config=MODEL_CONFIG,
    )
    explain = partial(explainer, case_of_data.x, case_of_data.edge_index)
    targets = case_of_data.targets[_some(case_of_data.targets.numel(), count + 1)].tolist()
    explain(index=targets[0])  # the first call counts for none
    seconds = [timed(partial(explain, index=target), time.process_time)[0] for target in targets[1:]]
    return median(seconds) * case_of_data.targets.numel()


def explain_few_steps(case_of_data: Case, make: Callable[[int], Any], steps: int) -> float:
    """Seconds for all targets, from one target with 1 and with 3 steps of an algorithm whose steps cost the same."""
    seconds = []
    for count in (1, 3):
        explainer = Explainer(
            copy.deepcopy(case_of_data.model),
            algorithm=make(count),
            explanation_type="model",
            edge_mask_type="object",
            model_config=MODEL_CONFIG,
        )
        target = int(case_of_data.targets[0])
        seconds.append(
            timed(partial(explainer, case_of_data.x, case_of_data.edge_index, index=target), time.process_time)[0]
        )
    one_step, three = seconds
    return (one_step + (steps - 1) * (three - one_step) / 2) * case_of_data.targets.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--graphs", default="cora,pubmed,arxiv")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="")
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--slow-sample", type=int, default=3)
    parser.add_argument("--steps-alone", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        "| graph | targets | scores | seconds | forward passes | memory |\n|---|---:|---:|---:|---:|---:|", flush=True
    )
    measured = {name: measure(name, arguments.data, arguments.rounds) for name in arguments.graphs.split(",")}
    sample, few = arguments.sample, arguments.slow_sample
    peers: dict[str, tuple[Any, int]] = {
        "AttentionExplainer": (AttentionExplainer(), sample),
        "CaptumExplainer, Saliency": (CaptumExplainer("Saliency"), sample),
        "CaptumExplainer, Integrated Gradients": (CaptumExplainer("IntegratedGradients"), few),
        "GNNExplainer, 100 epochs": (GNNExplainer(epochs=100), few),
    }
    for name in filter(None, arguments.peers.split(",")):
        case_of_data, ours = measured[name]
        print(
            f"\n{name}: {case_of_data.targets.numel():,} targets\n\n| method | targets timed | seconds | x occlusion |"
        )
        print(f"|---|---:|---:|---:|\n| attree, occlusion | all | {ours:.2f} | 1 |", flush=True)
        if arguments.steps_alone:
            slow: dict[str, tuple[Callable[[int], Any], int]] = {
                "CaptumExplainer, Integrated Gradients": (
                    lambda count: CaptumExplainer("IntegratedGradients", n_steps=count),
                    50,
                ),
                "GNNExplainer, 100 epochs": (lambda count: GNNExplainer(epochs=count), 100),
            }
            for label, (make, steps) in slow.items():
                seconds = explain_few_steps(case_of_data, make, steps)
                print(f"| PyG {label} | 1, few steps | ~{seconds:,.0f} | {seconds / ours:,.0f} |", flush=True)
            continue
        for label, (algorithm, count) in peers.items():
            seconds = explain_each(case_of_data, algorithm, count)
            print(f"| PyG {label} | {count}, extrapolated | ~{seconds:,.0f} | {seconds / ours:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
