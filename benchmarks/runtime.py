"""All methods of the paper beside each other: how long they take, and how well they find the true edges.

    python benchmarks/runtime.py [--data data] [--datasets ba_shapes,infection,arxiv] [--layers 3] [--out folder]

BA-Shapes (400 targets) and Infection (974) with the paper authors' graphs and weights, 3 layers; ogbn-arxiv's graph
(10,000 random targets) with a GAT of 2 layers as it is initialised and random features as wide as the real ones.

- seconds: from the model and the graph to the scores of all targets, forward pass and training included. Each method
  takes turns with GAtt, five rounds (methods that are fitted: one), after one that does not count: medians, and the
  quartiles of the ratios within rounds.
- PyG's seconds: the same by PyG's own explainer, one target after the other on the whole graph: the mean of a few
  random targets, times their number; and how many times attree's seconds that is.
- On Arxiv, slow methods are timed on a few targets and with few epochs (marked ~): what grows with targets is
  multiplied by the share of edges that those targets have among all, training by the share of epochs.
- AUROC: over all pairs of all targets, self-loops of masks 0, as in PyG; `loops` masks and scores self-loops too, as
  on the graphs with explicit self-loops that the paper's numbers come from.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from rich.console import Console
from torch import Tensor
from torch_geometric.explain import CaptumExplainer, Explainer
from torch_geometric.explain import GNNExplainer as PyGGNNExplainer

from arxiv import NUM_NODES, load
from attree.attribution import METHODS, AttributionMethod
from attree.attribution.posthoc import TrainedMethod
from attree.data import BAShapes, GroundTruth, Infection
from attree.evaluation.config import Shard
from attree.evaluation.edge_sets import TruthEvaluator
from attree.paper.networks import load_authors_gat
from attree.report.score_figures import MethodPoint, accuracy_runtime_figure
from attree.subject import Subject
from timing import Race, Spread, timed

ORDER = (
    *("gatt", "avgatt", "uniform", "saliency", "guided_backprop", "integrated_gradients"),
    *("gnn_explainer", "pg_explainer", "graph_mask", "fastdnx", "attention_gradient", "occlusion", "random"),
)
HOUR = 3600.0
PAPER_SECONDS: dict[str, dict[str, float]] = {
    "ba_shapes": dict(zip(("gatt", *ORDER[3:10]), (0.48, 1.58, 1.60, 69.8, 250, 318, 36.8, 2.24), strict=True)),
    "infection": dict(zip(("gatt", *ORDER[3:10]), (7.14, 4.44, 4.53, 235, 598, 904, 136, 3.90), strict=True)),
    "arxiv": {
        "gatt": 924,
        "saliency": 232,
        "guided_backprop": 232,
        "integrated_gradients": 3 * HOUR + 11 * 60,
        "gnn_explainer": 8 * HOUR + 18 * 60,
        "pg_explainer": 14 * HOUR + 54 * 60,
    },
}
"""The paper's runtimes on its GPU: GAtt in batches, on Arxiv by matrices; GraphMask and FastDnX ran out of memory."""

PAPER_AUROC = {
    "ba_shapes": (0.9591, 0.7977, 0.9563, 0.6231, 0.6231, 0.8916, 0.8289, 0.5316, 0.9917, 0.4975),
    "infection": (0.9976, 0.8786, 0.8237, 0.8949, 0.9472, 0.9272, 0.7173, 0.6859, 0.6574, 0.4811),
}
"""The paper's AUROC of 3-layer GATs, in its order of methods, which has neither uniform attention nor effects."""

PAPER_LAYERS = {"ba_shapes": 3, "infection": 3, "arxiv": 2}
"""Depth of the networks that both are of."""

CAPTUM = {"saliency": "Saliency", "guided_backprop": "GuidedBackprop", "integrated_gradients": "IntegratedGradients"}

FEW_EPOCHS = {"pg_explainer": 1, "graph_mask": 2, "fastdnx": 20}
FEW_TARGETS = {"integrated_gradients": 4, "gnn_explainer": 2}
"""What slow methods are timed with on large graphs."""


class Case(NamedTuple):
    """What is explained."""

    name: str
    title: str
    subject: Subject
    targets: Tensor
    labels: Tensor
    truth: GroundTruth | None
    large: bool


class Row(NamedTuple):
    """One method's line of the table."""

    method: str
    seconds: float
    ratio: Spread
    estimated: bool
    pyg_seconds: float | None
    paper_seconds: float | None
    auroc: float | None
    auroc_loops: float | None
    paper_auroc: float | None


def synthetic(name: str, root: str, num_layers: int) -> Case:
    data = (
        BAShapes(root=root, source="authors")
        if name == "ba_shapes"
        else Infection(root=root, source="authors", num_layers=num_layers)
    )
    data.prepare_data()
    data.setup()
    net = load_authors_gat(Path(root, "gatt_paper", f"gat_{name}_{num_layers}layer.npz"))
    truth = data.truth
    assert truth is not None
    title = {"ba_shapes": "BA-Shapes", "infection": "Infection"}[name]
    subject = Subject.of(net, data.graph.x, data.graph.edge_index)
    title = f"{title}, {truth.num_targets} targets, {num_layers} layers"
    return Case(name, title, subject, truth.targets, data.graph.y, truth, large=False)


def arxiv(root: str, count: int) -> Case:
    model, x, edge_index = load(root, num_layers=2)
    targets = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(0))[:count]
    subject, unknown = Subject.of(model, x, edge_index), torch.zeros(NUM_NODES, dtype=torch.long)
    return Case("arxiv", f"Arxiv, {count:,} targets, 2 layers", subject, targets, unknown, None, True)


def make(name: str, **settings: Any) -> AttributionMethod:
    """A method with other settings than its defaults."""
    method: Callable[..., AttributionMethod] = METHODS[name]
    return method(**settings)


def from_scratch(case: Case, method: AttributionMethod, targets: Tensor) -> Callable[[], Any]:
    """A method's whole work: forward pass, training if any, scores."""

    def run() -> Any:
        return method.attribute(case.subject.with_current_weights(), targets)

    return run


def large_seconds(case: Case, name: str, edges: Tensor, sample: int) -> float:
    """Seconds on a large graph, from few targets and epochs."""
    count = FEW_TARGETS.get(name, sample)
    share = float(edges[:count].sum()) / float(edges.sum())
    method = METHODS[name]()
    training, subject = 0.0, case.subject
    if isinstance(method, TrainedMethod):
        few, full = FEW_EPOCHS[name], method.settings()["epochs"]
        short = make(name, epochs=few)
        assert isinstance(short, TrainedMethod)
        subject = case.subject.with_current_weights()
        training = timed(lambda: short.fitted(subject))[0] * full / few
        method = short
    return training + timed(lambda: method.attribute(subject, case.targets[:count]))[0] / share


def pyg_seconds(case: Case, name: str, sample: int) -> float | None:
    """Seconds of PyG's own explainer, from a few targets."""
    if name not in CAPTUM and name != "gnn_explainer":
        return None
    algorithm = PyGGNNExplainer(epochs=100) if name == "gnn_explainer" else CaptumExplainer(CAPTUM[name])
    explainer = Explainer(
        case.subject.model,
        algorithm,
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    count = case.targets.numel()
    explained_ids = case.targets[torch.randperm(count, generator=torch.Generator().manual_seed(0))[:sample]].tolist()
    call = case.subject.call

    def run() -> None:
        for target in explained_ids:
            explainer(call.x, call.edge_index, index=target)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return timed(run)[0] / len(explained_ids) * count


def measure(case: Case, names: Sequence[str], sample: int, console: Console) -> list[Row]:
    rows = []
    evaluator = None if case.truth is None else TruthEvaluator(case.subject, case.truth, Shard())
    in_paper = case.subject.num_layers == PAPER_LAYERS[case.name]
    in_print = [name for name in ORDER if name not in ("uniform", "attention_gradient", "occlusion")]
    printed = dict(zip(in_print, PAPER_AUROC.get(case.name, ()), strict=False))
    gatt = from_scratch(case, METHODS["gatt"](), case.targets)
    edges = gatt().ptr.diff()
    for name in names:
        console.print(f"[dim]{case.title}: {name}[/]")
        method = METHODS[name]()
        estimated = case.large and name not in ("gatt", "avgatt", "uniform", "random")
        if estimated:
            seconds = large_seconds(case, name, edges, sample)
            ratio = Spread.of([seconds / timed(gatt)[0] for _ in range(5)])
        else:
            fitted = method.needs_training or name == "gnn_explainer"
            race = Race({"gatt": gatt, "method": from_scratch(case, method, case.targets)}, rounds=1 if fitted else 5)
            seconds, ratio = race.time("method").median, race.ratio("method", "gatt")
        auroc = None if evaluator is None else float(evaluator.auroc(case.subject, method))
        with_loops = None
        if evaluator is not None and "self_loops" in method.settings() and name != "attention_gradient":
            with_loops = float(evaluator.auroc(case.subject, make(name, self_loops=True)))
        theirs = None if case.large else pyg_seconds(case, name, 3 if name in FEW_TARGETS else 20)
        paper = (PAPER_SECONDS[case.name].get(name), printed.get(name)) if in_paper else (None, None)
        rows.append(Row(name, seconds, ratio, estimated, theirs, paper[0], auroc, with_loops, paper[1]))
    return rows


def table(case: Case, rows: list[Row]) -> str:
    """A Markdown table."""
    heads = ["method", "seconds", "x GAtt", "PyG's seconds", "x attree", "paper's seconds"]
    if case.truth is not None:
        heads += ["AUROC", "AUROC, loops", "paper's AUROC"]
    lines = [f"**{case.title}**", "", "| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in rows:
        about = "~" if row.estimated else ""
        cells = [
            METHODS[row.method].label,
            about + short(row.seconds),
            times(row),
            "" if row.pyg_seconds is None else "~" + short(row.pyg_seconds),
            "" if row.pyg_seconds is None else f"{row.pyg_seconds / row.seconds:,.0f}",
            "" if row.paper_seconds is None else short(row.paper_seconds),
        ]
        if case.truth is not None:
            numbers = (row.auroc, row.auroc_loops, row.paper_auroc)
            cells += ["" if number is None else f"{number:.4f}" for number in numbers]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def times(row: Row) -> str:
    """How many times GAtt's seconds a method takes; with its quartiles where there were several rounds."""
    if row.method == "gatt":
        return "1"
    digits = ",.1f" if row.ratio.median < 100 else ",.0f"
    return f"{row.ratio.median:{digits}}" if row.ratio.low == row.ratio.high else f"{row.ratio:{digits}}"


def short(seconds: float) -> str:
    """Seconds in three digits."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder; reads gatt_paper and ogb/ogbn_arxiv in it")
    parser.add_argument("--datasets", default="ba_shapes,infection,arxiv")
    parser.add_argument("--methods", default=",".join(ORDER))
    parser.add_argument("--layers", type=int, default=3, help="layers of the authors' networks, 2 or 3")
    parser.add_argument("--arxiv-targets", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=40, help="targets that slow methods are timed on, on Arxiv")
    parser.add_argument("--out", help="folder for runtime.md, runtime.csv and accuracy_runtime.png")
    arguments = parser.parse_args()
    console = Console(width=140)
    tables, records, panels = [], [], {}
    for name in arguments.datasets.split(","):
        if name == "arxiv":
            case = arxiv(arguments.data, arguments.arxiv_targets)
        else:
            case = synthetic(name, arguments.data, arguments.layers)
        rows = measure(case, arguments.methods.split(","), arguments.sample, console)
        tables.append(table(case, rows))
        console.print(tables[-1], markup=False, highlight=False)
        records += [{"dataset": case.title, **row._asdict(), "ratio": row.ratio.median} for row in rows]
        if case.truth is not None:
            panels[case.title] = [
                MethodPoint(row.method, row.seconds, row.auroc if row.auroc_loops is None else row.auroc_loops)
                for row in rows
                if row.auroc is not None
            ]
    if arguments.out:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "runtime.md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
        pd.DataFrame(records).to_csv(folder / "runtime.csv", index=False)
        if panels:
            accuracy_runtime_figure(panels).savefig(folder / "accuracy_runtime.png")


if __name__ == "__main__":
    main()
