"""ExplainCallback in projects that know nothing of attree: their modules, data and trainers.

What is logged is held against `attree.evaluate` on the final weights, and training against the same without it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.data.lightning import LightningDataset, LightningNodeData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GATConv, global_mean_pool

import attree
from attree.callbacks import ExplainCallback
from attree.callbacks.explained_data import find_data
from attree.data import GroundTruth, NodeDataModule
from attree.errors import AttreeError

NODES, CLASSES = 40, 3


def node_graph() -> Data:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NODES, 6, generator=generator)
    edge_index = torch.randint(0, NODES, (2, 110), generator=generator)
    graph = Data(x=x, edge_index=edge_index, y=torch.arange(NODES) % CLASSES)
    order = torch.arange(NODES)
    graph.train_mask, graph.val_mask, graph.test_mask = order < 20, (order >= 20) & (order < 30), order >= 30
    return graph


def small_graphs() -> list[Data]:
    generator = torch.Generator().manual_seed(2)
    graphs = []
    for number in range(24):
        size = 4 + number % 3
        edges = torch.randint(0, size, (2, 3 * size), generator=generator)
        graphs.append(Data(x=torch.randn(size, 6, generator=generator), edge_index=edges, y=torch.tensor([number % 2])))
    return graphs


class PlainNodes(LightningModule):
    """As PyG's own example has it: a GAT in `self.gnn`, and a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = GAT(6, 8, 2, CLASSES, dropout=0.3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gnn(x, edge_index)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])

    def validation_step(self, data: Data, batch_idx: int) -> None:
        predicted = self(data.x, data.edge_index)[data.val_mask].argmax(-1)
        self.log("val_acc", (predicted == data.y[data.val_mask]).float().mean(), batch_size=1)

    def test_step(self, data: Data, batch_idx: int) -> None:
        self.log("test_acc", 0.5, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class EncoderAndHead(PlainNodes):
    """An encoder of another width in `self.net`, and a head behind it: the head predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = GAT(6, 8, 2, 8), nn.Linear(8, CLASSES)
        del self.gnn

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.head(self.net(x, edge_index))
        return out


class TakesData(PlainNodes):
    """A forward that takes the whole graph."""

    def forward(self, data: Data) -> Tensor:  # type: ignore[override]
        return self.gnn(data.x, data.edge_index)

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data)[data.train_mask], data.y[data.train_mask])

    def validation_step(self, data: Data, batch_idx: int) -> None:
        self.log("val_acc", (self(data).argmax(-1) == data.y).float().mean(), batch_size=1)


class NoForward(PlainNodes):
    """No forward at all: the network is `self.model`, called in the steps."""

    forward = LightningModule.forward

    def __init__(self) -> None:
        super().__init__()
        self.model = self.gnn
        del self.gnn

    def training_step(self, data: Data, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])

    def validation_step(self, data: Data, batch_idx: int) -> None:
        self.log("val_acc", 0.5, batch_size=1)


class PlainGraphs(LightningModule):
    """Graph classification as in PyG's example: two convolutions, a mean, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.lin = GATConv(6, 8), GATConv(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.second(self.first(x, edge_index).relu(), edge_index)
        out: Tensor = self.lin(global_mean_pool(x, batch))
        return out

    def training_step(self, data: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(data.x, data.edge_index, data.batch), data.y)

    def validation_step(self, data: Batch, batch_idx: int) -> None:
        predicted = self(data.x, data.edge_index, data.batch).argmax(-1)
        self.log("val_acc", (predicted == data.y).float().mean(), batch_size=data.num_graphs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def curves(folder: str | Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def make_trainer(folder: Path, callbacks: list[Any], **options: Any) -> Trainer:
    defaults: dict[str, Any] = {"max_epochs": 3, "accelerator": "cpu", "enable_progress_bar": False}
    logger = TensorBoardLogger(folder, name="", version="run")
    return Trainer(**{**defaults, **options}, logger=logger, callbacks=callbacks, enable_model_summary=False)


def loaders_of(kind: str, graph: Data) -> dict[str, Any]:
    """The same graph by every way that people hand one to a trainer."""
    loader = DataLoader([graph], batch_size=1)
    return {
        "LightningNodeData": {"datamodule": LightningNodeData(graph, loader="full")},
        "PyG loaders": {"train_dataloaders": loader, "val_dataloaders": loader},
        "from_data": {"datamodule": NodeDataModule.from_data(graph)},
    }[kind]


MODULES = {"own forward": PlainNodes, "encoder and head": EncoderAndHead, "takes data": TakesData, "model": NoForward}
SOURCES = ("LightningNodeData", "PyG loaders", "from_data")


def expected_metrics(module: LightningModule, graph: Data, targets: Tensor) -> dict[str, float]:
    model = module.model if isinstance(module, NoForward) else module
    return attree.evaluate(model, graph, targets=targets, protocols=["removal"]).metrics


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shape", MODULES)
def test_any_module_on_any_data(shape: str, source: str, tmp_path: Path) -> None:
    """Logged at the right steps, equal to one evaluation of the final weights, and without a trace in the weights."""
    weights = []
    for callbacks in ([], [ExplainCallback(protocols=["removal"], num_targets=7, figures=0)]):
        seed_everything(0)
        module, graph = MODULES[shape](), node_graph()
        run = make_trainer(tmp_path / str(len(callbacks)), callbacks)
        run.fit(module, **loaders_of(source, graph))
        weights.append([parameter.detach().clone() for parameter in module.parameters()])
    for alone, beside in zip(*weights, strict=True):
        assert torch.equal(alone, beside)
    found = curves(run.log_dir)
    assert [step for step, _ in found["explain/gatt/removal/faithfulness"]] == [0, 1, 2]
    targets = callbacks[0].targets
    assert targets is not None
    for name, value in expected_metrics(module, graph, targets).items():
        if name != "explain/bypass":
            assert found[name][-1][1] == pytest.approx(value, abs=1e-4, nan_ok=True), name


@pytest.mark.parametrize("source", ["LightningDataset", "loaders"])
def test_graph_classification(source: str, tmp_path: Path) -> None:
    seed_everything(0)
    graphs, module = small_graphs(), PlainGraphs()
    callback = ExplainCallback(protocols=["removal"], num_targets=9, figures=1, readout="mean", subset="train")
    run = make_trainer(tmp_path, [callback])
    train, val = graphs[:16], graphs[16:]
    if source == "LightningDataset":
        run.fit(module, datamodule=LightningDataset(train, val, batch_size=8))
    else:
        run.fit(module, DataLoader(train, batch_size=8, shuffle=True), DataLoader(val, batch_size=8))
    assert callback.targets is not None
    assert int(callback.targets.max()) < 16
    batch = Batch.from_data_list([graphs[position] for position in callback.targets.tolist()])
    result = attree.evaluate(module, batch, targets="all", protocols=["removal"], readout="mean")
    found = curves(run.log_dir)
    for name, value in result.metrics.items():
        assert found[name][-1][1] == pytest.approx(value, abs=1e-4, nan_ok=True), name
    drawn = {path.name for path in (Path(run.log_dir) / "figures").iterdir()}
    assert f"case_study_{int(callback.targets[0])}.png" in drawn


TRAINERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "max_steps": ({"max_steps": 4, "max_epochs": -1}, [0, 1, 2, 3]),
    "fast_dev_run": ({"fast_dev_run": True}, []),
    "no validation": ({"limit_val_batches": 0}, [0, 1, 2]),
    "every second": ({"check_val_every_n_epoch": 2, "max_epochs": 4}, [1, 3]),
    "val_check_interval": ({"val_check_interval": 1.0}, [0, 1, 2]),
    "overfit": ({"overfit_batches": 1}, [0, 1, 2]),
    "double": ({"precision": "64-true"}, [0, 1, 2]),
    "mixed": ({"precision": "bf16-mixed"}, [0, 1, 2]),
    "accumulation": ({"accumulate_grad_batches": 2}, [0, 1, 2]),
    "max_time": ({"max_time": "00:00:10:00"}, [0, 1, 2]),
}


@pytest.mark.parametrize("setting", TRAINERS)
def test_any_trainer(setting: str, tmp_path: Path) -> None:
    options, steps = TRAINERS[setting]
    weights = []
    for callbacks in ([], [ExplainCallback(protocols=["removal"], num_targets=5, figures=1)]):
        seed_everything(0)
        module, graph = PlainNodes(), node_graph()
        if setting == "double":  # Lightning casts tensors, not what a PyG graph holds
            graph.x = graph.x.double()
        run = make_trainer(tmp_path / str(len(callbacks)), callbacks, **options)
        run.fit(module, **loaders_of("PyG loaders", graph))
        weights.append([parameter.detach().clone() for parameter in module.parameters()])
    for alone, beside in zip(*weights, strict=True):
        assert torch.equal(alone, beside)
    if steps:
        found = curves(run.log_dir)
        assert [step for step, _ in found["explain/gatt/removal/faithfulness"]] == steps
        tags = EventAccumulator(str(run.log_dir)).Reload().Tags()
        assert any(tag.startswith("explain/case_study") for tag in tags["images"])
        assert (Path(run.log_dir) / "metrics.json").is_file()
        latest = {name: float(value) for name, value in run.callback_metrics.items()}
        assert latest["explain/gatt/removal/pc_pearson"] == pytest.approx(
            found["explain/gatt/removal/pc_pearson"][-1][1], abs=1e-6
        )


def test_the_other_namespace(tmp_path: Path) -> None:
    """`pytorch_lightning` is Lightning under its old name, with classes of its own."""
    seed_everything(0)

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.gnn = GAT(6, 8, 2, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.gnn(x, edge_index)

        training_step = PlainNodes.training_step
        configure_optimizers = PlainNodes.configure_optimizers

    from pytorch_lightning.loggers import TensorBoardLogger as OtherLogger

    graph = node_graph()
    callback = ExplainCallback(protocols=["removal"], num_targets=5, figures=1)
    trainer = pytorch_lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=OtherLogger(tmp_path, name="", version="run"),
        callbacks=[callback],
        enable_progress_bar=False,
    )
    trainer.fit(Module(), DataLoader([graph]))
    found = curves(tmp_path / "run")
    assert len(found["explain/gatt/removal/faithfulness"]) == 2


def test_two_callbacks_and_a_test_between_two_fits(tmp_path: Path) -> None:
    seed_everything(0)
    graph = node_graph()
    first = ExplainCallback(protocols=["removal"], num_targets=5, figures=0)
    second = ExplainCallback(protocols=["weight"], num_targets=6, figures=0, name="on_test", subset="test")
    run = make_trainer(tmp_path, [first, second], max_epochs=2)
    module, loader = PlainNodes(), DataLoader([graph])
    run.fit(module, loader, loader)
    folder = Path(run.log_dir)
    before = (folder / "metrics.json").read_text()
    assert second.targets is not None
    assert bool(graph.test_mask[second.targets].all())
    assert "explain/gatt/removal/faithfulness" in before
    assert "on_test" not in before
    assert "explain/gatt/weight/faithfulness" in (folder / "on_test" / "metrics.json").read_text()
    found = curves(folder)
    assert len(found["on_test/gatt/weight/pc_pearson"]) == 2
    run.test(module, loader, verbose=False)
    assert (folder / "metrics.json").read_text() == before
    assert (folder / "test" / "metrics.json").is_file()
    run.fit_loop.max_epochs = 3
    run.fit(module, loader, loader)
    assert [step for step, _ in curves(folder)["explain/gatt/removal/faithfulness"]][-1] == 2


def test_a_network_can_be_named_or_called(tmp_path: Path) -> None:
    graph = node_graph()
    expected = {}
    for number, options in enumerate(
        (
            {"network": "gnn"},
            {"call": lambda module, data: module.gnn(data.x, data.edge_index)},
            {},
        )
    ):
        seed_everything(0)
        callback = ExplainCallback(protocols=["removal"], num_targets=5, figures=0, **options)
        run = make_trainer(tmp_path / str(number), [callback], max_epochs=1)
        run.fit(PlainNodes(), DataLoader([graph]))
        expected[number] = curves(run.log_dir)["explain/gatt/removal/pc_pearson"][-1][1]
    assert expected[0] == pytest.approx(expected[1], abs=1e-6)
    assert expected[0] == pytest.approx(expected[2], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"network": "backbone"}, "`network` to name a part of PlainNodes"),
        ({"network": "gnn", "call": len}, "`call` to be None where `network` is given"),
        ({"data": 3}, "`data` to be a Data, a Batch"),
        ({"subset": "half"}, "`subset` to be 'all'"),
        ({"name": "a b"}, "`name` to be letters"),
        ({"readout": "median"}, "`readout` to be"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_epoch(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    def fit() -> None:
        run = make_trainer(tmp_path, [ExplainCallback(**options)], max_epochs=50)
        run.fit(PlainNodes(), DataLoader([node_graph()]))

    with pytest.raises(AttreeError, match=sentence):
        fit()


def test_a_module_that_predicts_nothing_that_fits_says_what_was_tried(tmp_path: Path) -> None:
    module = EncoderAndHead()
    module.head = nn.Linear(8, 5)
    with pytest.raises(AttreeError, match=r"the module itself: 5 columns of outputs for 3 classes; `net`: 8 columns"):
        make_trainer(tmp_path, [ExplainCallback()]).fit(module, DataLoader([node_graph()]))


def test_given_data_and_truth_come_first(tmp_path: Path) -> None:
    graph, other = node_graph(), node_graph()
    other.x = other.x + 1
    entering = other.edge_index[:, :2]
    truth = GroundTruth(entering[1], entering, torch.tensor([0, 1, 2]))
    callback = ExplainCallback(data=other, truth=truth, protocols=[], figures=0)
    run = make_trainer(tmp_path, [callback], max_epochs=1)
    seed_everything(0)
    module = PlainNodes()
    run.fit(module, DataLoader([graph]))
    result = attree.evaluate(module, other, targets=5, truth=truth, protocols=[])
    assert 0 < result.metrics["explain/gatt/truth_auroc"] < 1
    found = curves(run.log_dir)["explain/gatt/truth_auroc"][-1][1]
    assert found == pytest.approx(result.metrics["explain/gatt/truth_auroc"], abs=1e-6)


def test_rows_of_a_csv_have_their_epoch(tmp_path: Path) -> None:
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=CSVLogger(tmp_path, name="", version="run"),
        callbacks=[ExplainCallback(protocols=["removal"], num_targets=5)],
        enable_progress_bar=False,
    )
    trainer.fit(PlainNodes(), DataLoader([node_graph()]))
    header, *rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    columns = header.split(",")
    place = columns.index("explain/gatt/removal/pc_pearson")
    explained = [row.split(",") for row in rows if row.split(",")[place]]
    assert [row[columns.index("epoch")] for row in explained] == ["0", "1"]
    assert (tmp_path / "run" / "figures").is_dir()


def test_find_data_knows_every_source() -> None:
    graph, graphs = node_graph(), small_graphs()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert find_data(trainer, graph).is_one_graph
    assert len(find_data(trainer, graphs).graphs) == 24
    assert len(find_data(trainer, Batch.from_data_list(graphs)).graphs) == 24
    choice = find_data(trainer, graph, "val").choice
    assert choice is not None
    assert choice.tolist() == list(range(20, 30))
    with pytest.raises(AttreeError, match="no loader of graphs"):
        find_data(trainer)


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No logger may ask for a host, nor leave a process behind."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def only_here(host: Any, *rest: Any, **more: Any) -> Any:
        if host not in (None, "", "localhost", "127.0.0.1", "::1"):
            asked.append(str(host))
            raise OSError("tests have no network")
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", only_here)
    for name in ("DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE", "WANDB_SILENT"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not alive
    assert not asked


@pytest.mark.usefixtures("unreached")
def test_wandb_offline_holds_scalars_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (the extra `wandb`)")
    from lightning.pytorch.loggers import WandbLogger

    logger = WandbLogger(project="attree-test", save_dir=tmp_path, offline=True)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        callbacks=[ExplainCallback(protocols=["removal"], num_targets=5)],
        enable_progress_bar=False,
    )
    trainer.fit(PlainNodes(), DataLoader([node_graph()]))
    summary = set(logger.experiment.summary.keys())
    assert "explain/gatt/removal/faithfulness" in summary
    assert any(name.startswith("explain/case_study") for name in summary)
    logger.experiment.finish()
    (run,) = tmp_path.rglob("*.wandb")
    assert run.stat().st_size > 0
    assert list(tmp_path.rglob("media/images/**/*.png"))


@pytest.mark.usefixtures("unreached")
def test_mlflow_file_store_holds_scalars_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed (the extra `mlflow`)")
    from lightning.pytorch.loggers import MLFlowLogger

    logger = MLFlowLogger("attree-test", tracking_uri=f"file:{tmp_path}/runs")
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        default_root_dir=tmp_path,
        callbacks=[ExplainCallback(protocols=["removal"], num_targets=5)],
        enable_progress_bar=False,
    )
    trainer.fit(PlainNodes(), DataLoader([node_graph()]))
    client = logger.experiment
    history = client.get_metric_history(logger.run_id, "explain/gatt/removal/faithfulness")
    assert len(history) == 2
    assert any(path.name.startswith("case_study") for path in tmp_path.rglob("*.png"))


def test_a_compiled_network_is_explained_as_it_was_written(tmp_path: Path) -> None:
    found = []
    for compiled in (False, True):
        seed_everything(0)
        module = PlainNodes()
        if compiled:
            module.gnn = torch.compile(module.gnn, backend="eager")
        run = make_trainer(tmp_path / str(compiled), [ExplainCallback(protocols=["removal"], num_targets=5, figures=0)])
        run.fit(module, DataLoader([node_graph()]))
        found.append(curves(run.log_dir)["explain/gatt/removal/pc_pearson"][-1][1])
    assert found[0] == pytest.approx(found[1], abs=1e-5)
