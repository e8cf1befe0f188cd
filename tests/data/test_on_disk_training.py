"""A fit on a graph on disk is the fit on the same graph in memory, with the same seed and the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, LayerNorm

from attree.data import NodeDataModule, OnDisk, OnDiskGraph, write_graph
from attree.data.on_disk import Room, TooLargeError
from attree.data.on_disk.training import ExactBatches
from attree.models import GAT, NodeClassifier

NODES, WIDTH, CLASSES = 120, 5, 3
SAMPLING: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 16, "sampling_seed": 3}


def random_graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    part = torch.arange(NODES).remainder(3)
    return Data(
        x=torch.randn(NODES, WIDTH, generator=generator),
        edge_index=torch.randint(NODES, (2, 700), generator=generator),
        y=torch.randint(CLASSES, (NODES,), generator=generator),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(random_graph(), tmp_path_factory.mktemp("graphs") / "random").folder


def in_memory(**options: Any) -> NodeDataModule:
    return NodeDataModule.from_data(random_graph(), **(SAMPLING | options))


def on_disk(folder: Path, **options: Any) -> OnDisk:
    return OnDisk(str(folder), **(SAMPLING | options))


def trained(data: NodeDataModule | OnDisk, folder: Path, net: nn.Module | None = None, epochs: int = 3) -> Trainer:
    seed_everything(0, verbose=False)
    net = GAT(WIDTH, CLASSES, hidden_channels=8, dropout=0.3) if net is None else net
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", default_root_dir=folder, **quiet)
    trainer.fit(NodeClassifier(net, lr=0.02), datamodule=data)
    return trainer


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_batches_are_those_of_memory(folder: Path, workers: int) -> None:
    memory, disk = (data.train_dataloader() for data in (in_memory(), on_disk(folder, num_workers=workers)))
    for epoch in (0, 4):
        for loader in (memory, disk):
            loader.sampler.set_epoch(epoch)
        pairs = list(zip(memory, disk, strict=True))
        assert len(pairs) == 3
        for batch, same in pairs:
            for name in ("x", "y", "edge_index", "n_id", "input_id", "batch_size"):
                assert torch.equal(torch.as_tensor(batch[name]), torch.as_tensor(same[name])), name


def test_a_fit_gives_the_weights_of_memory(folder: Path, tmp_path: Path) -> None:
    memory, disk = trained(in_memory(), tmp_path), trained(on_disk(folder), tmp_path)
    assert memory.global_step == disk.global_step == 9
    for name, weight in memory.lightning_module.state_dict().items():
        assert torch.equal(disk.lightning_module.state_dict()[name], weight), name
    assert disk.callback_metrics["train/loss"] == memory.callback_metrics["train/loss"]
    assert disk.callback_metrics["val/acc"] == memory.callback_metrics["val/acc"]
    # Sums over other numbers of rows round differently.
    assert float(disk.callback_metrics["val/loss"]) == pytest.approx(float(memory.callback_metrics["val/loss"]), 1e-6)
    of_memory, of_disk = (
        trainer.test(trainer.lightning_module, datamodule=data, verbose=False)[0]
        for trainer, data in ((memory, in_memory()), (disk, on_disk(folder)))
    )
    assert of_disk == pytest.approx(of_memory, rel=1e-6)
    predicted = torch.cat(disk.predict(disk.lightning_module, datamodule=on_disk(folder)))
    (expected,) = memory.predict(memory.lightning_module, datamodule=in_memory())
    torch.testing.assert_close(predicted, expected)


class GCN(nn.Module):
    """Reads degrees of neighbours, which depend on edges one hop farther away."""

    out_channels, num_layers = CLASSES, 2

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(WIDTH, 8), GCNConv(8, CLASSES)])
        self.norm = norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.convs[0](x, edge_index).relu()
        return self.convs[1](x if self.norm is None else self.norm(x), edge_index)


@pytest.mark.parametrize("memory", [4e9, 250_000.0])
def test_validation_is_that_of_the_whole_graph(folder: Path, tmp_path: Path, memory: float) -> None:
    for net in (GCN(), GAT(WIDTH, CLASSES, hidden_channels=8)):
        disk = on_disk(folder, memory=memory, batch_size=7)
        trainer = trained(disk, tmp_path, net, epochs=1)
        whole = random_graph()
        with torch.no_grad():
            expected = trainer.lightning_module.net.eval()(whole.x, whole.edge_index)
        seen = []
        for batch in disk.val_dataloader():
            with torch.no_grad():
                output = trainer.lightning_module.net(batch.x, batch.edge_index)[: batch.batch_size]
            torch.testing.assert_close(output, expected[batch.input_id], rtol=1e-5, atol=1e-6)
            seen += batch.input_id.tolist()
        assert seen == whole.val_mask.nonzero().view(-1).tolist()


def test_batches_grow_and_shrink_within_the_budget(folder: Path) -> None:
    graph = OnDiskGraph(folder)
    room = Room(400, 0, 1)
    sizes = [batch.num_edges for batch in ExactBatches(graph, torch.arange(NODES), 2, 64, room)]
    assert max(sizes) <= 400
    assert len(sizes) > 3
    assert len(list(ExactBatches(graph, torch.arange(NODES), 2, 1, Room(1e9, 1, 1)))) == 7  # 1 + 2 + 4 + ... + 64
    degrees = graph.degrees(np.arange(NODES))
    with pytest.raises(TooLargeError, match=f"node {int(degrees.argmax())} to fit"):
        list(ExactBatches(graph, torch.tensor([int(degrees.argmax())]), 2, 1, Room(3, 0, 1)))


def test_a_norm_over_the_whole_graph_has_no_exact_neighbourhoods(folder: Path, tmp_path: Path) -> None:
    net = GCN(LayerNorm(8, mode="graph"))
    with pytest.raises(ValueError, match="`val_num_neighbors` to be given, as the network"):
        trained(on_disk(folder), tmp_path, net, epochs=1)
    trainer = trained(on_disk(folder, val_num_neighbors=[5, 5]), tmp_path, net, epochs=1)
    assert 0 <= trainer.callback_metrics["val/acc"] <= 1


def test_splits_without_masks_are_those_of_memory(tmp_path: Path) -> None:
    data = random_graph()
    for name in ("train_mask", "val_mask", "test_mask"):
        del data[name]
    folder = write_graph(data, tmp_path / "bare").folder
    with pytest.raises(ValueError, match="a graph without train_mask, val_mask, test_mask: convert"):
        OnDisk(str(folder))
    disk, memory = OnDisk(str(folder), split_seed=4), NodeDataModule.from_data(data, split_seed=4)
    for part in ("train", "val", "test"):
        assert torch.equal(disk.nodes(part), memory.graph[f"{part}_mask"].nonzero().view(-1))


def test_a_graph_is_written_from_another_data_module(tmp_path: Path) -> None:
    disk = OnDisk(str(tmp_path / "new"), source=in_memory())
    assert torch.equal(disk.graph.to_data().x, random_graph().x)
    assert OnDisk(str(tmp_path / "new")).name == "Data"
    assert (disk.num_features, disk.num_classes) == (WIDTH, CLASSES)


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = random_graph()
    del bare.y
    write_graph(bare, tmp_path / "bare")
    with pytest.raises(ValueError, match="`folder` to be a graph with features `x` and labels `y` of nodes"):
        OnDisk(str(tmp_path / "bare"))
    with pytest.raises(ValueError, match="`num_classes` to be above the highest label, 2, but got 2"):
        on_disk(folder, num_classes=2)
    with pytest.raises(ValueError, match="`split_seed` to be None for a graph that has masks"):
        on_disk(folder, split_seed=1)
    with pytest.raises(ValueError, match="`val_num_neighbors` to be integers >= 1"):
        on_disk(folder, val_num_neighbors=[0])
    with pytest.raises(ValueError, match="`num_neighbors` to be 3 numbers, one per layer"):
        trained(on_disk(folder), tmp_path, GAT(WIDTH, CLASSES, num_layers=3))
    with pytest.raises(FileNotFoundError, match=r"has no graph\.json"):
        OnDisk(str(tmp_path))
