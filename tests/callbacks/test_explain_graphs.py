"""ExplainCallback on graph classification."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from torch_geometric.data import Batch

from attree.attention import Graph, hook_softmax
from attree.attribution import ComputationTree
from attree.callbacks import ExplainCallback
from attree.data import MUTAG
from attree.evaluation import EvaluationConfig, Evaluator
from attree.faithfulness import PROTOCOLS
from attree.faithfulness.protocol import reduced_softmax
from attree.models import GAT, GraphClassifier
from attree.subject import Subject
from helpers.processes import WarmDDP
from helpers.time_limit import time_limit

pytestmark = pytest.mark.needs("tu/MUTAG/raw")


def classifier(data: MUTAG, readout: Literal["sum", "mean", "max"] = "sum") -> GraphClassifier:
    seed_everything(0)
    return GraphClassifier(GAT(data.num_features, data.num_classes, num_layers=2, heads=2), readout=readout)


def run(data: MUTAG, devices: int, folder: Path) -> dict[str, float]:
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=WarmDDP() if devices > 1 else "auto",
        logger=False,
        default_root_dir=folder,
        callbacks=[ExplainCallback(num_targets=9, protocols=["coefficient"])],
    )
    with time_limit():
        (metrics,) = trainer.validate(classifier(data), datamodule=data, verbose=False)
    return {name: value for name, value in metrics.items() if name != "validate/explain/seconds"}


def test_two_processes_log_what_one_does(data_root: str, tmp_path: Path) -> None:
    one, two = (run(MUTAG(root=data_root), devices, tmp_path) for devices in (1, 2))
    assert set(one) == set(two)
    # Occlusion is not compared, as `removal` is not measured.
    assert sum(name.startswith("validate/explain/") for name in one) == 4 * 9 + 3
    for name, value in one.items():
        if name.startswith("validate/explain/"):
            assert two[name] == pytest.approx(value, abs=0, rel=0, nan_ok=True), name


def removal_of(edge: int) -> Any:
    return lambda conv, scores, softmax: reduced_softmax(PROTOCOLS["removal"], scores, torch.tensor([edge]), softmax)


@pytest.mark.parametrize("readout", ["sum", "mean"])
def test_scores_and_reductions_are_those_of_the_definitions(data_root: str, readout: Any) -> None:
    data = MUTAG(root=data_root)
    model = classifier(data, readout).double().eval()
    graphs = Batch.from_data_list([data.graphs[0], data.graphs[4]])
    graphs.x = graphs.x.double()
    subject = Subject.of(model, graphs.x, graphs.edge_index, batch=graphs.batch, readout=readout)
    result = Evaluator(subject, "all", EvaluationConfig(["gatt"], ["removal"])).evaluate()
    of_gatt = {name for name in result.metrics if name.startswith("explain/gatt/")}
    assert of_gatt == {f"explain/gatt/removal/{name}" for name in (*FAITHFULNESS, "within_pearson")}
    pairs, scores, reduction = result.pairs, result.pair_scores["gatt"], result.reductions["removal"]
    graph = Graph(graphs.edge_index, graphs.num_nodes)
    trees = [ComputationTree(subject.attention, node).gatt() for node in range(graphs.num_nodes)]
    sizes = graphs.batch.bincount()
    with torch.no_grad():
        before = model(graphs.x, graphs.edge_index, graphs.batch).softmax(-1)
    for pair in range(0, len(pairs), 7):
        owner, edge = int(pairs.owner[pair]), int(pairs.edges[pair])
        total = sum(float(tree.get(edge, 0.0)) for node, tree in enumerate(trees) if graphs.batch[node] == owner)
        expected = total if readout == "sum" else total / int(sizes[owner])
        assert float(scores[pair]) == pytest.approx(expected, abs=1e-9)
        assert graphs.batch[graph.source[edge]] == owner

        with torch.no_grad(), hook_softmax(model, removal_of(edge)):
            after = model(graphs.x, graphs.edge_index, graphs.batch).softmax(-1)
        predicted = int(before[owner].argmax())
        drop = float(before[owner, predicted] - after[owner, predicted])
        assert float(reduction.delta_pc[pair]) == pytest.approx(drop, abs=1e-9)


FAITHFULNESS = (
    *("pc_pearson", "pc_kendall", "pc_spearman", "ne_pearson", "ne_kendall", "ne_spearman", "p_auroc"),
    "faithfulness",
)
