"""The paper's figures: histograms of scores, case studies, computation trees."""

from __future__ import annotations

import torch

from attree.attribution import ComputationTree, make_methods
from attree.evaluation import evaluate
from attree.paper.cells import Cell, Trained, paper_targets
from attree.paper.networks import PLANETOID, SYNTHETIC, Net
from attree.paper.report_items import Item, ItemInputs, Options, Picture, Section
from attree.paper.tables.rows import authors_protocol
from attree.report.case_study import case_study
from attree.report.graph_drawing import computation_tree
from attree.report.score_figures import score_histogram
from attree.source.target_labels import TargetLabels
from attree.subject import Subject

CASES = {
    ("BA-Shapes", 2): (600, 629, 634, 679, 690),
    ("BA-Shapes", 3): (601, 626, 635, 676, 687),
    ("Infection", 2): (2, 44, 54, 355, 326),
    ("Infection", 3): (2, 44, 54, 355, 326),
}
"""The paper's target nodes, by dataset and number of layers."""

SUPERGAT_CASES = {("BA-Shapes", 2): (600,), ("BA-Shapes", 3): (600,), ("Infection", 2): (2,), ("Infection", 3): (2,)}
METHODS = ("gatt", "gatt_sim", "gatt_avg", "avgatt")
TREE_TARGET, TREE_SOURCE = 27, 40
"""The target of the paper's computation tree, and the source of the edge that the figure marks."""


def _histogram_nets(options: Options) -> list[Net]:
    return [
        Net(dataset, model, layers, epochs=options.epochs)
        for model in options.of_models(("GAT", "GATv2"))
        for dataset in options.of_datasets((*PLANETOID, "Arxiv"))
        for layers in (2, 3)
    ]


def _case_nets(options: Options) -> list[Net]:
    """Return GATs with the authors' weights, and GATv2 and SuperGATs trained by the recipe."""
    nets = []
    for dataset in options.of_datasets(SYNTHETIC):
        for layers in (2, 3):
            for model in options.of_models(("GAT", "GATv2", "SuperGAT-MX", "SuperGAT-SD")):
                if model == "GAT":
                    nets.append(Net(dataset, model, layers, weights="authors"))
                else:
                    nets.append(Net(dataset, model, layers, epochs=options.epochs))
    return nets


def _of_gats(nets: list[Net], supergat: bool) -> list[Net]:
    """Return the SuperGATs, or all other networks."""
    return [net for net in nets if net.model.startswith("SuperGAT") == supergat]


def _histograms(inputs: ItemInputs) -> list[Section]:
    """Return the histograms of scores of changed and unchanged predictions, one figure per network."""
    sections: list[Section] = []
    for net in _histogram_nets(inputs.options):
        if Trained(net) not in inputs.results:
            continue
        model, _ = inputs.context.model(net)
        graph = inputs.context.node_data(net).graph
        protocol = authors_protocol(net.model)
        targets = paper_targets(graph.num_nodes, inputs.options.targets)
        evaluation = evaluate(model, graph, targets, ("gatt", "gatt_sim", "avgatt"), (protocol,))
        figure = score_histogram(evaluation.pair_scores, evaluation.reductions[protocol].changed)
        name = f"{net.dataset}_{net.model}_{net.layers}".lower()
        sections.append(Picture(name, f"{net}, protocol `{protocol}`", figure))
    return sections


def _studies(inputs: ItemInputs, supergat: bool) -> list[Section]:
    """Return the paper's case studies: one figure per target, with its neighbourhood and the scores of each method."""
    sections: list[Section] = []
    for net in _of_gats(_case_nets(inputs.options), supergat):
        if Trained(net) not in inputs.results:
            continue
        model, _ = inputs.context.model(net)
        data = inputs.context.node_data(net)
        subject = Subject.of_data(model, data.graph)
        labels = TargetLabels.of(data.graph, subject, data.class_names)
        for target in (SUPERGAT_CASES if supergat else CASES)[net.dataset, net.layers]:
            scores = {
                name: method.attribute(subject, [target]).dense(target)
                for name, method in make_methods(METHODS).items()
            }
            has_truth = data.truth is not None and bool((data.truth.targets == target).any())
            truth = data.truth.edges_of(target) if has_truth and data.truth is not None else None
            caption = labels.prediction(subject, target)
            figure = case_study(subject.graph, target, net.layers, scores, truth, caption=caption)
            name = f"{net.dataset}_{net.model}_{net.layers}_node_{target}".lower()
            note = () if has_truth else (f"Node {target} has no single true path in this graph.",)
            sections.append(Picture(name, f"Node {target}: {net}", figure, note))
    return sections


def _trees(inputs: ItemInputs) -> list[Section]:
    """Return the figures of one target of Infection: its 2-hop subgraph, and its tree with a marked edge."""
    net = Net("Infection", "GAT", 2, weights="authors")
    if Trained(net) not in inputs.results:
        return []
    model, _ = inputs.context.model(net)
    graph = inputs.context.node_data(net).graph
    subject = Subject.of_data(model, graph)
    source, destination = subject.graph.edge_index
    marked = ((source == TREE_SOURCE) & (destination == TREE_TARGET)).nonzero().view(-1)
    scores = {
        name: method.attribute(subject, [TREE_TARGET]).dense(TREE_TARGET)
        for name, method in make_methods(METHODS).items()
    }
    proper = torch.where(source == destination, 0.0, scores["gatt"])  # self-loops are not marked
    edge = int(marked[0] if marked.numel() else proper.argmax())
    tree = computation_tree(ComputationTree(subject.attention, TREE_TARGET), edge)
    note = (
        ()
        if marked.numel()
        else (
            f"The paper marks the edge {TREE_SOURCE} -> {TREE_TARGET}, but the authors' published graph does not have "
            "it. The edge with the highest GAtt score is marked instead.",
        )
    )
    return [
        Picture(
            "subgraph",
            f"Node {TREE_TARGET} of Infection: its 2-hop subgraph",
            case_study(subject.graph, TREE_TARGET, 2, scores),
        ),
        Picture("computation_tree", f"Node {TREE_TARGET} of Infection: its computation tree", tree, note),
    ]


def _trained(nets: list[Net]) -> list[Cell]:
    return [Trained(net) for net in nets]


ITEMS = (
    Item("histograms", lambda options: _trained(_histogram_nets(options)), _histograms),
    Item(
        "case_studies",
        lambda options: _trained(_of_gats(_case_nets(options), supergat=False)),
        lambda inputs: _studies(inputs, supergat=False),
    ),
    Item(
        "supergat_cases",
        lambda options: _trained(_of_gats(_case_nets(options), supergat=True)),
        lambda inputs: _studies(inputs, supergat=True),
    ),
    Item(
        "trees",
        lambda options: _trained(
            [Net("Infection", "GAT", 2, weights="authors")] if options.of_datasets(("Infection",)) else []
        ),
        _trees,
    ),
)
