"""ExplainCallback on attree's heterogeneous and link data: what is drawn, named and measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch_geometric.data import Data

from attree import ExplainCallback
from attree.data import Counts, HeteroInfection, LinkDataModule
from attree.models import GAT, HGT, HeteroClassifier, LinkPredictor


class Ring(LinkDataModule):
    """A ring of 60 nodes, each joined to the next two both ways."""

    name = "Ring"
    counts = Counts(60, 240, 3, 1)

    def load(self) -> Data:
        ids = torch.arange(60)
        edges = torch.cat([torch.stack([ids, (ids + step) % 60]) for step in (1, 2)], dim=1)
        x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
        return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.zeros(60, dtype=torch.long))


def fit(module: torch.nn.Module, data: object, callback: ExplainCallback, folder: Path) -> dict[str, torch.Tensor]:
    trainer = Trainer(
        max_epochs=2,
        default_root_dir=folder,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, datamodule=data)
    return dict(trainer.callback_metrics)


def test_people_are_explained_by_their_own_ids(tmp_path: Path) -> None:
    data = HeteroInfection(num_people=80, num_mosquitoes=50, num_flies=60, num_val=20)
    module = HeteroClassifier(HGT(data.num_features, data.num_classes, hidden_channels=8, heads=2))
    callback = ExplainCallback(["gatt", "avgatt"], [], num_targets=9, save=False, figures=0, subset="test")
    metrics = fit(module, data, callback, tmp_path)
    chosen = callback.targets
    assert chosen is not None
    assert chosen.numel() == 9
    assert bool(data.graph["person"].test_mask[chosen].all())
    assert 0 <= float(metrics["explain/gatt/truth_auroc"]) <= 1


def test_pairs_are_explained_by_their_columns(tmp_path: Path) -> None:
    data = Ring(test_fraction=0.2)
    callback = ExplainCallback(["gatt", "random"], ["removal"], num_targets=6, save=False, figures=0)
    metrics = fit(LinkPredictor(GAT(3, 4, 4)), data, callback, tmp_path)
    assert callback.targets is not None
    assert int(callback.targets.max()) < data.graph.edge_label_index.shape[1]
    assert "explain/gatt/removal/pc_pearson" in metrics
    evaluation = callback._state.latest
    assert evaluation is not None
    assert evaluation.pairs.level == "edge"
    assert evaluation.target_labels.class_name(1) == "a link"
    labels = evaluation.target_labels.labels
    assert labels is not None
    assert torch.equal(labels.float(), data.graph.edge_label[callback.targets])


@pytest.mark.parametrize("subset", ["train", "val", "test"])
def test_a_subset_of_links_has_the_pairs_of_its_part(subset: str, tmp_path: Path) -> None:
    data = Ring(test_fraction=0.2)
    callback = ExplainCallback(["gatt"], [], num_targets=1000, save=False, figures=0, subset=subset)  # type: ignore[arg-type]
    fit(LinkPredictor(GAT(3, 4, 4)), data, callback, tmp_path)
    assert callback.targets is not None
    assert callback.targets.numel() == data.parts[subset].edge_label_index.shape[1]
