"""Strangers' modules on heterogeneous graphs and links: PyG's data modules, plain loaders, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.lightning import LightningLinkData, LightningNodeData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, HGTConv

import attree
from attree.callbacks import ExplainCallback
from attree.errors import AttreeError
from attree.source.from_lightning import with_links

WRITES, CITES, BY = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by", "author")


def papers() -> HeteroData:
    """Thirty papers with labels and masks, and ten authors."""
    draw = torch.Generator().manual_seed(0)
    graph = HeteroData()
    graph["author"].x, graph["paper"].x = torch.randn(10, 4, generator=draw), torch.randn(30, 4, generator=draw)
    graph["paper"].y, graph["paper"].train_mask = torch.arange(30) % 3, torch.arange(30) < 20
    graph["paper"].val_mask = ~graph["paper"].train_mask
    graph[WRITES].edge_index = torch.stack([torch.arange(40) % 10, torch.randint(30, (40,), generator=draw)])
    graph[CITES].edge_index = torch.randint(30, (2, 50), generator=draw)
    graph[BY].edge_index = graph[WRITES].edge_index.flip(0)
    return graph


class Papers(LightningModule):
    """Classifies papers."""

    def __init__(self) -> None:
        super().__init__()
        seed_everything(0)
        self.convs = nn.ModuleList(HGTConv(4, 4, (["author", "paper"], [WRITES, CITES, BY]), heads=2) for _ in range(2))
        self.last = nn.Linear(4, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        for conv in self.convs:
            x_dict = {**x_dict, **conv(x_dict, edge_index_dict)}
        return self.last(x_dict["paper"])

    def training_step(self, data: HeteroData, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data.x_dict, data.edge_index_dict), data["paper"].y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Writers(Papers):
    """Tells whether an author wrote a paper."""

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        for conv in self.convs:
            x_dict = {**x_dict, **conv(x_dict, edge_index_dict)}
        return (x_dict["author"][edge_label_index[0]] * x_dict["paper"][edge_label_index[1]]).sum(-1)

    def training_step(self, data: HeteroData, batch_idx: int) -> Tensor:
        return self(data.x_dict, data.edge_index_dict, data[WRITES].edge_index).square().mean()


class Links(LightningModule):
    """Tells whether two nodes are joined."""

    def __init__(self) -> None:
        super().__init__()
        seed_everything(0)
        self.conv = GATConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        h = self.conv(x, edge_index)
        return (h[edge_label_index[0]] * h[edge_label_index[1]]).sum(-1)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return self(data.x, data.edge_index, data.edge_index).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def fit(module: LightningModule, data: Any, folder: Path, **options: Any) -> tuple[ExplainCallback, dict[str, Tensor]]:
    settings = {"methods": ["gatt", "avgatt"], "protocols": ["removal"], "num_targets": 6, "figures": 0, "save": False}
    callback = ExplainCallback(**{**settings, **options})
    trainer = Trainer(
        max_epochs=1,
        default_root_dir=folder,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, **({"datamodule": data} if hasattr(data, "prepare_data") else {"train_dataloaders": data}))
    return callback, dict(trainer.callback_metrics)


def expect_same(metrics: dict[str, Tensor], module: LightningModule, graph: Any, targets: Any, **more: Any) -> None:
    """The metrics are those of `attree.evaluate` on the whole graph."""
    expected = attree.evaluate(module, graph, targets, methods=["gatt", "avgatt"], protocols=["removal"], **more)
    assert any("gatt" in name for name in expected.metrics)
    for name, value in expected.metrics.items():
        assert float(metrics[name]) == pytest.approx(value, abs=1e-5, nan_ok=True), name


NODES = {
    "a loader": lambda: DataLoader([papers()]),
    "LightningNodeData": lambda: LightningNodeData(papers(), loader="full"),
    "a named type": lambda: LightningNodeData(papers(), ("paper", papers()["paper"].train_mask), loader="full"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", NODES)
def test_nodes_of_the_labelled_type_are_explained(given: str, tmp_path: Path) -> None:
    module = Papers()
    callback, metrics = fit(module, NODES[given](), tmp_path, subset="train")
    chosen = callback.targets
    assert chosen is not None
    assert chosen.numel() == 6
    assert int(chosen.max()) < 20  # papers that train, by their own numbers
    expect_same(metrics, module, papers(), chosen, node_type="paper")


@pytest.mark.filterwarnings("ignore")
def test_links_of_a_data_module_are_explained(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    # Labels of nodes say nothing of links, and there are more nodes than pairs.
    graph = Data(torch.randn(20, 4, generator=draw), torch.randint(20, (2, 60), generator=draw), y=torch.arange(20) % 5)
    train, val = torch.randint(20, (2, 8), generator=draw), torch.randint(20, (2, 4), generator=draw)
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0])
    data = LightningLinkData(graph, train, input_val_edges=val, input_val_labels=labels, loader="full")
    module = Links()
    callback, metrics = fit(module, data, tmp_path, num_targets=100)
    evaluation = callback._state.latest
    assert evaluation is not None
    assert evaluation.pairs.level == "edge"
    assert evaluation.pairs.targets.numel() == 12  # of all parts
    assert torch.equal(evaluation.target_labels.labels, torch.cat([torch.ones(8), labels]))
    asked = graph.clone()
    asked.edge_label_index = torch.cat([train, val], dim=1)
    expect_same(metrics, module, asked, "all")
    callback, _ = fit(Links(), data, tmp_path, num_targets=100, subset="val")
    assert callback.targets is not None
    assert callback.targets.tolist() == [0, 1, 2, 3]
    assert "edge_label_index" not in graph


@pytest.mark.filterwarnings("ignore")
def test_links_between_types_are_explained(tmp_path: Path) -> None:
    graph, module = papers(), Writers()
    pairs = graph[WRITES].edge_index[:, :9]
    callback, metrics = fit(module, LightningLinkData(graph, (WRITES, pairs), loader="full"), tmp_path)
    evaluation = callback._state.latest
    assert evaluation is not None
    assert evaluation.pairs.level == "edge"
    asked = papers()
    asked[WRITES].edge_label_index = pairs
    expect_same(metrics, module, asked, callback.targets)


def sampled() -> HeteroData:
    graph = papers()
    graph["paper"].n_id = torch.arange(30)
    return graph


def labelled_twice() -> HeteroData:
    graph = papers()
    graph["author"].y, graph["author"].train_mask = torch.arange(10) % 3, torch.arange(10) < 5
    return graph


def unlabelled() -> HeteroData:
    graph = papers()
    del graph["paper"].y
    return graph


REFUSED = {
    "several graphs": (lambda: [papers(), papers()], "one heterogeneous graph, but got 2"),
    "a sampled part": (lambda: [sampled()], "a sampled subgraph.*`n_id`"),
    "two labelled types": (lambda: [labelled_twice()], "labels of author, paper"),
    "no labels": (lambda: [unlabelled()], "labels of no type"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_plain_is_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(AttreeError, match=sentence):
        fit(Papers(), DataLoader(make()), tmp_path)


@pytest.mark.parametrize("options", [{}, {"neg_sampling": "binary"}], ids=["as given", "negatives are sampled"])
def test_labels_of_links_are_those_that_pygs_loader_hands_on(options: dict[str, str]) -> None:
    graph, pairs, labels = papers(), torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.tensor([0, 1, 1])
    module = SimpleNamespace(
        data=graph, input_train_edges=(WRITES, pairs), input_train_labels=labels, loader_kwargs=options
    )
    seen = with_links(module, "train")[WRITES]
    assert torch.equal(seen.edge_label, labels.float() + (1 if options else 0))
    assert torch.equal(seen.edge_label_index, pairs)
