"""Which explanation can be trusted? Methods against protocols, sets of edges, ground truth and cost, on many nets.

    python benchmarks/trust.py --out trust.csv            measure; a call that was stopped goes on where it was
    python benchmarks/trust.py --out trust.csv --table    print the tables of docs/trust.md

Each net is trained (Adam, full batches; settings below), and `--targets` random nodes (graphs of MUTAG: all of the test
split) are explained; with ground truth, random nodes that have some. Columns:

- weight, removal: Pearson of scores with dPC, the exact effect of reducing one edge, under each protocol.
- tau weight, tau removal: Kendall's tau of the same.
- sets: by how much the predicted class's probability drops when a target's 1, 3 or 10 highest-scored edges are
  removed at once: the mean over these numbers and over targets. Larger is better.
- truth: AUROC against the true edges.
- passes: seconds of scoring all targets, divided by those of one forward pass of the net.

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

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT as PyGGAT

import attree
from attree.attribution import AttributionMethod, IntegratedGradients, make_methods
from attree.data import GraphDataModule, GroundTruth
from attree.faithfulness import delete_edges
from attree.models import GAT, AttentionNet, GATv2, SuperGAT
from attree.paper.net import make_data
from attree.subject import Subject
from candidates import candidates
from reduction import TransformerNet


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
    "GAT": lambda features, classes, own: GAT(features, classes, own.hidden, own.layers),
    "GATv2": lambda features, classes, own: GATv2(features, classes, own.hidden, own.layers),
    "PyG GAT, residual": lambda features, classes, own: PyGGAT(
        features, own.hidden, own.layers, classes, residual=True
    ),
    "TransformerConv": lambda features, classes, own: TransformerNet(features, own.hidden, own.layers, classes),
    "SuperGAT": lambda features, classes, own: SuperGAT(features, classes, own.hidden, own.layers),
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


def trained(dataset: str, net: str, seed: int, root: str) -> tuple[nn.Module, Data, GroundTruth | None, float]:
    """A trained net, what it runs on, ground truth, and its test accuracy."""
    own = SETTINGS[dataset]
    data = make_data(dataset, own.layers, seed, root)
    data.prepare_data()
    data.setup()
    torch.manual_seed(seed)
    model = NETS[net](data.num_features, data.num_classes, own)
    if isinstance(data, GraphDataModule):
        model = GraphNet(model)
        train = [data.graphs[position] for position in data.split["train"]]
        test: Data = Batch.from_data_list([data.graphs[position] for position in data.split["test"]])
    else:
        test = data.graph
    optimizer = torch.optim.Adam(model.parameters(), lr=own.lr)
    model.train()
    for _ in range(own.epochs):
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


def measured(
    model: nn.Module, data: Data, truth: GroundTruth | None, count: int, methods: Sequence[AttributionMethod]
) -> Iterator[dict[str, float | str]]:
    """The columns of each method for one net."""
    graphs = isinstance(data, Batch)
    arguments = (data.x, data.edge_index, *((data.batch,) if graphs else ()))
    subject = Subject.of(model, *arguments)
    known = subject.targets() if truth is None else truth.targets
    order = torch.randperm(known.numel(), generator=torch.Generator().manual_seed(0))[: None if graphs else count]
    chosen = order.sort().values
    own = None if truth is None else truth.of_targets(known[chosen])
    result = attree.evaluate(model, subject, known[chosen], methods, ("weight", "removal"), own, random_draws=1)
    drops = delete_edges(subject, result.pairs, result.pair_scores, (0, *COUNTS))
    with torch.no_grad():
        forward = min(_seconds(lambda: model(*arguments)) for _ in range(5))
    for method in methods:
        prefix = f"explain/{method.name}"
        probability = drops[method.name]
        fresh = subject.fresh()
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


def show(path: Path) -> None:
    """Print Markdown: per dataset and method, the mean over nets and seeds and the range of the nets' means."""
    rows = pd.read_csv(path)
    for dataset in [name for name in SETTINGS if name in set(rows["dataset"])]:
        here = rows[rows["dataset"] == dataset]
        nets, seeds = here["net"].nunique(), here.groupby("net")["seed"].nunique()
        print(f"\n### {dataset}\n\n{nets} nets, {seeds.min()} to {seeds.max()} seeds each.\n")
        columns = [column for column in COLUMNS if not here[column].isna().all()]
        print("| method | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
        best = here.groupby("label")[columns].mean()
        for label, own in here.groupby("label", sort=False):
            by_net = own.groupby("net")[columns].mean()
            cells = []
            for column in columns:
                mean, low, high = by_net[column].mean(), by_net[column].min(), by_net[column].max()
                if column == "passes":
                    cells.append(f"{own[column].median():,.0f}")
                else:
                    bold = "**" if mean >= best[column].drop(labels=_exact(best.index, column)).max() - 5e-3 else ""
                    cells.append(f"{bold}{mean:.2f}{bold} ({low:.2f} to {high:.2f})")
            print(f"| {label} | " + " | ".join(cells) + " |")


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
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    show(Path(arguments.out)) if arguments.table else measure_all(arguments)


if __name__ == "__main__":
    main()
