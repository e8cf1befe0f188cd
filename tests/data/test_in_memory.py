"""Graphs at hand as data modules: they train, they are explained, and what torch would take amiss is refused."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv
from torch_geometric.nn.models import GAT as PyGGAT

from attree.callbacks import ExplainCallback
from attree.data import GraphDataModule, GroundTruth, Infection, NodeDataModule
from attree.data.node_data import InMemoryGraph
from attree.errors import ArgumentError
from attree.models import GAT, GraphClassifier, NodeClassifier

NODES, WIDTH, CLASSES = 40, 3, 4


def make_graph(**changes: Any) -> Data:
    """A random graph with masks; `None` leaves an attribute out."""
    generator = torch.Generator().manual_seed(0)
    attributes: dict[str, Any] = {
        "x": torch.randn(NODES, WIDTH, generator=generator),
        "edge_index": torch.randint(NODES, (2, 120), generator=generator),
        "y": torch.arange(NODES) % CLASSES,
        "train_mask": torch.arange(NODES) < 20,
        "val_mask": (torch.arange(NODES) >= 20) & (torch.arange(NODES) < 30),
        "test_mask": torch.arange(NODES) >= 30,
    }
    return Data(**{key: value for key, value in {**attributes, **changes}.items() if value is not None})


def make_trainer(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": folder, **options}
    return Trainer(callbacks=list(callbacks), **settings)


@pytest.mark.parametrize("sampling", [{}, {"num_neighbors": [3, 2], "batch_size": 7}])
def test_a_given_graph_trains_and_is_explained(tmp_path: Path, sampling: dict[str, Any]) -> None:
    graph = make_graph()
    before = copy.deepcopy(graph)
    truth = GroundTruth(torch.tensor([int(graph.edge_index[1, 0])]), graph.edge_index[:, :1])
    data = NodeDataModule.from_data(graph, truth, name="Mine", **sampling)
    assert (data.name, data.num_features, data.num_classes) == ("Mine", WIDTH, CLASSES)
    assert data.truth is truth
    trainer = make_trainer(tmp_path, ExplainCallback(num_targets=5, figures=0))
    trainer.fit(NodeClassifier(GAT(data.num_features, data.num_classes)), datamodule=data)
    assert {
        "val/acc",
        "explain/gatt/truth_auroc",
        "explain/gatt/weight/faithfulness",
    } <= trainer.callback_metrics.keys()
    assert graph.to_dict().keys() == before.to_dict().keys()
    assert all(torch.equal(graph[key], before[key]) for key in before.to_dict())


def test_only_settings_are_recorded(tmp_path: Path) -> None:
    data = NodeDataModule.from_data(make_graph(), num_neighbors=[2, 2])
    assert data.hparams["num_neighbors"] == [2, 2]
    assert not {"data", "truth"} & data.hparams.keys()
    trainer = make_trainer(tmp_path, max_epochs=1, enable_checkpointing=True)
    trainer.fit(NodeClassifier(GAT(WIDTH, CLASSES)), datamodule=data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert saved["datamodule_hyper_parameters"]["name"] == "Data"


def test_masks_are_drawn_only_where_there_are_none() -> None:
    bare = make_graph(train_mask=None, val_mask=None, test_mask=None)
    with pytest.raises(
        ArgumentError, match="a graph without train_mask, val_mask, test_mask: set them, or pass `split_s"
    ):
        NodeDataModule.from_data(bare)
    with pytest.raises(ArgumentError, match="`split_seed` to be None for a graph that has masks"):
        NodeDataModule.from_data(make_graph(), split_seed=0)
    first, again, other = (NodeDataModule.from_data(bare, split_seed=seed).graph for seed in (0, 0, 1))
    masks = torch.stack([first.train_mask, first.val_mask, first.test_mask])
    assert masks.sum(dim=1).tolist() == [24, 8, 8]
    assert bool((masks.sum(dim=0) == 1).all())
    assert torch.equal(first.train_mask, again.train_mask)
    assert not torch.equal(first.train_mask, other.train_mask)
    assert "train_mask" not in bare


INTEGERS = (torch.arange(NODES) < 20).long()
BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"train_mask": INTEGERS},
        r"`data.train_mask` to be a tensor of 40 booleans, one per node, but got 'int64 of shape",
    ),
    ({"val_mask": INTEGERS}, "`data.val_mask` to be a tensor of 40 booleans"),
    ({"train_mask": torch.zeros(NODES, dtype=torch.bool)}, "`data.train_mask` to be true at one node at least"),
    ({"test_mask": torch.ones(NODES - 1, dtype=torch.bool)}, r"`data.test_mask` to be a tensor of 40 .* shape \[39\]"),
    ({"test_mask": torch.ones(NODES, 10, dtype=torch.bool)}, r"`data.test_mask` to be a tensor .* shape \[40, 10\]"),
    ({"val_mask": None}, "a graph without val_mask: set them"),
    ({"y": torch.arange(NODES) - 1}, "`data.y` to be labels in 0 .. 38, but got -1"),
    ({"y": torch.arange(NODES).float()}, "`data.y` to be labels of dtype torch.int64"),
    ({"y": torch.zeros(NODES, 1, dtype=torch.long)}, r"`data.y` to be labels .* but got 'int64 of shape \[40, 1\]'"),
    ({"y": torch.arange(NODES - 1)}, "`data.y` to be 40 labels, one per node, but got 39"),
    ({"y": None}, "`data.y` to be labels .* but got 'none'"),
    ({"x": None}, "`data.x` to be a dense tensor of floating-point features"),
    ({"x": torch.ones(NODES, WIDTH).long()}, "`data.x` to be a dense tensor of floating-point features"),
    ({"x": torch.full((NODES, WIDTH), torch.nan)}, "`data.x` to be finite, but got 'NaN or infinite"),
    ({"x": torch.full((NODES, WIDTH), torch.inf)}, "`data.x` to be finite, but got 'NaN or infinite"),
    ({"edge_index": None}, "`data.edge_index` to be a dense tensor"),
    ({"edge_index": torch.tensor([[0], [NODES]])}, r"`data.edge_index` to be node ids in \[0, 40\)"),
    ({"edge_index": torch.tensor([[0], [1]], dtype=torch.int32)}, "`data.edge_index` to be of dtype torch.int64"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_bad_graphs_are_refused_at_once(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        NodeDataModule.from_data(make_graph(**changes))


@pytest.mark.parametrize(("changes", "sentence"), [(bad, text) for bad, text in BAD if "train_mask" in bad])
def test_bad_graphs_of_a_subclass_are_refused_in_setup(changes: dict[str, Any], sentence: str) -> None:
    class Mine(InMemoryGraph):
        def load(self) -> tuple[Data, None]:
            return make_graph(**changes), None

    with pytest.raises(ArgumentError, match=sentence):
        Mine(make_graph()).setup()


def test_classes_can_be_more_than_the_labels_but_not_fewer() -> None:
    assert NodeDataModule.from_data(make_graph(), num_classes=9).num_classes == 9
    with pytest.raises(ArgumentError, match=r"`data.y` to be labels in 0 .. 1, but got 3"):
        NodeDataModule.from_data(make_graph(), num_classes=2)
    with pytest.raises(ArgumentError, match=r"`data` to be a torch_geometric.data.Data, but got 'dict'"):
        NodeDataModule.from_data({})


def test_nodes_in_no_mask_need_no_label(tmp_path: Path) -> None:
    y = torch.arange(NODES) % CLASSES
    y[35:] = -1
    data = NodeDataModule.from_data(make_graph(y=y, test_mask=(torch.arange(NODES) >= 30) & (y >= 0)))
    make_trainer(tmp_path).fit(NodeClassifier(GAT(WIDTH, CLASSES)), datamodule=data)
    with pytest.raises(ArgumentError, match=r"`data.y` to be labels in 0 .. 3, but got -1"):
        NodeDataModule.from_data(make_graph(y=y))


def test_truth_must_be_about_the_graph() -> None:
    graph = make_graph(edge_index=torch.tensor([[0, 1], [1, 2]]))
    one = torch.tensor([2])
    NodeDataModule.from_data(graph, GroundTruth(one, torch.tensor([[0, 1, 2], [1, 2, 2]])))
    for truth, sentence in (
        (GroundTruth(one, torch.tensor([[1], [0]])), "`truth.edges` to be edges of the graph, .* got '1 -> 0, which"),
        (GroundTruth(one, torch.tensor([[0], [NODES]])), "`truth.edges` to be node ids in"),
        (GroundTruth(torch.tensor([NODES]), torch.tensor([[0], [1]])), "`truth.targets` to be node ids in"),
        ({2: [(0, 1)]}, "`truth` to be an attree.data.GroundTruth, but got 'dict'"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            NodeDataModule.from_data(graph, truth)


class TwoConvs(nn.Module):
    """A network that does not say how deep it is."""

    out_channels = CLASSES

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(WIDTH, 8), GATConv(8, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("net", [GAT(WIDTH, CLASSES), PyGGAT(WIDTH, 8, 2, CLASSES)])
def test_too_few_hops_are_refused(tmp_path: Path, net: nn.Module) -> None:
    data = NodeDataModule.from_data(make_graph(), num_neighbors=[5])
    with pytest.raises(
        ArgumentError, match=r"`num_neighbors` to be 2 numbers, one per layer of the network, but got \[5\]"
    ):
        make_trainer(tmp_path).fit(NodeClassifier(net), datamodule=data)


def test_too_few_hops_for_a_network_of_unknown_depth_are_warned_of(tmp_path: Path) -> None:
    data = NodeDataModule.from_data(make_graph(), num_neighbors=[5])
    with pytest.warns(
        UserWarning, match="`num_neighbors` has 1 of the 2 numbers that the network's convolutions may need"
    ):
        make_trainer(tmp_path).fit(NodeClassifier(TwoConvs()), datamodule=data)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="`num_neighbors`")
        data = NodeDataModule.from_data(make_graph(), num_neighbors=[5, 5])
        make_trainer(tmp_path).fit(NodeClassifier(TwoConvs()), datamodule=data)


def test_infection_refuses_networks_of_another_depth(tmp_path: Path) -> None:
    options = {"num_nodes": 60, "edge_probability": 0.05, "num_layers": 3}
    net = GAT(2, 5, num_layers=2)
    sentence = "`num_layers` to be that of the network, 2, .* unless `any_depth` is true, but got 3"
    for run in ("fit", "validate", "test", "predict"):
        with pytest.raises(ArgumentError, match=sentence):
            getattr(make_trainer(tmp_path), run)(NodeClassifier(net), datamodule=Infection(**options))
    make_trainer(tmp_path).fit(NodeClassifier(net), datamodule=Infection(**options, any_depth=True))
    make_trainer(tmp_path).fit(NodeClassifier(GAT(2, 5, num_layers=3)), datamodule=Infection(**options))


def make_graphs(count: int = 40) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.randn(5, WIDTH, generator=generator),
            edge_index=torch.randint(5, (2, 8), generator=generator),
            y=torch.tensor([k % 2]),
        )
        for k in range(count)
    ]


def test_given_graphs_train_and_are_explained(tmp_path: Path) -> None:
    graphs = make_graphs()
    data = GraphDataModule.from_graphs(graphs, name="Mine", test_fraction=0.3, batch_size=8)
    assert (data.name, data.num_features, data.num_classes, len(data.graphs)) == ("Mine", WIDTH, 2, 40)
    assert {part: len(members) for part, members in data.split.items()} == {"train": 24, "val": 4, "test": 12}
    assert data.hparams["test_fraction"] == 0.3
    assert "graphs" not in data.hparams
    trainer = make_trainer(tmp_path, ExplainCallback(num_targets=4, figures=0))
    model: LightningModule = GraphClassifier(GAT(data.num_features, data.num_classes))
    trainer.fit(model, datamodule=data)
    assert "explain/gatt/weight/faithfulness" in trainer.callback_metrics


@pytest.mark.parametrize(
    ("position", "changes", "sentence"),
    [
        (3, {"y": torch.tensor([0, 1])}, r"`graphs\[3\].y` to be one label, but got '2 labels'"),
        (0, {"y": torch.tensor([-1])}, r"`graphs\[...\].y` to be labels in 0 .. 1, but got -1"),
        (2, {"x": torch.ones(5, 9)}, r"`graphs\[2\].x` to be 3 wide, like the first graph.s, but got 9"),
        (1, {"edge_index": torch.tensor([[0], [5]])}, r"`graphs\[1\].edge_index` to be node ids in \[0, 5\)"),
    ],
)
def test_bad_lists_of_graphs_are_refused(position: int, changes: dict[str, Tensor], sentence: str) -> None:
    graphs = make_graphs()
    graphs[position].update(changes)
    with pytest.raises(ArgumentError, match=sentence):
        GraphDataModule.from_graphs(graphs)


def test_no_graphs_are_refused() -> None:
    with pytest.raises(ArgumentError, match="`graphs` to be at least one graph"):
        GraphDataModule.from_graphs([])
