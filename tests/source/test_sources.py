"""Whatever the user has is explained alike: a graph, a list, a data module, a trainer, a finished run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GATConv, global_mean_pool

import attree
from attree.data import Infection
from attree.errors import AttreeError
from attree.evaluation import Evaluation
from attree.models import GAT as StackedGAT
from attree.models import NodeClassifier
from attree.runs import FinishedRun
from attree.source import Source, source_of
from helpers.plain_projects import CLASSES, PlainNodes, make_trainer, node_graph, small_graphs

METHODS, PROTOCOLS = ["gatt", "random"], ["removal"]


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = GATConv(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.last(global_mean_pool(self.conv(x, edge_index), batch))


class NoForward(LightningModule):
    """Its network is `gnn`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gnn = GAT(6, 8, 2, CLASSES)


class Loaders(LightningDataModule):
    """A data module of a stranger: it only has loaders, once it is set up."""

    def setup(self, stage: str) -> None:
        self.graph = node_graph()

    def train_dataloader(self) -> Any:
        return DataLoader([self.graph])

    def val_dataloader(self) -> Any:
        return DataLoader([self.graph])


def evaluate(model: nn.Module, data: Any, *args: Any, **options: Any) -> Evaluation:
    return attree.evaluate(model, data, *args, methods=METHODS, protocols=PROTOCOLS, seed=3, **options)


def numbers(evaluation: Evaluation) -> dict[str, str]:
    return {name: float(value).hex() for name, value in evaluation.metrics.items()}


@pytest.fixture(scope="module")
def infection() -> Infection:
    data = Infection(num_nodes=120, edge_probability=0.015, num_layers=2, num_infected=6, seed=1)
    data.setup()
    return data


@pytest.fixture(scope="module")
def net(infection: Infection) -> nn.Module:
    torch.manual_seed(0)
    return StackedGAT(infection.num_features, infection.num_classes, 4, num_layers=2).eval()


def test_a_data_module_brings_its_truth_and_names(infection: Infection, net: nn.Module) -> None:
    by_hand = evaluate(net, infection.graph, num_targets=9, truth=infection.truth)
    by_module = evaluate(net, infection, num_targets=9)
    assert numbers(by_module) == numbers(by_hand)
    assert not math.isnan(by_module.metrics["explain/gatt/truth_auroc"])
    assert torch.equal(by_module.targets, by_hand.targets)
    assert by_module.target_labels.class_names == infection.class_names
    assert by_module.title.startswith(infection.name)


def test_a_finished_run_is_its_data_module(infection: Infection, net: nn.Module, tmp_path: Path) -> None:
    run = FinishedRun(tmp_path, {}, NodeClassifier(net), infection)
    assert numbers(evaluate(run.net, run, [1, 4])) == numbers(evaluate(net, infection, [1, 4]))
    explanation = attree.explain(run.net, run, 4)
    assert explanation.sentence == attree.explain(net, infection, 4).sentence
    assert infection.class_names is None or any(name in explanation.sentence for name in infection.class_names)


def test_attention_tests_take_the_labels_of_a_data_module(infection: Infection, net: nn.Module) -> None:
    options: dict[str, Any] = {"num_targets": 9, "steps": 0, "permutations": 2}
    by_module = attree.attention_tests(net, infection, **options)
    by_hand = attree.attention_tests(net, infection.graph, **options)
    assert by_module.to_dict() == by_hand.to_dict()


def test_a_trainer_is_what_it_was_fitted_on(tmp_path: Path) -> None:
    graph, module = node_graph(), PlainNodes()
    trainer = make_trainer(tmp_path, [], max_epochs=1)
    trainer.fit(module, DataLoader([graph]), DataLoader([graph]))
    assert numbers(evaluate(module, trainer, [2, 5])) == numbers(evaluate(module, graph, [2, 5]))


def test_a_strangers_data_module_is_set_up_and_its_network_looked_for() -> None:
    module = NoForward()
    assert numbers(evaluate(module, Loaders(), [2, 5])) == numbers(evaluate(module.gnn.eval(), node_graph(), [2, 5]))


@pytest.mark.parametrize("kind", [list, Source])
def test_of_a_list_the_named_graphs_are_explained(kind: Any) -> None:
    graphs, model = small_graphs(), GraphNet().eval()
    several = evaluate(model, kind(graphs), [3, 7, 4])
    batch = evaluate(model, Batch.from_data_list([graphs[3], graphs[7], graphs[4]]), "all")
    assert numbers(several) == numbers(batch)
    assert several.target_labels.ids is not None
    assert several.target_labels.ids.tolist() == [3, 7, 4]
    assert [several.target_name(position) for position in range(3)] == ["3", "7", "4"]
    alone = attree.explain(model, kind(graphs), 7)
    assert alone.evaluation.target_name(0) == "7"
    assert alone.sentence == attree.explain(model, Batch.from_data_list([graphs[7]]), 0).sentence


def test_of_a_long_list_as_many_are_drawn_as_asked_for() -> None:
    graphs, model = small_graphs(), GraphNet().eval()
    drawn = evaluate(model, graphs, num_targets=5)
    assert drawn.target_labels.ids is not None
    again = evaluate(model, graphs, drawn.target_labels.ids)
    assert numbers(drawn) == numbers(again)
    assert len(evaluate(model, graphs, "all").targets) == len(graphs)


def test_what_no_graph_comes_from_is_refused_by_name() -> None:
    graphs, model = small_graphs(), GraphNet().eval()
    for data in (None, 3, nn.Linear(2, 2), object()):
        with pytest.raises(AttreeError, match=r"`data` to be a Data.*data module, a trainer"):
            evaluate(model, data)
    for targets, words in (([24], r"positions of graphs in \[0, 24\)"), ([-1], "positions"), ([], "positions")):
        with pytest.raises(AttreeError, match=words):
            evaluate(model, graphs, targets)
    with pytest.raises(AttreeError, match="one graph, as the model does not predict graphs"):
        evaluate(GAT(6, 8, 2, CLASSES), graphs, num_targets=2)
    with pytest.raises(AttreeError, match="no loader of graphs"):
        source_of(Trainer(accelerator="cpu", logger=False, enable_checkpointing=False))


def test_an_encoder_of_links_is_not_taken_for_a_classifier_of_nodes() -> None:
    """Of a run on links, `run.net` gives embeddings: its columns are no classes."""
    graph = node_graph()
    del graph.y
    graph.edge_label_index = graph.edge_index[:, :4]
    encoder = GAT(6, 8, 2, 5)
    with pytest.raises(AttreeError, match=r"model of links.*run\.module.*outputs of nodes"):
        attree.evaluate(encoder, graph)
    assert attree.evaluate(encoder, graph, [1, 2], ["gatt"], PROTOCOLS, level="node").targets.tolist() == [1, 2]
