"""What strangers' Lightning projects are told and shown: refusals, links, odd names, metrics and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GATConv

import attree
from attree.callbacks import ExplainCallback
from attree.errors import AttreeError
from attree.io.files import read_metrics
from attree.source import Source
from helpers.no_warnings import no_warnings
from helpers.plain_projects import CLASSES, PlainNodes, explain, make_trainer, node_graph, small_graphs
from helpers.small_fits import curves


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


@pytest.mark.long
def test_pictures_of_a_short_fit_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attree.callbacks import reporting

    drawn: list[int] = []
    draw = reporting.draw_case_studies

    def count(*args: Any, **kwargs: Any) -> Any:
        drawn.append(1)
        return draw(*args, **kwargs)

    monkeypatch.setattr(reporting, "draw_case_studies", count)
    make_trainer(tmp_path, [explain(figures=1, save=True)], max_epochs=10).fit(PlainNodes(), DataLoader([node_graph()]))
    assert len(drawn) == 1
    monkeypatch.setattr(reporting, "SHARE", 1e9)
    long = make_trainer(tmp_path, [explain(figures=1, save=True)], max_epochs=10)
    long.fit(PlainNodes(), DataLoader([node_graph()]))
    assert len(drawn) == 1 + 6  # five times in a run, and of what it ends with


def test_targets_of_other_data_are_not_kept() -> None:
    graph = node_graph()
    data = Source([graph])
    before = data.draw(5, 0, graph.num_nodes)
    assert data.draw(7, 1, graph.num_nodes, before) is before
    other = Source([graph.subgraph(torch.arange(30))])
    assert other.draw(7, 1, 30, before).targets.numel() == 7
    graphs = Source(small_graphs())
    first = graphs.draw(5, 0, 24)
    moved = Source(small_graphs()[::-1])
    assert moved.draw(5, 1, 24, first) is not first
    with no_warnings():
        assert graphs.draw(5, 1, 24, first) is first
