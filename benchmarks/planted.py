"""All cheap methods on the networks of `attree.planted`, whose right explanation is known: tables in Markdown.

    python benchmarks/planted.py [--seeds 5]

The first table has what is true in each case, with the measured range of each target's strongest effect. The second has
the AUROC of the true edges, the third the mean correlation within targets. Cells are means over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import torch

import attree
from attree.attribution import METHODS
from attree.evaluation import Evaluation
from attree.metrics.functional import strongest_effects
from attree.planted import NAMES, PlantedCase

METHOD_NAMES = (
    "gatt",
    "avgatt",
    "uniform",
    "saliency",
    "integrated_gradients",
    "attention_gradient",
    "occlusion",
    "random",
)
PROTOCOLS = ("removal", "weight")


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def header(columns: Sequence[str], text: int = 1) -> str:
    """The first `text` columns are aligned to the left, numbers to the right."""
    return f"{row(columns)}\n|{'---|' * text}{'---:|' * (len(columns) - text)}"


def range_of(results: list[Evaluation], protocol: str) -> str:
    """The smallest and the largest of the targets' strongest effects."""
    strongest = torch.cat(
        [
            strongest_effects(result.reductions[protocol].delta_pc, result.pairs.owner, result.num_targets)
            for result in results
        ]
    )
    low, high = float(strongest.min()), float(strongest.max())
    return "0" if high == 0.0 else f"{low:.2g} to {high:.2g}"


def mean_cell(values: list[float]) -> str:
    mean = float(torch.tensor(values).mean())
    return "" if mean != mean else f"{mean:.2f}".replace("-0.00", "0.00")


def measure(cases: list[PlantedCase]) -> list[Evaluation]:
    return [attree.evaluate(case.model, case.data, case.targets, METHOD_NAMES, PROTOCOLS, case.truth) for case in cases]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of graphs per case")
    seeds = range(parser.parse_args().seeds)
    cases = {name: [attree.planted.make(name, seed) for seed in seeds] for name in NAMES}
    results = {name: measure(of_name) for name, of_name in cases.items()}

    print(
        header(["case", "what is true", "attention matters", *(f"strongest edge, `{name}`" for name in PROTOCOLS)], 3)
    )
    for name, (case, *_) in cases.items():
        matters = "yes" if case.facts.attention_matters else "no"
        ranges = (range_of(results[name], protocol) for protocol in PROTOCOLS)
        print(row([f"`{name}`", case.sentence, matters, *ranges]))

    print("\nWhat a verdict says of the first graph of each case, by default methods:\n")
    for name, (case, *_) in cases.items():
        verdict = attree.evaluate(case.model, case.data, case.targets, truth=case.truth).verdict
        print(f"- `{name}`: {' '.join([*verdict.headline.splitlines(), *verdict.cautions])}")

    with_truth = [name for name in NAMES if cases[name][0].has_true_edges]
    print("\nTrue edges, AUROC:\n\n" + header(["method", *(f"`{name}`" for name in with_truth)]))
    for method in METHOD_NAMES:
        areas = ([result.metrics[f"explain/{method}/truth_auroc"] for result in results[name]] for name in with_truth)
        print(row([METHODS[method].label, *map(mean_cell, areas)]))

    for protocol in PROTOCOLS:
        print(f"\nWithin targets, Pearson, `{protocol}`:\n\n" + header(["method", *(f"`{name}`" for name in NAMES)]))
        for method in METHOD_NAMES:
            metric = f"explain/{method}/{protocol}/within_pearson"
            means = ([result.metrics[metric] for result in results[name]] for name in NAMES)
            print(row([METHODS[method].label, *map(mean_cell, means)]))


if __name__ == "__main__":
    main()
