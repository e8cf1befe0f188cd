from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data

from attree.data import HIN, MUTAG, Counts, GraphDataModule, Infection
from attree.errors import ArgumentError
from attree.models import GAT, GraphClassifier, NodeClassifier, SuperGAT
from attree.paper.printed_numbers import recipe
from helpers.small_fits import curves


def make_trainer(folder: Path, epochs: int, **arguments: Any) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**quiet | arguments, max_epochs=epochs, accelerator="cpu", default_root_dir=folder)


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


def test_sampled_batches_are_classified_at_their_seeds() -> None:
    torch.manual_seed(0)
    data = small_infection(num_neighbors=[-1, -1], batch_size=9)
    model, graph = NodeClassifier(GAT(2, 4)), data.graph
    whole = model(graph.x, graph.edge_index)
    seen = []
    for batch in data.train_dataloader():
        logits, y = model.examples(batch, "train")
        seeds = batch.n_id[: batch.batch_size]
        # All neighbours of two hops are all that a two-layer network needs.
        torch.testing.assert_close(logits, whole[seeds])
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


class Rings(GraphDataModule):
    """20 rings with labels 0, 1 and 2."""

    name = "Rings"
    counts = Counts(None, None, 3, 3, graphs=20)

    def __init__(self, batch_size: int = 4) -> None:
        super().__init__(val_fraction=0.2, test_fraction=0.2, batch_size=batch_size, seed=0)

    def load(self) -> list[Data]:
        generator = torch.Generator().manual_seed(0)
        nodes = torch.arange(5)
        edge_index = torch.stack([nodes, nodes.roll(1)])
        return [Data(torch.randn(5, 3, generator=generator), edge_index, y=torch.tensor([k % 3])) for k in range(20)]


class Watch(Callback):
    """What a user's callback sees at the end of each epoch."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []
        self.bar: list[float] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        self.bar.append(trainer.progress_bar_metrics["val/acc"])


def by_hand(data: Rings, model: GraphClassifier, epochs: int, batches: int | None = None) -> list[dict[str, float]]:
    """What an epoch's metrics are, by a plain loop over the same batches."""
    trained = copy.deepcopy(model)
    optimizer = trained.configure_optimizers()
    result = []
    for epoch in range(epochs):
        loader = data.train_dataloader()
        loader.sampler.set_epoch(epoch)
        total, count = 0.0, 0
        for batch in islice(loader, batches):
            optimizer.zero_grad()
            loss = F.cross_entropy(trained(batch.x, batch.edge_index, batch.batch), batch.y)
            loss.backward()
            optimizer.step()
            total, count = total + float(loss.detach()) * len(batch.y), count + len(batch.y)
        held_out = Batch.from_data_list([data.graphs[position] for position in data.split["val"]])
        with torch.no_grad():
            out = trained(held_out.x, held_out.edge_index, held_out.batch)
        result.append(
            {
                "train/loss": total / count,
                "val/loss": float(F.cross_entropy(out, held_out.y)),
                "val/acc": float((out.argmax(dim=-1) == held_out.y).float().mean()),
            }
        )
    return result


def test_an_epochs_scalars_reach_loggers_callbacks_and_bar(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data, model, watch = Rings(batch_size=5), GraphClassifier(GAT(3, 3), lr=0.05), Watch()
    expected = by_hand(data, model, 4)
    best, stop = ModelCheckpoint(tmp_path, monitor="val/acc", mode="max"), EarlyStopping("val/loss", patience=9)
    board, table = TensorBoardLogger(tmp_path, default_hp_metric=False), CSVLogger(tmp_path / "csv")
    trainer = make_trainer(tmp_path, 4, logger=[board, table], callbacks=[watch, best, stop], enable_checkpointing=True)
    trainer.fit(model, datamodule=data)

    for seen, epoch in zip(watch.seen, expected, strict=True):
        assert seen == pytest.approx(epoch, rel=1e-5)
    assert watch.bar == pytest.approx([epoch["val/acc"] for epoch in expected])
    assert float(best.best_model_score) == pytest.approx(max(epoch["val/acc"] for epoch in expected))
    assert float(stop.best_score) == pytest.approx(min(epoch["val/loss"] for epoch in expected))
    assert {name: float(trainer.logged_metrics[name]) for name in expected[-1]} == pytest.approx(expected[-1], rel=1e-5)

    steps_an_epoch = len(data.train_dataloader())
    logged = curves(Path(board.log_dir))
    rows = pd.read_csv(Path(table.log_dir) / "metrics.csv")
    assert set(logged) == {*expected[0], "epoch"}
    assert {name for name in logged if name != "epoch"} <= set(rows)
    for name in expected[0]:
        values = [epoch[name] for epoch in expected]
        steps = [steps_an_epoch * (number + 1) - 1 for number in range(4)]
        assert [step for step, _ in logged[name]] == steps
        assert [value for _, value in logged[name]] == pytest.approx(values, rel=1e-5)
        assert rows.dropna(subset=name)[["step", "epoch", name]].to_numpy().ravel().tolist() == pytest.approx(
            [number for row in zip(steps, range(4), values, strict=True) for number in row], rel=1e-5
        )


def test_a_fit_that_stops_within_an_epoch_logs_what_it_did(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data, model = Rings(batch_size=2), GraphClassifier(GAT(3, 3), lr=0.05)
    (expected,) = by_hand(data, model, 1, batches=2)
    trainer = make_trainer(tmp_path, 5, max_steps=2)
    trainer.fit(model, datamodule=data)
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(expected["train/loss"], rel=1e-5)


def test_validations_within_an_epoch_have_steps_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    board = TensorBoardLogger(tmp_path, default_hp_metric=False)
    trainer = make_trainer(tmp_path, 2, logger=board, val_check_interval=2)
    trainer.fit(GraphClassifier(GAT(3, 3)), datamodule=Rings(batch_size=3))
    logged = curves(Path(board.log_dir))
    assert [step for step, _ in logged["val/acc"]] == [1, 3, 5, 7]
    assert [step for step, _ in logged["train/loss"]] == [3, 7]


def test_an_interrupted_evaluation_leaves_nothing_behind(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, trainer = GraphClassifier(GAT(3, 3)), make_trainer(tmp_path, 1)
    (expected,) = trainer.validate(model, datamodule=Rings(), verbose=False)
    with torch.inference_mode():
        model.val_loss.update(torch.full((50,), 1e9))
    assert trainer.validate(model, datamodule=Rings(), verbose=False) == [expected]


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            NodeClassifier(GAT(3, 3)),
            Rings(),
            "`data` to be of nodes, as NodeClassifier classifies, but got 'Rings'",
        ),
        (
            GraphClassifier(GAT(2, 4)),
            small_infection(),
            "`data` to be of graphs, as GraphClassifier classifies, but got 'Infection'",
        ),
        (NodeClassifier(GAT(2, 3)), small_infection(), "`net` to be .*at least 4 .*Infection, but got 3"),
        (GraphClassifier(GAT(3, 2)), Rings(), "`net` to be .*at least 3 .*Rings, but got 2"),
        (NodeClassifier(GAT(7, 4)), small_infection(), "`net` to be .*`in_channels` 2.*Infection has, but got 7"),
    ],
)
@pytest.mark.parametrize("call", ["fit", "validate", "test", "predict"])
def test_data_that_does_not_fit_the_model_is_refused_before_anything_runs(
    model: Any, data: LightningDataModule, message: str, call: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=message):
        getattr(make_trainer(tmp_path, 1), call)(model, datamodule=data)


@pytest.mark.parametrize("label", [-1, 9])
def test_labels_out_of_range_are_refused_where_they_are_used(label: int, tmp_path: Path) -> None:
    data = small_infection()
    graph = data.graph
    nowhere = ~(graph.train_mask | graph.val_mask | graph.test_mask)
    assert not bool(nowhere.any())
    graph.y[3] = label
    with pytest.raises(ArgumentError, match=f"(`net` to be .*at least 10|`data` to be labelled from 0 on.*{label})"):
        make_trainer(tmp_path, 1).fit(NodeClassifier(GAT(2, 4)), datamodule=data)
    for stage in ("train", "val", "test"):
        graph[f"{stage}_mask"][3] = False
    make_trainer(tmp_path, 1).fit(NodeClassifier(GAT(2, 4)), datamodule=data)


def test_foreign_loaders_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    graph = small_infection().graph
    del graph["val_mask"]
    loader: DataLoader[Data] = DataLoader([graph], batch_size=1, collate_fn=lambda graphs: graphs[0])
    with pytest.raises(ArgumentError, match="`data` to be of nodes, with a `val_mask`"):
        make_trainer(tmp_path, 1).fit(NodeClassifier(GAT(2, 4)), loader, loader)
    with pytest.raises(ArgumentError, match="`data` to be of graphs, in batches, but got 'Data'"):
        make_trainer(tmp_path, 1).fit(GraphClassifier(GAT(2, 4)), loader)


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
def test_readout_of_node_logits(readout: str) -> None:
    batch = batch_of_graphs()
    model = GraphClassifier(GAT(3, 2, num_layers=3), readout=readout).eval()
    model.bias.data = torch.tensor([0.25, -3.0])
    expected = []
    for graph in batch.to_data_list():
        logits = model.net(graph.x, graph.edge_index)
        read = {"sum": logits.sum(0), "mean": logits.mean(0), "max": logits.max(0).values}[readout]
        expected.append(read + model.bias)
    logits, y = model.examples(batch, "train")
    torch.testing.assert_close(logits, torch.stack(expected))
    assert torch.equal(y, batch.y)
    single = batch.to_data_list()[1]
    torch.testing.assert_close(model(single.x, single.edge_index), expected[1].unsqueeze(0))
    torch.testing.assert_close(model.predict_step(batch, 0), torch.stack(expected).softmax(dim=-1))


def test_readout_without_a_bias() -> None:
    batch = batch_of_graphs()
    plain, biased = (GraphClassifier(GAT(3, 2), bias=bias) for bias in (False, True))
    assert plain.hparams.bias is False
    assert set(biased.state_dict()) - set(plain.state_dict()) == {"bias"}
    biased.load_state_dict(plain.state_dict(), strict=False)
    biased.bias.data = torch.tensor([0.25, -3.0])
    expected = biased.examples(batch, "val")[0] - biased.bias
    torch.testing.assert_close(plain.examples(batch, "val")[0], expected)


def test_graph_classifier_trains_supergat_on_batches() -> None:
    model = GraphClassifier(SuperGAT(3, 2))
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
