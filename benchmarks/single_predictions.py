"""Does attention explain single predictions? The paper's networks, pooled as the paper does it and within targets.

    nice -n 15 python benchmarks/single_predictions.py     measure, then write the numbers, the tables and the figure
    python benchmarks/single_predictions.py --tables       tables and figure alone, from the numbers

Every network of the paper, and GATv2 and SuperGAT where the paper has none, is trained by the paper's recipe with three
seeds. The 100 nodes that the authors explain (MUTAG: all test graphs) are explained by GAtt, AvgAtt, Uniform, the exact
effect of deleting an edge, and the attention gradient. Every network is one file in `--folder`, so a stopped command
goes on where it was. docs/lab/single_predictions.csv has the numbers of all of them, one row per network, protocol and
method:

- pooled: Pearson's correlation of scores and effects over the pairs of all targets, as the paper prints it.
- within: the same over the edges of each target, as the mean over targets; `within_low`, `within_high`: 95 % interval.
- minus_uniform, minus_avgatt: GAtt's `within` minus that of the two, with the ends of the interval.
- between: the share of the pooled covariance that is between targets, not between the edges of one target.
- size: pooled correlation of a score that knows only how many edges the target has: 1 / number.
- strongest: the effect of a target's strongest edge, median; with_effect: targets with an effect.
- truth: AUROC of the true edges.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator
from functools import partial
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
from attree.evaluation.certainty import influences_of
from attree.evaluation.columns import PairColumns
from attree.evaluation.metric_names import TRUTH, WITHIN, MetricName
from attree.io.files import write_npz, write_text
from attree.metrics.functional import interval_of, pearson, strongest_effects
from attree.paper.cells import paper_targets
from attree.paper.networks import Net, held_out, make_data, train
from attree.paper.printed_numbers import RECIPES, Recipe

METHODS = ("gatt", "avgatt", "uniform", "occlusion", "attention_gradient")
PROTOCOLS = ("removal", "weight", "coefficient")
MODELS = ("GAT", "GATv2", "SuperGAT-MX")
FIRST = ("Cora", "Texas", "Infection", "MUTAG", "BA-Shapes", "CiteSeer", "Wisconsin", "Cornell")
CSV, FIGURE = Path("docs/lab/single_predictions.csv"), Path("docs/images/single_predictions.png")
LABELS = {
    "gatt": "GAtt",
    "avgatt": "AvgAtt",
    "uniform": "Uniform",
    "attention_gradient": "Attention gradient",
    "occlusion": "Occlusion",
}
COLOURS = {"gatt": "#0072b2", "avgatt": "#e69f00", "uniform": "#7f7f7f", "attention_gradient": "#009e73"}

# The paper has no SuperGAT on these datasets and no other network than GAT on MUTAG: settings of their neighbours.
for dataset, layers in product(("CiteSeer", "PubMed", "Cornell", "Texas", "Wisconsin"), (2, 3)):
    RECIPES.setdefault((dataset, "SuperGAT", layers), Recipe(200, 64, 0.005, None))
for model in ("GATv2", "SuperGAT"):
    RECIPES.setdefault(("MUTAG", model, 3), Recipe(150, 16, 0.01, None))


def all_nets(seeds: int, with_arxiv: bool) -> Iterator[Net]:
    """Every network, the cheap and telling ones first: a stopped study has one seed of all before a second of some."""
    for seed in range(seeds):
        nets = [Net(dataset, model, layers, seed) for dataset, layers, model in product(FIRST, (2, 3), MODELS)]
        yield from sorted((net for net in nets if (net.dataset, net.layers) != ("MUTAG", 2)), key=is_slow)
    for models, layers, seed in product((MODELS[:2], MODELS[2:]), (2, 3), range(seeds)):
        yield from (Net("PubMed", model, layers, seed) for model in models)
    if with_arxiv:
        yield from (Net("Arxiv", model, layers) for layers, model in product((2, 3), MODELS[:2]))


def is_slow(net: Net) -> bool:
    return net.dataset == "CiteSeer"  # 3,703 features


def measure(net: Net, root: str, path: Path) -> None:
    """Train and evaluate a network; write the columns of its pairs, and what is known of it as JSON beside them."""
    began = time.perf_counter()
    data = make_data(net.dataset, net.layers, net.seed, root)
    data.prepare_data()
    data.setup()
    model, accuracy = train(net, data)
    graph: Data = held_out(data) if isinstance(data, GraphDataModule) else data.graph
    targets: Any = "all" if isinstance(data, GraphDataModule) else paper_targets(graph.num_nodes)
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
        "population": result.population,
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
    certainty = influences_of({}, pairs, None, (), population=about["population"])
    owner, counts = pairs.owner, pairs.owner.bincount(minlength=about["targets"])
    for protocol, (effects, _, _) in pairs.deltas.items():
        strongest = strongest_effects(effects, owner, about["targets"])
        name_of = partial(MetricName, statistic=WITHIN, protocol=protocol)
        within = {method: certainty.influences[str(name_of(method))] for method in METHODS}
        for method, scores in pairs.scores.items():
            low, high = interval_of(within[method])
            row: dict[str, object] = {
                "dataset": net.dataset, "net": net.model, "layers": net.layers, "seed": net.seed,
                "accuracy": about["accuracy"], "protocol": protocol, "method": method,
                "pooled": float(pearson(scores, effects)),
                "within": within[method].value, "within_low": low, "within_high": high,
            }  # fmt: skip
            for other in ("uniform", "avgatt") if method == "gatt" else ():
                value = within["gatt"].value - within[other].value
                difference = certainty.contrast(name_of("gatt"), name_of(other))
                row |= {f"minus_{other}": value}
                row |= zip((f"minus_{other}_low", f"minus_{other}_high"), interval_of(difference), strict=True)
            row |= {
                "between": between_targets(scores, effects, owner),
                "size": float(pearson(1.0 / counts[owner], effects)),
                "strongest": float(strongest.quantile(0.5)),
                "with_effect": int((strongest > 0).sum()),
                "truth": about["truth"].get(str(MetricName(method, TRUTH)), [math.nan])[0],
            }
            yield row


def summarize(nets: list[Net], folder: Path) -> None:
    """Write the numbers of all measured networks to docs."""
    paths = {net: file_of(net, folder) for net in nets}
    rows = [row for net, path in paths.items() if path.with_suffix(".json").exists() for row in rows_of(net, path)]
    pd.DataFrame(rows).round(3).to_csv(CSV, index=False)


def show(table: pd.DataFrame) -> None:
    """Print the tables of docs/concepts/trust.md (by dataset) and docs/lab/reproduction.md (by network) in Markdown."""
    for protocol in PROTOCOLS:
        of_protocol = table[table["protocol"] == protocol]
        print(f"\n## Under `{protocol}`, by dataset: pooled / within\n")
        means = of_protocol.groupby(["dataset", "method"], sort=False)[["pooled", "within", "size", "strongest"]].mean()
        print("| dataset | " + " | ".join(LABELS.values()) + " | size alone | strongest edge |")
        print("|---|" + "---:|" * (len(LABELS) + 2))
        for dataset in dict.fromkeys(of_protocol["dataset"]):
            cells = [both(means.loc[(dataset, method)]) for method in LABELS]
            gatt = means.loc[(dataset, "gatt")]
            print(f"| {dataset} | {' | '.join(cells)} | {signed(gatt['size'])} | {gatt['strongest']:.2g} |")
    for protocol in PROTOCOLS:
        print(f"\n## Under `{protocol}`: networks in which GAtt is better / worse / neither\n")
        gatt = table[(table["protocol"] == protocol) & (table["method"] == "gatt")]
        print(
            "| dataset | networks | AvgAtt: pooled above | AvgAtt: within | Uniform: pooled above | Uniform: within |"
        )
        print("|---|---:|---:|---:|---:|---:|")
        for dataset, rows in [*gatt.groupby("dataset", sort=False), ("all", gatt)]:
            cells = []
            for other in ("avgatt", "uniform"):
                same = table[(table["protocol"] == protocol) & (table["method"] == other)].loc[
                    lambda t: t.index.notna()
                ]
                keys = ["dataset", "net", "layers", "seed"]
                pooled = rows.merge(same, on=keys, suffixes=("", "_other"))
                cells.append(str(int((pooled["pooled"] > pooled["pooled_other"]).sum())))
                better = int((rows[f"minus_{other}_low"] > 0).sum())
                worse = int((rows[f"minus_{other}_high"] < 0).sum())
                cells.append(f"{better} / {worse} / {len(rows) - better - worse}")
            print(f"| {dataset} | {len(rows)} | {' | '.join(cells)} |")
    print("\n## By network, means over seeds: pooled / within (lowest and highest end of the intervals)\n")
    print("| dataset, network | protocol | " + " | ".join(LABELS[name] for name in COLOURS) + " |")
    print("|---|---|" + "---:|" * len(COLOURS))
    keys = ["dataset", "net", "layers", "protocol"]
    for key, rows in table.groupby(keys, sort=False):
        dataset, net, layers, protocol = map(str, key)
        cells = []
        for method in COLOURS:
            of_method = rows[rows["method"] == method]
            low, high = of_method["within_low"].min(), of_method["within_high"].max()
            ends = "" if of_method["within_low"].isna().any() else f" ({signed(low)} to {signed(high)})"
            cells.append(f"{both(of_method[['pooled', 'within']].mean())}{ends}")
        print(f"| {dataset}, {net} {layers} | `{protocol}` | {' | '.join(cells)} |")


def both(means: pd.Series) -> str:
    return f"{signed(means['pooled'])} / {signed(means['within'])}"


def signed(value: float) -> str:
    return f"{value:.2f}".replace("-0.00", "0.00")


def draw(table: pd.DataFrame) -> None:
    """Draw pooled and within for each method, dataset and protocol: a line from one to the other."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(table["dataset"]))[::-1]
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    means = table.groupby(["protocol", "dataset", "method"])[["pooled", "within"]].mean()
    for axis, protocol, title in zip(
        axes, ("removal", "weight"), ("Edge deleted (removal)", "Weight set to 0 (weight)"), strict=True
    ):
        for place, (method, colour) in enumerate(COLOURS.items()):
            heights = np.arange(len(names)) + 0.27 - 0.18 * place
            pooled, within = (np.array([means.loc[(protocol, name, method), column] for name in names])
                              for column in ("pooled", "within"))  # fmt: skip
            axis.hlines(heights, pooled, within, color=colour, linewidth=1.2)
            axis.scatter(pooled, heights, s=26, facecolors="white", edgecolors=colour, zorder=3)
            axis.scatter(within, heights, s=26, color=colour, zorder=4, label=LABELS[method])
        for height in range(len(names) - 1):
            axis.axhline(height + 0.5, color="#dddddd", linewidth=0.6)
        axis.axvline(0, color="#999999", linewidth=0.8)
        axis.set_title(title)
        axis.set_xlabel("correlation with effects: pooled (empty), within targets (filled)")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_xlim(-0.45, 1.02)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(FIGURE, dpi=150)


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
    if not arguments.tables:
        summarize(nets, arguments.folder)
    table = pd.read_csv(CSV)
    show(table)
    draw(table)


if __name__ == "__main__":
    main()
