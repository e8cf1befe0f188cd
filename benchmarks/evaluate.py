"""What `attree.evaluate` with its defaults costs beside the same call without what came later.

    python benchmarks/evaluate.py [--data data] [--cases "Cora;Texas;Infection, truth"] [--rounds 9]

Both take the same net as it is initialised, 100 targets and both default protocols, from the model and the graph on.

- plain: GAtt, AvgAtt and random scores, no intervals; the table as text, without a verdict.
- defaults: all default methods (also uniform attention and occlusion), and the printed text: the table with 95 %
  intervals, and the verdict.
- defaults, no text: the same without the text, and so without intervals and verdict, which are made when asked for.

The turns alternate; a ratio is taken within each round: its median and, in brackets, its quartiles. Seconds are those
of one thread of the processor (`time.process_time`), which other work on the machine disturbs less than a clock on the
wall.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial

import torch
from torch import nn
from torch_geometric.data import Data

import attree
from attree.data import GroundTruth, NodeDataModule
from attree.evaluation import EvaluationConfig, Evaluator
from attree.models import GAT
from attree.paper.networks import make_data
from attree.source import Reading, explained_by_user
from timing import Race

TARGETS = 100
PLAIN = ("gatt", "avgatt", "random")
LAYERS = {"Infection": 3, "BA-Shapes": 3}


def case(name: str, root: str) -> tuple[nn.Module, Data, torch.Tensor, GroundTruth | None]:
    """A net, its graph, the targets, and their ground truth where the name asks for it."""
    dataset, _, wish = name.partition(", ")
    layers = LAYERS.get(dataset, 2)
    data = make_data(dataset, layers, 0, root)
    if not isinstance(data, NodeDataModule):
        raise SystemExit(f"{dataset} has graphs; this measures nodes of one graph")
    data.prepare_data()
    data.setup()
    torch.manual_seed(0)
    model = GAT(data.num_features, data.num_classes, 64 if layers == 2 else 16, layers).eval()
    candidates = torch.arange(data.graph.num_nodes) if data.truth is None else data.truth.targets
    order = torch.randperm(candidates.numel(), generator=torch.Generator().manual_seed(0))[:TARGETS]
    targets = candidates[order.sort().values]
    return model, data.graph, targets, data.truth.of_targets(targets) if wish and data.truth is not None else None


def plain(model: nn.Module, graph: Data, targets: torch.Tensor, truth: GroundTruth | None) -> str:
    """The table of three methods, without intervals."""
    explained = explained_by_user(model, graph, targets, None, Reading(), truth, 0)
    config = EvaluationConfig(PLAIN, intervals=False)
    evaluator = Evaluator(explained.subject, targets, config, truth, labels=explained.labels)
    table: str = evaluator.evaluate().to_pandas().to_string()
    return table


def defaults(model: nn.Module, graph: Data, targets: torch.Tensor, truth: GroundTruth | None, text: bool = True) -> str:
    """What is printed of an evaluation with all defaults."""
    result = attree.evaluate(model, graph, targets, truth=truth)
    return str(result) if text else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--cases", type=lambda text: text.split(";"), default=["Cora", "Texas", "Infection, truth"])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        "| data | plain, seconds | defaults, no text, x plain | defaults, x plain |\n|---|---:|---:|---:|", flush=True
    )
    for name in arguments.cases:
        dataset_case = case(name, arguments.data)
        contestants = {
            "plain": partial(plain, *dataset_case),
            "no text": partial(defaults, *dataset_case, text=False),
            "defaults": partial(defaults, *dataset_case),
        }
        race = Race(contestants, arguments.rounds, time.process_time)
        ratios = (f"{race.ratio(name_of_run, 'plain'):.2f}" for name_of_run in ("no text", "defaults"))
        print(f"| {name} | {race.time('plain').median:.3f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
