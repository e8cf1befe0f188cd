from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch_geometric.data import Data

from attree.data import BAShapes, Counts, Infection
from attree.data.datasets.third_party import load_arrays
from attree.data.splits import paper_masks, random_per_class
from attree.errors import MissingDataError


class Recorder(LightningModule):
    """Remembers every batch it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.seen: list[Data] = []

    def training_step(self, batch: Data, index: int) -> torch.Tensor:
        self.seen.append(batch)
        return self.weight * batch.x.mean()

    def validation_step(self, batch: Data, index: int) -> None:
        self.seen.append(batch)

    def test_step(self, batch: Data, index: int) -> None:
        self.seen.append(batch)

    def predict_step(self, batch: Data, index: int) -> torch.Tensor:
        self.seen.append(batch)
        return batch.y

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_every_stage_sees_the_very_same_graph(tmp_path: Path) -> None:
    data, model = Infection(num_nodes=60, edge_probability=0.03), Recorder()
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 3
    trainer.test(model, datamodule=data, verbose=False)
    trainer.predict(model, datamodule=data)
    assert len(model.seen) == 3 + 3 + 1 + 1
    assert all(batch is data.graph for batch in model.seen)


def test_graph_moves_once_per_device_and_the_original_stays() -> None:
    data = BAShapes(num_base=20, num_houses=2)
    device = torch.device("meta")
    moved = data.transfer_batch_to_device(data.graph, device, 0)
    assert moved.x.device == moved.edge_index.device == moved.val_mask.device == device
    assert data.transfer_batch_to_device(data.graph, device, 0) is moved
    assert data.graph.x.device == torch.device("cpu")
    assert data.transfer_batch_to_device(data.graph, torch.device("cpu"), 0) is data.graph
    other = Data(x=torch.ones(1, 2))
    assert data.transfer_batch_to_device(other, device, 0).x.device == device


def test_widths_are_known_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise AssertionError("loaded too early")

    monkeypatch.setattr(Infection, "load", refuse)
    data = Infection(num_layers=2)
    assert (data.num_features, data.num_classes) == (2, 4)
    assert data.hparams["num_layers"] == 2
    assert data.hparams["seed"] == 0


def test_hyperparameters_survive_a_safe_checkpoint(tmp_path: Path) -> None:
    torch.save(dict(BAShapes(num_houses=7).hparams), tmp_path / "hparams.pt")
    assert torch.load(tmp_path / "hparams.pt", weights_only=True)["num_houses"] == 7


def test_data_module_survives_the_trip_to_another_process() -> None:
    data = Infection(num_nodes=60, edge_probability=0.03)
    data.setup()
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy.graph.edge_index, data.graph.edge_index)


def test_paper_masks_keep_validation_nodes_in_the_test_set() -> None:
    y = torch.tensor([0] * 150 + [1] * 40 + [2] * 300)
    graph = Data(y=y)
    train = random_per_class(y, np.random.default_rng(0))
    paper_masks(graph, train, 77, np.random.default_rng(1))
    assert y[graph.train_mask].bincount().tolist() == [100, 40, 100]
    assert torch.equal(graph.train_mask, ~graph.test_mask)
    assert int(graph.val_mask.sum()) == 77
    assert not (graph.val_mask & ~graph.test_mask).any()
    paper_masks(graph, train, 10_000, np.random.default_rng(1))
    assert torch.equal(graph.val_mask, graph.test_mask)


def test_wrong_counts_are_reported_together() -> None:
    graph = Data(x=torch.ones(3, 2), edge_index=torch.zeros(2, 5, dtype=torch.long), y=torch.tensor([0, 1, 4]))
    Counts(3, 5, 2, 5).check("Toy", [graph])
    Counts(None, None, 2, 5).check("Toy", [graph])
    expected = "files of Toy .* 3 nodes instead of 2,708, 5 edges instead of 6, 2 features instead of 7, a label 4"
    with pytest.raises(MissingDataError, match=expected):
        Counts(2708, 6, 7, 4).check("Toy", [graph])
    with pytest.raises(MissingDataError, match="1 graphs instead of 2"):
        Counts(3, 5, 2, 5, graphs=2).check("Toy", [graph])


def test_arrays_with_pickled_objects_are_refused(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "executed",)

    np.savez(tmp_path / "evil.npz", x=np.array([Touch()], dtype=object), allow_pickle=True)
    with pytest.raises(MissingDataError, match=r"evil.npz is no intact .* \(x.npy holds Python objects\)"):
        load_arrays(tmp_path / "evil.npz", "")
    assert not (tmp_path / "executed").exists()
