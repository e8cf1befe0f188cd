"""What strangers' Lightning projects do: other loaders in a test, data that draw, two optimisers, links, odd names."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GATConv, global_mean_pool

import attree
from attree.callbacks import ExplainCallback
from attree.callbacks.explained_data import ExplainedData
from attree.errors import AttreeError
from attree.io.json_files import read_metrics
from helpers.plain_projects import CLASSES, PlainGraphs, PlainNodes, node_graph, small_graphs
from helpers.small_fits import curves


def make_trainer(folder: Path, callbacks: list[Any], **options: Any) -> Trainer:
    logger = TensorBoardLogger(folder, name="", version="run", default_hp_metric=False)
    defaults: dict[str, Any] = {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False, "logger": logger}
    return Trainer(**{**defaults, **options}, callbacks=callbacks, enable_model_summary=False, log_every_n_steps=1)


def explain(**options: Any) -> ExplainCallback:
    return ExplainCallback(**{"protocols": ["removal"], "num_targets": 5, "figures": 0, "save": False, **options})


class TestedGraphs(PlainGraphs):
    """Graph classification with a test."""

    def test_step(self, data: Batch, batch_idx: int) -> None:
        self.validation_step(data, batch_idx)


@pytest.mark.parametrize("by", ["the same trainer", "a checkpoint"])
def test_a_test_on_other_graphs_draws_from_those(by: str, tmp_path: Path) -> None:
    seed_everything(0)
    graphs, module, callback = small_graphs(), TestedGraphs(), explain(num_targets=4)
    run = make_trainer(tmp_path, [callback])
    run.fit(module, DataLoader(graphs[:12], batch_size=4), DataLoader(graphs[12:18], batch_size=4))
    drawn, path = callback.targets, tmp_path / "model.ckpt"
    assert drawn is not None
    run.save_checkpoint(path)
    if by == "a checkpoint":
        callback = explain(num_targets=4)
        run = make_trainer(tmp_path / "again", [callback])
    tested = graphs[18:]
    (found,) = run.test(module, DataLoader(tested, batch_size=3), verbose=False, ckpt_path=path)
    assert callback.targets is not None
    assert int(callback.targets.max()) < len(tested)
    batch = Batch.from_data_list([tested[position] for position in callback.targets.tolist()])
    expected = attree.evaluate(module, batch, "all", protocols=["removal"]).metrics
    for name, value in expected.items():
        assert found[f"test/{name}"] == pytest.approx(value, abs=1e-5, nan_ok=True), name


def test_a_validation_of_the_same_graph_keeps_its_targets_and_another_graph_gets_its_own(tmp_path: Path) -> None:
    seed_everything(0)
    callback, module = explain(), PlainNodes()
    run = make_trainer(tmp_path, [callback])
    run.fit(module, DataLoader([node_graph()]), DataLoader([node_graph()]))
    drawn = callback.targets
    callback.settings = replace(callback.settings, config=replace(callback.settings.config, seed=9))
    run.validate(module, DataLoader([node_graph()]), verbose=False)
    assert drawn is not None
    assert torch.equal(drawn, callback.targets)
    small = node_graph().subgraph(torch.arange(25))
    (found,) = run.test(module, DataLoader([small]), verbose=False)
    assert callback.targets is not None
    assert int(callback.targets.max()) < 25
    expected = attree.evaluate(module, small, callback.targets, protocols=["removal"], seed=9).metrics
    assert found["test/explain/gatt/removal/pc_pearson"] == pytest.approx(
        expected["explain/gatt/removal/pc_pearson"], abs=1e-5
    )


class Drawing(Dataset[Data]):
    """Graphs with noise that is drawn as they are read, by three generators; counts what is read."""

    def __init__(self, graphs: list[Data]) -> None:
        self.graphs = graphs
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, position: int) -> Data:
        self.reads.append(position)
        graph = self.graphs[position].clone()
        graph.x = graph.x + torch.randn_like(graph.x) + random.random() + float(np.random.rand())  # noqa: NPY002
        return graph


class OwnLoaders(PlainGraphs):
    """A module that makes its loaders, drawing a split as it does."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs, self.opened = Drawing(small_graphs()), 0

    def train_dataloader(self) -> DataLoader:
        self.opened += 1
        torch.randperm(3)
        return DataLoader(self.graphs, batch_size=6, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Drawing(small_graphs()[:4]), batch_size=4)


def test_training_is_the_same_to_the_bit_where_data_draw(tmp_path: Path) -> None:
    weights, reads = [], []
    for callbacks in ([], [explain(num_targets=3, figures=1, save=True)]):
        seed_everything(0)
        module = OwnLoaders()
        make_trainer(tmp_path / str(len(callbacks)), callbacks).fit(module)
        assert module.opened == 1
        weights.append(torch.cat([one.detach().view(-1) for one in module.parameters()]))
        reads.append(len(module.graphs.reads))
    assert torch.equal(*weights)
    assert reads[1] - reads[0] <= 5  # the three targets, and one to see what the dataset holds


def test_the_same_graph_in_two_loaders_is_explained_once(tmp_path: Path) -> None:
    """Datasets such as PyG's hand out a new object each time they are asked for their one graph."""
    callback = explain(subset="val", num_targets=40)
    run = make_trainer(tmp_path, [callback], max_epochs=1)
    run.fit(PlainNodes(), DataLoader([node_graph()]), DataLoader([node_graph()]))
    assert callback.targets is not None
    assert callback.targets.tolist() == node_graph().val_mask.nonzero().view(-1).tolist()
    everything = explain(num_targets=1000)
    run = make_trainer(tmp_path, [everything], max_epochs=1)
    run.fit(PlainNodes(), DataLoader([node_graph()]), DataLoader([node_graph()]))
    assert everything.targets is not None
    assert everything.targets.numel() == node_graph().num_nodes


class Manual(PlainNodes):
    """Manual optimisation with two optimisers, which both step every second batch."""

    automatic_optimization = False

    def training_step(self, data: Data, batch_idx: int) -> None:
        loss = super().training_step(data, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=1)
        self.manual_backward(loss)
        if batch_idx % 2:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        halves = list(self.parameters())
        return [torch.optim.Adam(halves[:2]), torch.optim.SGD(halves[2:], lr=0.1)]


@pytest.mark.parametrize("validated", [True, False])
def test_explained_values_are_where_the_epochs_own_scalars_are(validated: bool, tmp_path: Path) -> None:
    graphs = [node_graph() for _ in range(4)]
    run = make_trainer(tmp_path, [explain(data=node_graph())], max_epochs=3)
    run.fit(Manual(), DataLoader(graphs), DataLoader(graphs[:1]) if validated else None)
    found = curves(Path(run.log_dir))
    own = [step for step, _ in found["train_loss"]]
    assert len(own) == 3
    assert [step for step, _ in found["explain/gatt/removal/faithfulness"]] == own
    assert "explain/gatt/removal/faithfulness" in run.logged_metrics
    assert float(run.callback_metrics["explain/gatt/removal/pc_pearson"]) == pytest.approx(
        found["explain/gatt/removal/pc_pearson"][-1][1], abs=1e-6
    )


class TakesBatch(PlainGraphs):
    """A forward that takes the whole batch, and calls it so."""

    def forward(self, batch: Batch) -> Tensor:  # type: ignore[override]
        x = self.second(self.first(batch.x, batch.edge_index).relu(), batch.edge_index)
        out: Tensor = self.lin(global_mean_pool(x, batch.batch))
        return out

    def training_step(self, data: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data), data.y)

    def validation_step(self, data: Batch, batch_idx: int) -> None:
        self.log("val_acc", (self(data).argmax(-1) == data.y).float().mean(), batch_size=data.num_graphs)


def test_a_forward_that_takes_the_batch(tmp_path: Path) -> None:
    seed_everything(0)
    module, graphs = TakesBatch(), small_graphs()
    callback = explain()
    run = make_trainer(tmp_path, [callback])
    run.fit(module, DataLoader(graphs, batch_size=6))
    assert callback.targets is not None
    batch = Batch.from_data_list([graphs[position] for position in callback.targets.tolist()])
    plain = PlainGraphs()
    plain.load_state_dict(module.state_dict())
    expected = attree.evaluate(plain, batch, "all", protocols=["removal"]).metrics
    found = curves(Path(run.log_dir))
    for name, value in expected.items():
        assert found[name][-1][1] == pytest.approx(value, abs=1e-4, nan_ok=True), name


class Casts(PlainNodes):
    """Casts its features, as a module of half precision has to for graphs of full precision."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gnn(x.to(next(self.parameters()).dtype), edge_index)


def test_half_precision_with_a_cast_in_forward(tmp_path: Path) -> None:
    run = make_trainer(
        tmp_path, [explain(protocols=["weight", "removal"], figures=1, save=True)], precision="bf16-true"
    )
    run.fit(Casts(), DataLoader([node_graph()]))
    assert "explain/gatt/removal/pc_pearson" in run.callback_metrics


class LinkPredictor(LightningModule):
    """An encoder whose embeddings are multiplied: nothing in it predicts classes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = GAT(6, 16, 2, 64)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        h = self.encoder(data.x, data.edge_index)
        first, second = data.edge_label_index
        return F.binary_cross_entropy_with_logits((h[first] * h[second]).sum(-1), data.edge_label)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Predicts(PlainNodes):
    """Predicts something of so many columns."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.gnn = GAT(6, 8, 2, columns)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return self(data.x, data.edge_index).square().mean()


def relabelled(y: Tensor | None, **more: Tensor) -> Data:
    graph = node_graph()
    del graph.y
    for name, value in {**({} if y is None else {"y": y}), **more}.items():
        graph[name] = value
    return graph


LINKS = {"edge_label_index": torch.arange(8).view(2, 4), "edge_label": torch.tensor([0.0, 1.0, 0.0, 1.0])}
REFUSED: dict[str, tuple[LightningModule, Data, str]] = {
    "an encoder of links": (LinkPredictor(), relabelled(None, **LINKS), "outputs are of nodes.*has pairs to predict"),
    "an encoder beside other classes": (LinkPredictor(), relabelled(torch.arange(40) % 3, **LINKS), "64 columns.*3 cl"),
    "real numbers": (Predicts(1), relabelled(torch.randn(40)), "`mode`.*real numbers"),
    "several labels": (Predicts(3), relabelled((torch.rand(40, 3) > 0.5).float()), "`mode`.*3 columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_evaluate_refuses_the_callback_refuses(case: str, tmp_path: Path) -> None:
    module, graph, sentence = REFUSED[case]
    with pytest.raises(AttreeError, match=sentence):
        make_trainer(tmp_path, [explain()]).fit(module, DataLoader([graph]))
    if isinstance(module, Predicts):
        with pytest.raises(AttreeError, match=sentence):
            attree.evaluate(module, graph)


@pytest.mark.parametrize(
    ("module", "graph", "options"),
    [
        (Predicts(1), relabelled(torch.randn(40)), {"mode": "regression"}),
        (Predicts(3), relabelled((torch.rand(40, 3) > 0.5).float()), {"mode": "binary_classification"}),
        (Predicts(3), relabelled(None), {"network": "gnn"}),
    ],
)
def test_what_is_said_is_believed(
    module: LightningModule, graph: Data, options: dict[str, Any], tmp_path: Path
) -> None:
    run = make_trainer(tmp_path, [explain(**options)], max_epochs=1)
    run.fit(module, DataLoader([graph]))
    assert "explain/gatt/removal/pc_pearson" in run.callback_metrics


@pytest.mark.parametrize("every_n_epochs", [0, 3])
def test_a_metric_that_is_monitored_is_there_from_the_first_validation(every_n_epochs: int, tmp_path: Path) -> None:
    metric = "explain/gatt/removal/pc_pearson"
    best, stop = ModelCheckpoint(tmp_path, monitor=metric), EarlyStopping(metric, patience=10)
    run = make_trainer(tmp_path, [explain(every_n_epochs=every_n_epochs), best, stop], max_epochs=5)
    loader = DataLoader([node_graph()])
    with pytest.warns(UserWarning, match="monitors a metric of ExplainCallback.*`every_n_epochs=1`"):
        run.fit(PlainNodes(), loader, loader)
    steps = [step for step, _ in curves(Path(run.log_dir))[metric]]
    assert steps == ([0, 4] if every_n_epochs == 0 else [0, 2, 4])
    assert best.best_model_score is not None


class Logs(PlainNodes):
    """Logs under names that a callback may have too."""

    def validation_step(self, data: Data, batch_idx: int) -> None:
        self.log_dict({"val/acc": 0.25, "val/loss": 2.0}, batch_size=1)


def test_a_callback_named_like_a_stage_leaves_the_runs_metrics_alone(tmp_path: Path) -> None:
    run = make_trainer(tmp_path, [explain(name="val"), explain(name="other")])
    loader = DataLoader([node_graph()])
    run.fit(Logs(), loader, loader)
    for name in ("val", "other"):
        found = read_metrics(Path(run.log_dir) / name / "metrics.json")
        assert found["val/acc"] == 0.25
        assert found["val/loss"] == 2.0
        assert "explain/gatt/removal/faithfulness" in found
        assert not [key for key in found if key.startswith(("val/gatt", "other/"))]


@pytest.mark.parametrize("name", ["num_targets", "every_n_epochs", "figures", "random_draws"])
@pytest.mark.parametrize("value", [1.5, True, "2", -1])
def test_numbers_that_are_no_integers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(AttreeError, match=f"`{name}` to be an integer"):
        ExplainCallback(**{name: value})


class OldNamespace(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.gnn = GAT(6, 8, 2, CLASSES)

    training_step = PlainNodes.training_step
    validation_step = PlainNodes.validation_step
    configure_optimizers = PlainNodes.configure_optimizers

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gnn(x, edge_index)


def test_the_old_namespace_gets_images_and_histograms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytorch_lightning.loggers import TensorBoardLogger as OldLogger

    loader = DataLoader([node_graph()])
    logger = OldLogger(tmp_path, name="", version="run", default_hp_metric=False)
    quiet: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False}
    callbacks = [ExplainCallback(num_targets=5)]
    pytorch_lightning.Trainer(max_epochs=1, logger=logger, callbacks=callbacks, **quiet).fit(OldNamespace(), loader)
    tags = EventAccumulator(str(tmp_path / "run")).Reload().Tags()
    assert any(tag.startswith("explain/case_study") for tag in tags["images"])
    assert "scores/gatt/weight/prediction_unchanged" in tags["histograms"]
    (tmp_path / "dev").mkdir()
    monkeypatch.chdir(tmp_path / "dev")
    callbacks = [ExplainCallback(num_targets=5)]
    pytorch_lightning.Trainer(fast_dev_run=True, callbacks=callbacks, **quiet).fit(OldNamespace(), loader, loader)
    assert list((tmp_path / "dev").iterdir()) == []


def test_the_layout_has_an_accuracy_chart_when_every_epoch_is_explained(tmp_path: Path) -> None:
    run = make_trainer(tmp_path, [explain()])
    loader = DataLoader([node_graph()])
    run.fit(PlainNodes(), loader, loader)
    events = EventAccumulator(run.log_dir).Reload()
    (layout,) = events.Tensors("custom_scalars__config__")
    assert b"val_acc" in layout.tensor_proto.string_val[0]


class Deep(nn.Module):
    """A network that says at length why it cannot run, with the cure at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(6, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raise ValueError("this network cannot run, " + "for many reasons, " * 20 + "call prepare() first")


def test_reasons_are_not_cut_before_the_cure(tmp_path: Path) -> None:
    module = PlainNodes()
    module.gnn = Deep()  # type: ignore[assignment]
    with pytest.raises(AttreeError, match=r"call prepare\(\) first"):
        make_trainer(tmp_path, [explain()], num_sanity_val_steps=0).fit(module, DataLoader([node_graph()]))


def test_pictures_of_a_short_fit_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attree.callbacks import pictures

    drawn: list[int] = []
    draw = pictures.draw_case_studies

    def count(*args: Any, **kwargs: Any) -> Any:
        drawn.append(1)
        return draw(*args, **kwargs)

    monkeypatch.setattr(pictures, "draw_case_studies", count)
    make_trainer(tmp_path, [explain(figures=1, save=True)], max_epochs=10).fit(PlainNodes(), DataLoader([node_graph()]))
    assert len(drawn) == 1
    monkeypatch.setattr(pictures, "SHARE", 1e9)
    long = make_trainer(tmp_path, [explain(figures=1, save=True)], max_epochs=10)
    long.fit(PlainNodes(), DataLoader([node_graph()]))
    assert len(drawn) == 1 + 6  # five times in a run, and of what it ends with


def test_targets_of_other_data_are_not_kept() -> None:
    graph = node_graph()
    data = ExplainedData([graph])
    before = data.draw(5, 0, "all")
    assert data.draw(7, 1, "all", before) is before
    other = ExplainedData([graph.subgraph(torch.arange(30))])
    assert other.draw(7, 1, "all", before).targets.numel() == 7
    graphs = ExplainedData(small_graphs())
    first = graphs.draw(5, 0, "all")
    moved = ExplainedData(small_graphs()[::-1])
    assert moved.draw(5, 1, "all", first) is not first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graphs.draw(5, 1, "all", first) is first
