from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, Trainer
from torch import nn
from torch_geometric.data import Batch, Data

from attree.data import HIN, MUTAG, Infection
from attree.errors import ArgumentError
from attree.models import GAT, GraphClassifier, NodeClassifier, SuperGAT
from attree.paper import recipe


def make_trainer(folder: Path, epochs: int) -> Trainer:
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def small_infection(**arguments: Any) -> Infection:
    return Infection(num_nodes=80, edge_probability=0.03, num_layers=2, num_val=17, **arguments)


def test_node_metrics_are_those_of_the_masks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data, model = small_infection(), NodeClassifier(GAT(2, 4), lr=0.05)
    trainer = make_trainer(tmp_path, 1)
    graph, y = data.graph, data.graph.y
    first = F.cross_entropy(model(graph.x, graph.edge_index)[graph.train_mask], y[graph.train_mask])
    trainer.fit(model, datamodule=data)
    logged = dict(trainer.callback_metrics)
    out = model(graph.x, graph.edge_index)
    correct = (out.argmax(dim=-1) == y).float()
    torch.testing.assert_close(logged["train/loss"], first.detach())
    torch.testing.assert_close(logged["val/acc"], correct[graph.val_mask].mean())
    expected = F.cross_entropy(out[graph.val_mask], y[graph.val_mask]).detach()
    torch.testing.assert_close(logged["val/loss"], expected)
    tested = trainer.test(model, datamodule=data, verbose=False)[0]
    assert set(tested) == {"test/acc", "test/loss"}
    assert tested["test/acc"] == pytest.approx(float(correct[graph.test_mask].mean()))
    predicted = trainer.predict(model, datamodule=data)
    torch.testing.assert_close(predicted[0], out.softmax(dim=-1).detach())


def test_sampled_batches_are_scored_at_their_seeds() -> None:
    torch.manual_seed(0)
    data = small_infection(num_neighbors=[-1, -1], batch_size=9)
    model, graph = NodeClassifier(GAT(2, 4)), data.graph
    whole = model(graph.x, graph.edge_index)
    seen = []
    for batch in data.train_dataloader():
        scores, y = model.examples(batch, "train")
        seeds = batch.n_id[: batch.batch_size]
        # All neighbours of two hops are all that a two-layer network needs.
        torch.testing.assert_close(scores, whole[seeds])
        assert torch.equal(y, graph.y[seeds])
        seen += seeds.tolist()
    assert sorted(seen) == graph.train_mask.nonzero().view(-1).tolist()


def test_attention_loss_enters_the_training_loss(tmp_path: Path) -> None:
    losses = []
    for weight in (0.0, 3.0):
        torch.manual_seed(0)
        model = NodeClassifier(SuperGAT(2, 4, attention_loss_weight=weight))
        trainer = make_trainer(tmp_path, 1)
        trainer.limit_val_batches = 0
        torch.manual_seed(1)
        trainer.fit(model, datamodule=small_infection())
        losses.append(float(trainer.callback_metrics["train/loss"]))
        own = float(model.net.train().attention_loss().detach())
    assert own > 0
    assert losses[1] - losses[0] == pytest.approx(own, rel=1e-4)


def batch_of_graphs() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch.from_data_list(
        [
            Data(
                x=torch.randn(size, 3, generator=generator),
                edge_index=torch.randint(size, (2, 9), generator=generator),
                y=torch.tensor([size % 2]),
            )
            for size in (4, 7, 5)
        ]
    )


@pytest.mark.parametrize("readout", ["sum", "mean", "max"])
def test_readout_of_node_scores(readout: str) -> None:
    batch = batch_of_graphs()
    model = GraphClassifier(GAT(3, 2, num_layers=3), readout=readout).eval()
    model.bias.data = torch.tensor([0.25, -3.0])
    expected = []
    for graph in batch.to_data_list():
        scores = model.net(graph.x, graph.edge_index)
        read = {"sum": scores.sum(0), "mean": scores.mean(0), "max": scores.max(0).values}[readout]
        expected.append(read + model.bias)
    scores, y = model.examples(batch, "train")
    torch.testing.assert_close(scores, torch.stack(expected))
    assert torch.equal(y, batch.y)
    single = batch.to_data_list()[1]
    torch.testing.assert_close(model(single.x, single.edge_index), expected[1].unsqueeze(0))
    torch.testing.assert_close(model.predict_step(batch, 0), torch.stack(expected).softmax(dim=-1))


def test_graph_classifier_trains_supergat_on_batches() -> None:
    model = GraphClassifier(SuperGAT(3, 2))
    model.log = lambda *_, **__: None
    loss = model.training_step(batch_of_graphs(), 0)
    loss.backward()
    assert model.net.convs[0].lin.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "`lr`"),
        ({"weight_decay": -1.0}, "`weight_decay`"),
        ({"readout": "median"}, "`readout` to be 'sum', 'mean' or 'max', but got 'median'"),
        ({"net": nn.Linear(2, 2)}, "`net` to be a module with an integer `out_channels`, but got 'Linear'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GraphClassifier(**{"net": GAT(3, 2)} | arguments)


def fit_and_test(folder: Path, data: LightningDataModule, model: GraphClassifier, epochs: int) -> float:
    trainer = make_trainer(folder, epochs)
    trainer.fit(model, datamodule=data)
    assert {"train/loss", "val/loss", "val/acc"} <= set(trainer.callback_metrics)
    return trainer.test(model, datamodule=data, verbose=False)[0]["test/acc"]


@pytest.mark.needs("tu/MUTAG/raw")
def test_mutag_runs(data_root: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GraphClassifier(GAT(7, 2, 16, 3), lr=0.01)
    assert 0.4 < fit_and_test(tmp_path, MUTAG(root=data_root), model, 3) <= 1


@pytest.mark.slow
@pytest.mark.needs("tu/MUTAG/raw")
def test_mutag_reaches_its_accuracy(data_root: str, tmp_path: Path) -> None:
    expected = recipe("MUTAG", "GAT", 3)
    accuracies = []
    for seed in range(5):
        torch.manual_seed(seed)
        model = GraphClassifier(GAT(7, 2, expected.hidden_channels, 3), lr=expected.lr)
        data = MUTAG(seed=seed, batch_size=16, root=data_root)
        accuracies.append(fit_and_test(tmp_path, data, model, expected.epochs))
    assert sum(accuracies) / 5 > 0.75


@pytest.mark.slow
@pytest.mark.needs("hin/hin.npz")
def test_hin_reaches_its_accuracy(data_root: str, tmp_path: Path) -> None:
    expected = recipe("HIN", "GAT", 3)
    torch.manual_seed(0)
    model = GraphClassifier(GAT(5, 2, expected.hidden_channels, 3), lr=expected.lr)
    assert fit_and_test(tmp_path, HIN(root=data_root), model, expected.epochs) > 0.75


@pytest.mark.needs("hin/hin.npz")
def test_hin_beats_chance_soon(data_root: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GraphClassifier(GAT(5, 2, 16, 3), lr=0.01)
    assert fit_and_test(tmp_path, HIN(root=data_root, batch_size=256), model, 3) > 0.6
