"""ExplainCallback in projects that know nothing of attree: their modules, data and trainers.

What is logged is held against `attree.evaluate` on the final weights, and training against the same without it.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.data.lightning import LightningDataset, LightningNodeData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT

import attree
from attree.callbacks import ExplainCallback
from attree.data import GroundTruth, NodeDataModule
from attree.errors import AttreeError
from attree.source.from_lightning import of_trainer
from helpers.plain_projects import (
    CLASSES,
    EncoderAndHead,
    NoForward,
    PlainGraphs,
    PlainNodes,
    TakesData,
    node_graph,
    small_graphs,
)
from helpers.small_fits import curves


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
    (drawn,) = (Path(run.log_dir) / "figures").glob("case_study_*.png")
    assert int(drawn.stem.removeprefix("case_study_")) in callback.targets


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
        ({"network": "gnn", "call": len}, "`call` to be None if `network` is given"),
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
    result = attree.evaluate(module, other, num_targets=5, truth=truth, protocols=[])
    assert 0 < result.metrics["explain/gatt/truth_auroc"] < 1
    found = curves(run.log_dir)["explain/gatt/truth_auroc"][-1][1]
    assert found == pytest.approx(result.metrics["explain/gatt/truth_auroc"], abs=1e-6)


def test_of_trainer_knows_every_source() -> None:
    graph, graphs = node_graph(), small_graphs()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert of_trainer(trainer, graph).is_one_graph
    assert len(of_trainer(trainer, graphs).graphs) == 24
    assert len(of_trainer(trainer, Batch.from_data_list(graphs)).graphs) == 24
    choice = of_trainer(trainer, graph, "val").choice
    assert choice is not None
    assert choice.tolist() == list(range(20, 30))
    with pytest.raises(AttreeError, match="no loader of graphs"):
        of_trainer(trainer)


@pytest.mark.long
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


class SameGraph(Dataset[Data]):
    """A dataset that gives its one graph as often as an epoch has steps."""

    def __init__(self, graph: Data, steps: int) -> None:
        self.graph, self.steps = graph, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, position: int) -> Data:
        return self.graph


@pytest.mark.parametrize("repeated", ["list", "dataset", "equal copies in two loaders"])
def test_a_graph_that_is_read_many_times_an_epoch_is_one_graph(repeated: str, tmp_path: Path) -> None:
    graph = node_graph()
    again = copy(graph) if repeated == "equal copies in two loaders" else graph
    train, val = ([graph] * 5, [again] * 3) if repeated != "dataset" else (SameGraph(graph, 5), SameGraph(graph, 3))
    callback = ExplainCallback(protocols=["removal"], num_targets=50, figures=0)
    make_trainer(tmp_path, [callback], max_epochs=1).fit(PlainNodes(), DataLoader(train), DataLoader(val))
    assert callback.targets is not None
    assert callback.targets.tolist() == list(range(graph.num_nodes))
    assert callback.latest is not None
    assert callback.latest.pairs.graph.num_nodes == graph.num_nodes


def test_graphs_that_are_repeated_count_once(tmp_path: Path) -> None:
    graphs = small_graphs()
    train, val = DataLoader(graphs[:4] * 3, batch_size=4), DataLoader(graphs[4:7])
    callback = ExplainCallback(protocols=["removal"], num_targets=50, figures=0, readout="mean")
    make_trainer(tmp_path, [callback], max_epochs=1).fit(PlainGraphs(), train, val)
    assert callback.targets is not None
    assert callback.targets.tolist() == list(range(7))
