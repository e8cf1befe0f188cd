"""Does attention explain single predictions? The paper's networks, pooled as the paper does it and within targets.

    nice -n 15 python benchmarks/single_predictions.py --folder logs/single_predictions     measure, then the tables
    python benchmarks/single_predictions.py --folder logs/single_predictions --tables       tables and figure alone

Every network of the paper, and GATv2 and SuperGAT where the paper has none, is trained by the paper's recipe with three
seeds. The 100 nodes that the authors explain (MUTAG: all test graphs) are explained by GAtt, AvgAtt, Uniform, the exact
effect of deleting an edge, and the attention gradient. Every network is one file in the folder, so a stopped command
goes on where it was. The tables need these files; the numbers behind them are in docs/single_predictions.csv:

- pooled: Pearson's correlation of scores and effects over the pairs of all targets, as the paper prints it.
- within: the same over the edges of each target, as the mean over targets.
- size: pooled correlation of a score that knows only how many edges the target has: 1 / number.
- between: the share of the pooled covariance that is between targets, not between the edges of one target.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

import attree
from attree.data import GraphDataModule
from attree.evaluation.certainty import PairColumns, influences_of
from attree.evaluation.names import TRUTH, WITHIN, MetricName
from attree.io.files import write_npz, write_text
from attree.metrics.functional import interval_of, pearson, strongest_effects
from attree.paper.cells import authors_targets
from attree.paper.net import Net, held_out, make_data, train
from attree.paper.printed_numbers import RECIPES, Recipe

METHODS = ("gatt", "avgatt", "uniform", "occlusion", "attention_gradient")
PROTOCOLS = ("removal", "weight", "coefficient")
MODELS = ("GAT", "GATv2", "SuperGAT-MX")
FIRST = ("Cora", "Texas", "Infection", "MUTAG", "BA-Shapes", "CiteSeer", "Wisconsin", "Cornell")
CSV, FIGURE = Path("docs/single_predictions.csv"), Path("docs/figures/single_predictions.png")

# The paper has no SuperGAT on these datasets and no other network than GAT on MUTAG: settings of their neighbours.
for dataset, layers in product(("CiteSeer", "PubMed", "Cornell", "Texas", "Wisconsin"), (2, 3)):
    RECIPES.setdefault((dataset, "SuperGAT", layers), Recipe(200, 64, 0.005, None))
for model in ("GATv2", "SuperGAT"):
    RECIPES.setdefault(("MUTAG", model, 3), Recipe(150, 16, 0.01, None))


def all_nets(seeds: int, with_arxiv: bool) -> Iterator[Net]:
    """Every network, the cheap and telling ones first: a stopped study has one seed of all before a second of some."""
    for seed in range(seeds):
        for dataset, layers, model in product(FIRST, (2, 3), MODELS):
            if (dataset, layers) != ("MUTAG", 2):
                yield Net(dataset, model, layers, seed)
    for seed, layers, model in product(range(seeds), (2, 3), MODELS):
        yield Net("PubMed", model, layers, seed)
    if with_arxiv:
        yield from (Net("Arxiv", model, layers) for layers, model in product((2, 3), MODELS[:2]))


def measure(net: Net, root: str, path: Path) -> None:
    """Train and evaluate a network; write the columns of its pairs, and what is known of it as JSON beside them."""
    began = time.perf_counter()
    data = make_data(net.dataset, net.layers, net.seed, root)
    data.prepare_data()
    data.setup()
    model, accuracy = train(net, data)
    graph: Data = held_out(data) if isinstance(data, GraphDataModule) else data.graph
    targets: Any = "all" if isinstance(data, GraphDataModule) else authors_targets(graph.num_nodes)
    truth = None if isinstance(data, GraphDataModule) else data.truth
    result = attree.evaluate(model, graph, targets, METHODS, PROTOCOLS, truth)
    pairs = result.columns().on_cpu()
    arrays = {"owner": pairs.owner.numpy()} | {f"scores/{name}": v.numpy() for name, v in pairs.scores.items()}
    for name, deltas in pairs.deltas.items():
        arrays |= {f"{kind}/{name}": v.numpy() for kind, v in zip(("pc", "ne", "changed"), deltas, strict=True)}
    truth_names = [str(MetricName(method, TRUTH)) for method in METHODS]
    about = {
        "accuracy": accuracy,
        "targets": result.num_targets,
        "truth": {
            name: [result.metrics[name], *result.intervals[name]] for name in truth_names if name in result.metrics
        },
        "seconds": time.perf_counter() - began,
    }
    write_npz(path, **arrays)
    write_text(path.with_suffix(".json"), json.dumps(about))


def read(path: Path) -> tuple[PairColumns, dict[str, Any]]:
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    scores = {name: arrays[f"scores/{name}"] for name in METHODS}
    deltas = {name: (arrays[f"pc/{name}"], arrays[f"ne/{name}"], arrays[f"changed/{name}"]) for name in PROTOCOLS}
    return PairColumns(arrays["owner"], scores, deltas), json.loads(path.with_suffix(".json").read_text())


def between_targets(scores: Tensor, effects: Tensor, owner: Tensor) -> float:
    """The share of the covariance of scores and effects that is between the means of targets."""
    x, y = (column.double() - column.double().mean() for column in (scores, effects))
    counts = owner.bincount().clamp(min=1)
    means = [torch.zeros(len(counts), dtype=x.dtype).index_add(0, owner, column) / counts for column in (x, y)]
    whole = float((x * y).sum())
    return float((counts * means[0] * means[1]).sum()) / whole if whole else math.nan


def rows_of(net: Net, path: Path) -> Iterator[dict[str, object]]:
    pairs, about = read(path)
    certainty = influences_of({}, pairs, None, ())
    owner, counts = pairs.owner, pairs.owner.bincount(minlength=about["targets"])
    for protocol, (effects, _, _) in pairs.deltas.items():
        strongest = strongest_effects(effects, owner, about["targets"])
        sizes = {
            "size": float(pearson(1.0 / counts[owner], effects)),
            "strongest": float(strongest.quantile(0.5)),
            "with_effect": int((strongest > 0).sum()),
        }
        for method, scores in pairs.scores.items():
            row: dict[str, object] = {
                "dataset": net.dataset, "net": net.model, "layers": net.layers, "seed": net.seed,
                "accuracy": about["accuracy"], "protocol": protocol, "method": method,
            }  # fmt: skip
            for name, statistic in (("pooled", "pc_pearson"), ("within", WITHIN)):
                influence = certainty.influences[str(MetricName(method, statistic, protocol))]
                low, high = interval_of(influence)
                row |= {name: influence.value, f"{name}_low": low, f"{name}_high": high}
            row |= {"between": between_targets(scores, effects, owner), **sizes}
            row["truth"] = about["truth"].get(str(MetricName(method, TRUTH)), [math.nan])[0]
            yield row


def summarize(nets: list[Net], folder: Path) -> pd.DataFrame:
    """The numbers of all measured networks, also written to docs."""
    paths = {net: file_of(net, folder) for net in nets}
    rows = [row for net, path in paths.items() if path.with_suffix(".json").exists() for row in rows_of(net, path)]
    table = pd.DataFrame(rows)
    table.round(4).to_csv(CSV, index=False)
    return table


def file_of(net: Net, folder: Path) -> Path:
    return folder / f"{net.dataset}_{net.model}_{net.layers}_{net.seed}.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--folder", type=Path, default=Path("logs/single_predictions"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arxiv", action="store_true", help="also Arxiv, one seed")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    nets = list(all_nets(arguments.seeds, arguments.arxiv))
    for net in [] if arguments.tables else nets:
        path = file_of(net, arguments.folder)
        if not path.with_suffix(".json").exists():  # written last
            measure(net, arguments.data, path)
            print(f"{net}: {json.loads(path.with_suffix('.json').read_text())['seconds']:.0f} s", flush=True)
    summarize(nets, arguments.folder)


if __name__ == "__main__":
    main()
