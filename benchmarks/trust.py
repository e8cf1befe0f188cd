"""Which explanation can be trusted? Methods against protocols, sets of edges, ground truth and cost, on many nets.

    python benchmarks/trust.py --out trust.csv            measure; a call that was stopped goes on where it was
    python benchmarks/trust.py --out trust.csv --passes   time the methods, by the processor's time
    python benchmarks/trust.py --out trust.csv --table    print the tables of docs/concepts/trust.md
    python benchmarks/trust.py --verdicts --targets 100 --nets GAT --datasets Cora,Infection,BA-Shapes,Texas,MUTAG

Each net is trained (Adam, full batches; settings below), and `--targets` random nodes (graphs of MUTAG: all of the test
split) are explained; with ground truth, random nodes that have some. Columns:

- weight, removal: Pearson of scores with dPC, the exact effect of reducing one edge, under each protocol.
- tau weight, tau removal: Kendall's tau of the same.
- sets: by how much the predicted class's probability drops when a target's 1, 3 or 10 highest-scored edges are
  removed at once: the mean over these numbers and over targets. Larger is better.
- truth: AUROC against the true edges.
- passes: seconds of scoring all targets, divided by those of one forward pass of the net. `--passes` takes them from
  the processor's time of one thread, with the pass that attention is read from, the median of three rounds; the table
  shows their median over nets.

In brackets: a 95 % interval of the mean over nets and seeds, by a bootstrap that draws nets, then seeds of each net.
`--candidates` adds the methods of benchmarks/candidates.py.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT as PyGGAT

import attree
from attree.attribution import AttributionMethod, IntegratedGradients, make_methods
from attree.data import GraphDataModule, GroundTruth
from attree.faithfulness import delete_edges
from attree.models import GAT, AttentionNet, GATv2, SuperGAT
from attree.paper.networks import make_data
from attree.subject import Subject
from candidates import candidates
from reduction import TransformerNet
from timing import Race


class Setting(NamedTuple):
    """How the nets of one dataset are trained."""

    layers: int
    hidden: int
    epochs: int
    lr: float


SETTINGS = {
    "Cora": Setting(2, 64, 60, 0.005),
    "Texas": Setting(2, 64, 60, 0.005),
    "Infection": Setting(3, 16, 300, 0.01),
    "BA-Shapes": Setting(3, 16, 500, 0.01),
    "MUTAG": Setting(3, 16, 60, 0.01),
    "CiteSeer": Setting(2, 64, 60, 0.005),
    "PubMed": Setting(2, 64, 60, 0.005),
    "Wisconsin": Setting(2, 64, 60, 0.005),
    "Cornell": Setting(2, 64, 60, 0.005),
}
NETS: dict[str, Callable[[int, int, Setting], nn.Module]] = {
    "GAT": lambda features, classes, settings: GAT(features, classes, settings.hidden, settings.layers),
    "GATv2": lambda features, classes, settings: GATv2(features, classes, settings.hidden, settings.layers),
    "PyG GAT, residual": lambda features, classes, settings: PyGGAT(
        features, settings.hidden, settings.layers, classes, residual=True
    ),
    "TransformerConv": lambda features, classes, settings: TransformerNet(
        features, settings.hidden, settings.layers, classes
    ),
    "SuperGAT": lambda features, classes, settings: SuperGAT(features, classes, settings.hidden, settings.layers),
}
COUNTS = (1, 3, 10)
COLUMNS = ("weight", "removal", "tau weight", "tau removal", "sets", "truth", "passes")


class GraphNet(nn.Module):
    """A net of nodes that classifies graphs by the mean of its nodes' logits."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Logits of every graph."""
        out = self.net(x, edge_index)
        total = out.new_zeros(int(batch.max()) + 1, out.shape[1]).index_add(0, batch, out)
        return total / batch.bincount().unsqueeze(1)


def own_methods() -> list[AttributionMethod]:
    """The methods that are compared; those that learn something for a model take too long for so many nets."""
    names: list[str | AttributionMethod] = []
    names += ["gatt", "uniform", "avgatt", "saliency", IntegratedGradients(steps=20), "attention_gradient", "occlusion"]
    named = make_methods([*names, attree.AttentionGradient("weight"), attree.Occlusion("weight"), "random"])
    return list(named.values())


def trained(
    dataset: str, net: str, seed: int, root: str, epochs: int | None = None
) -> tuple[nn.Module, Data, GroundTruth | None, float]:
    """A trained net, what it runs on, ground truth, and its test accuracy."""
    settings = SETTINGS[dataset]
    data = make_data(dataset, settings.layers, seed, root)
    data.prepare_data()
    data.setup()
    seed_everything(seed, verbose=False)  # SuperGAT draws negative edges with Python's and NumPy's generators
    model = NETS[net](data.num_features, data.num_classes, settings)
    if isinstance(data, GraphDataModule):
        model = GraphNet(model)
        train = [data.graphs[position] for position in data.split["train"]]
        test: Data = Batch.from_data_list([data.graphs[position] for position in data.split["test"]])
    else:
        test = data.graph
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    model.train()
    for _ in range(settings.epochs if epochs is None else epochs):
        for batch in DataLoader(train, 64, shuffle=True) if isinstance(data, GraphDataModule) else [test]:
            optimizer.zero_grad()
            loss = _loss(model, batch)
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        if isinstance(data, GraphDataModule):
            right = model(test.x, test.edge_index, test.batch).argmax(dim=1) == test.y
            return model, test, None, float(right.float().mean())
        right = (model(test.x, test.edge_index).argmax(dim=1) == test.y)[test.test_mask]
    return model, test, data.truth, float(right.float().mean())


def _loss(model: nn.Module, batch: Data) -> Tensor:
    if isinstance(batch, Batch):
        return F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)
    loss = F.cross_entropy(model(batch.x, batch.edge_index)[batch.train_mask], batch.y[batch.train_mask])
    extra = model.attention_loss() if isinstance(model, AttentionNet) else None
    return loss if extra is None else loss + extra


def chosen_targets(model: nn.Module, data: Data, truth: GroundTruth | None, count: int) -> tuple[Subject, Tensor]:
    """What is explained: random nodes, of those with ground truth where there is some; all graphs of a batch."""
    graphs = isinstance(data, Batch)
    subject = Subject.of(model, data.x, data.edge_index, *((data.batch,) if graphs else ()))
    candidates = subject.targets() if truth is None else truth.targets
    order = torch.randperm(candidates.numel(), generator=torch.Generator().manual_seed(0))[: None if graphs else count]
    return subject, candidates[order.sort().values]


def measured(
    model: nn.Module, data: Data, truth: GroundTruth | None, count: int, methods: Sequence[AttributionMethod]
) -> Iterator[dict[str, float | str]]:
    """The columns of each method for one net."""
    arguments = (data.x, data.edge_index, *((data.batch,) if isinstance(data, Batch) else ()))
    subject, targets = chosen_targets(model, data, truth, count)
    true_edges = None if truth is None else truth.of_targets(targets)
    result = attree.evaluate(model, subject, targets, methods, ("weight", "removal"), true_edges, random_draws=1)
    drops = delete_edges(subject, result.pairs, result.pair_scores, (0, *COUNTS))
    with torch.no_grad():
        forward = min(_seconds(lambda: model(*arguments)) for _ in range(5))
    for method in methods:
        prefix = f"explain/{method.name}"
        probability = drops[method.name]
        fresh = subject.with_current_weights()
        _ = fresh.attention
        passes = _seconds(partial(method.attribute, fresh, result.targets)) / forward
        yield {
            "method": method.name,
            "label": method.label,
            "weight": result.metrics[f"{prefix}/weight/pc_pearson"],
            "removal": result.metrics[f"{prefix}/removal/pc_pearson"],
            "tau weight": result.metrics[f"{prefix}/weight/pc_kendall"],
            "tau removal": result.metrics[f"{prefix}/removal/pc_kendall"],
            "sets": float((probability[:, :1] - probability[:, 1:]).mean()),
            "truth": result.metrics.get(f"{prefix}/truth_auroc", float("nan")),
            "passes": passes,
        }


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure what the file does not hold yet, one net after the other, all datasets of a seed before the next seed."""
    path = Path(arguments.out)
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["dataset", "net", "seed", "method"])
    torch.set_num_threads(1)
    for seed, dataset, net in product(range(arguments.seeds), arguments.datasets, arguments.nets):
        methods = [*own_methods(), *(candidates() if arguments.candidates else [])]
        here = done[(done["dataset"] == dataset) & (done["net"] == net) & (done["seed"] == seed)]["method"]
        methods = [method for method in methods if method.name not in set(here)]
        if not methods:
            continue
        model, data, truth, accuracy = trained(dataset, net, seed, arguments.data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = list(measured(model, data, truth, arguments.targets, methods))
        about = {"dataset": dataset, "net": net, "seed": seed, "accuracy": accuracy}
        table = pd.DataFrame([about | row for row in rows])
        table.to_csv(path, mode="a", header=not path.exists(), index=False)
        print(f"{dataset}, {net}, seed {seed}: accuracy {accuracy:.3f}", flush=True)


def measure_passes(arguments: argparse.Namespace) -> None:
    """Time every method on every net as it is initialised (weights do not change the cost), by the processor's time."""
    torch.set_num_threads(1)
    rows = []
    for dataset, net in product(arguments.datasets, arguments.nets):
        model, data, truth, _ = trained(dataset, net, 0, arguments.data, epochs=0)
        call = (data.x, data.edge_index, *((data.batch,) if isinstance(data, Batch) else ()))
        subject, targets = chosen_targets(model, data, truth, arguments.targets)

        def forward(model: nn.Module = model, call: Sequence[Tensor] = call) -> object:
            with torch.no_grad():
                return model(*call)

        def score(method: AttributionMethod, subject: Subject = subject, targets: Tensor = targets) -> object:
            fresh = subject.with_current_weights()
            _ = fresh.attention
            return method.attribute(fresh, targets)

        methods = own_methods()
        contestants: dict[str, Callable[[], object]] = {method.label: partial(score, method) for method in methods}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            race = Race({"forward": forward, **contestants}, 3, time.process_time)
        passes = {method.label: race.ratio(method.label, "forward").median for method in methods}
        rows += [{"dataset": dataset, "net": net, "label": label, "passes": value} for label, value in passes.items()]
        print(f"{dataset}, {net}", flush=True)
    pd.DataFrame(rows).to_csv(_passes_file(Path(arguments.out)), index=False)


def _passes_file(path: Path) -> Path:
    return path.with_stem(f"{path.stem}_passes")


def show(path: Path) -> None:
    """Print Markdown: per dataset and method, the mean over nets and seeds and its 95 % interval."""
    rows = pd.read_csv(path)
    timed = pd.read_csv(_passes_file(path)) if _passes_file(path).exists() else rows
    for dataset in [name for name in SETTINGS if name in set(rows["dataset"])]:
        here = rows[rows["dataset"] == dataset]
        counts = here.groupby("net")["seed"].nunique()
        accuracies = here.groupby("net")["accuracy"].mean()
        print(
            f"\n## {dataset}\n\n{counts.size} networks, {_range(counts)} seeds each; test accuracy of the networks ",
            end="",
        )
        print(f"{accuracies.min():.2f} to {accuracies.max():.2f}.\n")
        columns = [column for column in COLUMNS if column != "passes" and not here[column].isna().all()]
        print("| method | " + " | ".join(columns) + " | passes |\n|---|" + "---:|" * (len(columns) + 1))
        best = here.groupby("label")[columns].mean()
        for label, of_label in here.groupby("label", sort=False):
            cells = []
            for column in columns:
                mean, (low, high) = of_label[column].mean(), interval(of_label, column)
                bold = "**" if mean >= best[column].drop(labels=_exact(best.index, column)).max() - 5e-3 else ""
                cells.append(f"{bold}{mean:.2f}{bold} ({low:.2f} to {high:.2f})")
            passes = timed[(timed["dataset"] == dataset) & (timed["label"] == label)]["passes"]
            cells.append(f"{passes.median():.3g}")
            print(f"| {label} | " + " | ".join(cells) + " |")


def interval(rows: pd.DataFrame, column: str, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """A 95 % interval of the mean over nets and seeds: nets are drawn with replacement, then seeds of each net."""
    values = [net_values[column].dropna().to_numpy() for _, net_values in rows.groupby("net")]
    values = [net_values for net_values in values if net_values.size]
    if not values:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    # One mean a net and draw, of seeds drawn with replacement; then, for each place, one of the nets.
    of_net = [
        net_values[generator.integers(net_values.size, size=(draws, len(values), net_values.size))].mean(axis=2)
        for net_values in values
    ]
    nets = generator.integers(len(values), size=(1, draws, len(values)))
    means = np.take_along_axis(np.stack(of_net), nets, axis=0)[0].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _range(counts: pd.Series) -> str:
    return str(counts.min()) if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"


def show_verdicts(arguments: argparse.Namespace) -> None:
    """Print what `attree.evaluate` with its defaults says of one net of each dataset: headline, table and findings."""
    torch.set_num_threads(1)
    for dataset, net in product(arguments.datasets, arguments.nets):
        model, data, truth, accuracy = trained(dataset, net, 0, arguments.data)
        subject, targets = chosen_targets(model, data, truth, arguments.targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            candidates = None if truth is None else truth.of_targets(targets)
            result = attree.evaluate(model, subject, targets, truth=candidates)
        title = f"### {dataset}, {net}: test accuracy {accuracy:.3f}"
        findings = "\n".join(f"- {sentence}" for sentence in result.verdict.sentences)
        print(f"{title}\n\n```text\n{result}\n```\n\n{findings}\n", flush=True)


def _exact(labels: pd.Index, column: str) -> list[str]:
    """Occlusion is perfect at single edges under its own protocol by definition: it wins nothing there."""
    return [label for label in labels if label.startswith("Occlusion") and column not in ("sets", "truth")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", default="trust.csv")
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=list(SETTINGS))
    parser.add_argument("--nets", type=lambda text: text.split(";"), default=list(NETS), help="separated by ;")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--targets", type=int, default=20)
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--passes", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--verdicts", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        show(Path(arguments.out))
    elif arguments.verdicts:
        show_verdicts(arguments)
    elif arguments.passes:
        measure_passes(arguments)
    else:
        measure_all(arguments)


if __name__ == "__main__":
    main()
