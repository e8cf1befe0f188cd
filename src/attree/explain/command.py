"""The command `attree explain`: explanations of a finished run, as scores, figures, a table and a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch_geometric.data import Batch

from attree.attribution import METHODS, method_label
from attree.data import GraphDataModule, GroundTruth, NodeDataModule
from attree.errors import UnsupportedModelError
from attree.evaluation import Evaluation, Evaluator
from attree.explain.load_run import FinishedRun, load_run
from attree.explain.targets import parse_targets
from attree.explain.top_edges import top_edges_table
from attree.faithfulness import protocol_names, reduce_attention
from attree.files import replacing
from attree.metrics_file import read_metrics
from attree.models import GraphClassifier
from attree.report.case_studies import draw_case_studies
from attree.report.page import write_page
from attree.report.table import metrics_table
from attree.subject import Head, Subject

LOGITS = Head("multiclass_classification", "raw")

DESCRIPTION = """Explain targets of a finished run: what each method says of the edges around them, and what reducing
each edge's attention does to the prediction. Writes scores (scores_<method>.npz), metrics.json, evaluation.npz, figures
and page.html, which opens in any browser, and prints the strongest edges."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `attree explain` with the arguments that follow it, and return its exit status."""
    arguments = _parser().parse_args(argv)
    run = load_run(arguments.run)
    subject, truth, names, labels = subject_of(run, arguments.targets, arguments.seed)
    evaluator = Evaluator(subject, names.positions, arguments.methods, arguments.protocols, truth, seed=arguments.seed)
    result = evaluator.evaluate()
    out = arguments.out or run.folder / "explain"
    console = Console(soft_wrap=True, highlight=False)
    result.save(out)
    for name, scores in result.scores.items():
        scores.save(out / f"scores_{name}.npz")
    for name, figure in draw_case_studies(evaluator, arguments.figures, names.ids, evaluator.targets).items():
        for suffix in (".png", ".svg"):
            with replacing(out / "figures" / f"{name}{suffix}") as path:
                figure.savefig(path, dpi=150)
    page = _write_page(out / "page.html", run, subject, result, truth, labels)
    console.print(metrics_table(result.metrics), soft_wrap=False)
    for table in top_edges_table(result, labels, arguments.show, names.ids):
        console.print(table, soft_wrap=False)
    console.print(f"Scores, metrics and figures: {out}\nPage: {page}")
    return 0


class Names:
    """What targets are called: positions of what the subject explains, and ids in the dataset where they differ."""

    def __init__(self, positions: Tensor, ids: Tensor | None = None) -> None:
        self.positions = positions
        self.ids = ids


def subject_of(run: FinishedRun, text: str, seed: int) -> tuple[Subject, GroundTruth | None, Names, Tensor]:
    """What a run explains: the subject, its ground truth, the targets that a text names, the labels by target id."""
    data = run.data
    if isinstance(data, NodeDataModule):
        graph = data.graph
        subject = Subject.of(run.net, graph.x, graph.edge_index, level="node", head=LOGITS)
        predicted = subject.attention.output.argmax(dim=-1)
        wrong = (predicted != graph.y).nonzero().view(-1)
        true = None if data.truth is None else data.truth.targets
        return subject, data.truth, Names(parse_targets(text, graph.num_nodes, wrong, true, seed)), graph.y
    if isinstance(data, GraphDataModule) and isinstance(run.module, GraphClassifier):
        batch = Batch.from_data_list(data.graphs)
        with torch.no_grad():
            predicted = run.module(batch.x, batch.edge_index, batch.batch).argmax(dim=-1)
        wrong = (predicted != batch.y).nonzero().view(-1)
        ids = parse_targets(text, len(data.graphs), wrong, None, seed)
        chosen = Batch.from_data_list([data.graphs[position] for position in ids.tolist()])
        subject = Subject.of(
            run.module, chosen.x, chosen.edge_index, batch=chosen.batch, readout=run.module.readout, head=LOGITS
        )
        return subject, None, Names(torch.arange(ids.numel()), ids), chosen.y
    raise UnsupportedModelError(
        "Expected a run on one of attree's data modules, but got "
        f"{type(data).__name__} with {type(run.module).__name__}."
    )


def _write_page(
    path: Path, run: FinishedRun, subject: Subject, result: Evaluation, truth: GroundTruth | None, labels: Tensor
) -> Path:
    inputs = subject.inputs
    reductions = {
        name: reduce_attention(
            subject.model,
            inputs.x,
            inputs.edge_index,
            result.pairs,
            name,
            *inputs.args,
            graph=subject.graph,
            head=subject.head,
            with_probability=True,
            **inputs.kwargs,
        )
        for name in result.reductions
    }
    metrics_file = run.folder / "metrics.json"
    metrics = read_metrics(metrics_file) if metrics_file.is_file() else {}
    summary = {"run": str(run.folder)} | {name: f"{value:.4f}" for name, value in metrics.items() if name == "val/acc"}
    return write_page(
        path,
        replace(result, reductions=reductions),
        title=f"{getattr(run.data, 'name', 'Run')}: explanations",
        attention=subject.attention,
        predictions=subject.attention.output.double().softmax(-1)[result.targets],
        true_classes=labels[result.targets],
        truth=truth,
        summary=summary,
    )


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> list[str]:
        return [part.strip() for part in text.split(",") if part.strip()]

    parser = argparse.ArgumentParser(
        prog="attree explain", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run's folder (logs/infection/version_0) or its checkpoint")
    parser.add_argument(
        "--targets",
        default="random:20",
        help="ids and ranges (2,44,100-110), random:20, errors (misclassified), truth, or all (default: random:20)",
    )
    methods = ", ".join(f"{name} ({method_label(name)})" for name in METHODS)
    parser.add_argument("--methods", type=words, default=["gatt", "avgatt", "random"], help=f"of {methods}")
    parser.add_argument(
        "--protocols", type=words, default=["removal"], help=f"of {', '.join(protocol_names())} (default: removal)"
    )
    parser.add_argument("--out", type=Path, default=None, help="folder to write to (default: RUN/explain)")
    parser.add_argument("--figures", type=int, default=5, help="targets drawn as case studies (default: 5)")
    parser.add_argument("--show", type=int, default=3, help="targets whose edges are printed (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of random targets and scores (default: 0)")
    return parser
