"""The command `attree paper`, and the list of the paper's tables and figures: title, place, data and duration of each.

This module imports no PyTorch, so that `attree paper list` and errors appear at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attree.errors import ArgumentError, did_you_mean


@dataclass(frozen=True)
class Entry:
    """A table or figure of the paper, or several that are made from the same numbers.

    Attributes:
        title: What it shows, in a line.
        place: Its place in the paper.
        data: The datasets that it needs.
        minutes: Approximate minutes that the quick and the full version take on two cores.
    """

    title: str
    place: str
    data: str
    minutes: tuple[float, float]


_CITATIONS = "Cora, CiteSeer, PubMed"
_SYNTHETIC = "the authors' BA-Shapes and Infection, with their weights"
_SOME_HEADS = "Cora (quick); Cora, CiteSeer, PubMed (full)"

CONTENTS = {
    "faithfulness": Entry(
        "Faithfulness of GAtt, AvgAtt, uniform attention and random scores, GAT and GATv2: Pearson and AUROC",
        "main table on faithfulness",
        "Cora, CiteSeer, PubMed, Cornell, Texas, Wisconsin; Arxiv with its real features",
        (5, 9),
    ),
    "faithfulness_gat": Entry(
        "Faithfulness of GAT: all seven statistics", "appendix, full table of GAT", "as `faithfulness`", (3, 5)
    ),
    "faithfulness_gatv2": Entry(
        "Faithfulness of GATv2: all seven statistics", "appendix, full table of GATv2", "as `faithfulness`", (3, 5)
    ),
    "explanation": Entry(
        "Explanation accuracy of the ten methods, the GAtt variants and uniform attention",
        "main table on explanation accuracy",
        _SYNTHETIC,
        (9, 10),
    ),
    "properties": Entry(
        "Which methods have the proximity effect and the contribution adjustment",
        "table of properties",
        "none",
        (0.1, 0.1),
    ),
    "ablation": Entry(
        "GAtt, GAtt-sim, GAtt-avg and AvgAtt of GATs: Pearson with dPC",
        "table of the ablation study",
        _CITATIONS,
        (3, 5),
    ),
    "ablation_full": Entry(
        "GAtt, GAtt-sim, GAtt-avg and AvgAtt of GATs: mean of all seven statistics",
        "appendix, full table of the ablation study",
        _CITATIONS,
        (3, 5),
    ),
    "case_studies": Entry(
        "GAtt, its variants and AvgAtt on the paper's target nodes, GAT and GATv2",
        "figure of the case study, and appendix",
        _SYNTHETIC,
        (0.5, 0.5),
    ),
    "trees": Entry(
        "Subgraph and computation tree of node 27 of Infection, 2 layers",
        "figure of the computation tree",
        "the authors' Infection, with their weights",
        (0.1, 0.1),
    ),
    "supergat": Entry(
        "SuperGAT-MX, SuperGAT-SD and the authors' SuperGAT-MX: all seven statistics",
        "appendix, table of SuperGAT",
        "Cora",
        (2, 7),
    ),
    "supergat_cases": Entry(
        "Case studies of both SuperGATs: node 600 of BA-Shapes and node 2 of Infection",
        "appendix, case studies of SuperGAT",
        "the authors' BA-Shapes and Infection",
        (2, 2),
    ),
    "multihead": Entry(
        "GATs of 1, 2, 4 and 8 heads: Pearson with dPC",
        "appendix, table of multi-head attention",
        _SOME_HEADS,
        (1, 45),
    ),
    "head_selection": Entry(
        "One head per layer instead of their mean: standard deviation over all choices",
        "appendix, table of single heads",
        _SOME_HEADS,
        (0.5, 8),
    ),
    "regularization": Entry(
        "Weight decay and attention dropout against faithfulness and accuracy",
        "appendix, figure on regularisation",
        "Cora",
        (1, 3),
    ),
    "graph_level": Entry(
        "GATs of three layers with sum readout: AUROC of changed predictions",
        "appendix, table of graph-level tasks",
        "MUTAG, HIN",
        (0.5, 1),
    ),
    "proximity": Entry(
        "Distance of an edge from the target against its occurrences in the computation tree",
        "appendix, table of the proximity effect",
        "all datasets",
        (0.5, 3),
    ),
    "runtime_gatt": Entry(
        "GAtt by the rooted subtree, in matrix form, in batches, and by attree",
        "appendix, figure on calculations of GAtt",
        "the authors' Infection, with their weights",
        (0.5, 10),
    ),
    "runtime": Entry(
        "Seconds that every method takes for all targets", "appendix, table of runtimes", _SYNTHETIC, (9, 10)
    ),
    "accuracy_runtime": Entry(
        "Explanation accuracy against runtime", "appendix, accuracy-runtime figure", _SYNTHETIC, (9, 10)
    ),
    "histograms": Entry(
        "Scores of edges whose reduction changes the prediction, and of the others",
        "appendix, histograms of dP, GAT and GATv2",
        "Cora, CiteSeer, PubMed; Arxiv with its real features",
        (0.5, 1),
    ),
    "datasets": Entry(
        "Nodes, edges, features, classes and targets of the datasets",
        "appendix, tables of datasets",
        "all node-level datasets",
        (0.2, 0.2),
    ),
    "training": Entry(
        "Epochs, widths, rates and test accuracies",
        "appendix, table of training details",
        "all node-level datasets; Arxiv with its real features",
        (5, 10),
    ),
}
"""Every item of `attree paper` by the name that users type, in the order of the paper."""

PRINTED = {
    "table1": "faithfulness",
    "table2": "explanation",
    "table3": "properties",
    "table4": "ablation",
    "figure2": "trees",
    "figure3": "case_studies",
}
"""Items by their numbers in the paper's main text."""


def paper(
    name: str,
    profile: str,
    datasets: Sequence[str] | None,
    models: Sequence[str] | None,
    seeds: int | None,
    protocols: Sequence[str],
    jobs: int,
    out: Path,
    root: str | None,
    targets: int,
    epochs: int | None,
) -> int:
    """Make tables and figures of the paper, and return the exit status.

    Args:
        name: Name of the table or figure; `all`, or `list` to print the names.
        profile: `quick` or `full`.
        datasets: Names of datasets; None for all.
        models: Names of networks; None for all.
        seeds: Number of networks to average over; None for the number of the profile.
        protocols: Names of reduction protocols.
        jobs: Number of cells to measure in parallel.
        out: Folder of the tables and figures.
        root: Data folder; None for the default folder.
        targets: Number of nodes to explain for faithfulness.
        epochs: Number of training epochs; None for the recipe's.
    """
    if name == "list":
        for item, entry in CONTENTS.items():
            quick_minutes, full_minutes = entry.minutes
            minutes = f"about {quick_minutes:g} min quick, {full_minutes:g} min full on two cores"
            print(f"{item}  {entry.title}\n    {entry.place}; data: {entry.data}; {minutes}")
        return 0
    name = PRINTED.get(name.lower().replace(" ", "").replace("_", ""), name)
    if name != "all" and name not in CONTENTS:
        names = ", ".join(CONTENTS)
        raise ArgumentError(
            f"Expected argument `NAME` to be list, all or one of {names}, but got {name!r}."
            f"{did_you_mean(name, [*CONTENTS, *PRINTED])}"
        )
    # Imported here, so that the list and errors do not wait for PyTorch.
    from attree.data.dataset_module import data_folder
    from attree.paper.networks import DATASETS, MODELS
    from attree.paper.report_items import Options, resolve_name
    from attree.paper.run import make_items

    quick = profile == "quick"
    options = Options(
        datasets=None if datasets is None else tuple(resolve_name(dataset, DATASETS) for dataset in datasets),
        models=None if models is None else tuple(resolve_name(model, MODELS) for model in models),
        seeds=seeds if seeds is not None else 1 if quick else 3,
        protocols=tuple(protocols),
        quick=quick,
        epochs=epochs,
        targets=targets,
        root=str(data_folder()) if root is None else root,
        out=out,
        jobs=jobs,
    )
    return make_items(list(CONTENTS) if name == "all" else [name], options)
