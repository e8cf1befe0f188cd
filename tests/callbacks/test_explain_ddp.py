"""Two processes must log what one does, and never wait for each other for ever."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks import EpochProgress, ExplainCallback, LastCheckpoint
from attree.cli import main
from attree.data import Infection
from attree.models import GAT, NodeClassifier
from helpers.processes import WarmCommand, WarmDDP
from helpers.quick_figures import draw_quickly
from helpers.time_limit import SECONDS, time_limit

CONFIG = Path(__file__).parents[2] / "configs" / "infection.yaml"


def validate(devices: int, num_targets: int, folder: Path) -> dict[str, float]:
    seed_everything(0)
    data = Infection(num_nodes=300, edge_probability=0.007, num_layers=2, seed=3)
    model = NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=2))
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=WarmDDP() if devices > 1 else "auto",
        logger=False,
        default_root_dir=folder,
        callbacks=[ExplainCallback(num_targets=num_targets, protocols=["weight", "removal"])],
    )
    with time_limit():
        (metrics,) = trainer.validate(model, datamodule=data, verbose=False)
    return {name: value for name, value in metrics.items() if name != "validate/explain/seconds"}


class Quiet(NodeClassifier):
    """Fails if equal numbers are averaged over processes, or if Lightning advises to do so."""

    def setup(self, stage: str) -> None:
        self.said: list[str] = []
        warnings.showwarning = lambda message, *_: self.said.append(str(message))

    def log(self, name: str, value: Any, **options: Any) -> None:
        assert not name.startswith("explain/") or options["sync_dist"] == (name == "explain/seconds"), name
        super().log(name, value, **options)

    def on_fit_end(self) -> None:
        assert not [sentence for sentence in self.said if "sync_dist" in sentence and "explain/" in sentence]


def test_equal_numbers_are_not_averaged(tmp_path: Path) -> None:
    data = Infection(num_nodes=300, edge_probability=0.007, num_layers=2, seed=3)
    callback = ExplainCallback(num_targets=5, protocols=["weight"], figures=0)
    options: dict[str, Any] = {"logger": False, "max_epochs": 1, "enable_checkpointing": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy=WarmDDP(), callbacks=[callback], **options)
    with time_limit():
        trainer.fit(Quiet(GAT(data.num_features, data.num_classes, num_layers=2)), datamodule=data)
    assert "explain/gatt/weight/faithfulness" in trainer.callback_metrics


@pytest.mark.parametrize("num_targets", [101, 1])
def test_two_processes_log_what_one_does(tmp_path: Path, num_targets: int) -> None:
    one, two = validate(1, num_targets, tmp_path), validate(2, num_targets, tmp_path)
    assert set(one) == set(two)
    logged = [name for name in one if name.startswith("validate/explain/") and "/two_" not in name]
    assert len(logged) == 5 * (2 * 9 + 1) + 2 * 3  # and two edges together, where single effects may be hidden
    for name, value in one.items():
        tolerance = 0.0 if "explain" in name else 1e-6  # means of losses in float32 are of Lightning
        assert two[name] == pytest.approx(value, abs=tolerance, rel=tolerance, nan_ok=True), name


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"limit_val_batches": 0}, marks=pytest.mark.long)],
    ids=["validated", "not validated"],
)
def test_a_fit_of_two_processes_saves_what_one_does(tmp_path: Path, options: dict[str, Any]) -> None:
    found = []
    for devices in (1, 2):
        seed_everything(0)
        data = Infection(num_nodes=300, edge_probability=0.007, num_layers=2, seed=3)
        model = NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=2))
        folder = tmp_path / str(devices)
        trainer = Trainer(  # with Lightning's own progress bar; the command below has ours
            accelerator="cpu",
            devices=devices,
            strategy=WarmDDP() if devices > 1 else "auto",
            max_epochs=3,
            logger=TensorBoardLogger(folder, name="", version="run", default_hp_metric=False),
            callbacks=[ExplainCallback(num_targets=21, every_n_epochs=2, figures=0), LastCheckpoint(every_n_epochs=2)],
            **options,
        )
        with time_limit():
            trainer.fit(model, datamodule=data)
        assert (folder / "run" / "checkpoints" / "last.ckpt").is_file()
        assert (folder / "run" / "explanations" / "gatt.npz").is_file()
        found.append(json.loads((folder / "run" / "metrics.json").read_text()))
    one, two = found
    # Both processes train on the whole graph, so their averaged gradients are those of one.
    for name, value in one.items():
        if name.startswith("explain/") and name != "explain/seconds":
            assert two[name] == pytest.approx(value, abs=1e-5, nan_ok=True), name


def test_two_processes_test_a_checkpoint_on_data_of_another_size(tmp_path: Path) -> None:
    """The checkpoint holds the fit's targets, which mean nothing there: all processes draw the same new ones."""
    seed_everything(0)
    data = Infection(num_nodes=300, edge_probability=0.007, num_layers=2, seed=3)

    def network() -> NodeClassifier:
        return NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=2))

    def make(devices: int) -> Trainer:
        return Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=WarmDDP() if devices > 1 else "auto",
            max_epochs=1,
            logger=TensorBoardLogger(tmp_path, name="", version=f"run{devices}", default_hp_metric=False),
            callbacks=[ExplainCallback(num_targets=15, figures=0, save=False), LastCheckpoint()],
            enable_progress_bar=False,
        )

    make(1).fit(network(), datamodule=data)
    checkpoint = tmp_path / "run1" / "checkpoints" / "last.ckpt"
    with time_limit():
        one, two = (
            make(devices).test(
                network(),
                datamodule=Infection(num_nodes=90, edge_probability=0.02, num_layers=2, seed=4),
                ckpt_path=checkpoint,
                verbose=False,
            )[0]
            for devices in (1, 2)
        )
    names = [name for name in one if name.startswith("test/explain/") and not name.endswith("seconds")]
    assert sum("/two_" not in name for name in names) == 5 * (2 * 9 + 1) + 2 * 3
    for name in names:
        assert two[name] == pytest.approx(one[name], abs=1e-6, nan_ok=True), name


def test_a_progress_bar_can_go_to_another_process() -> None:
    pickle.loads(pickle.dumps(EpochProgress(refresh_per_second=2.0)))


def test_the_command_with_everything_at_its_default(tmp_path: Path) -> None:
    found = []
    for devices in (1, 2):
        arguments = [
            *("fit", f"--config={CONFIG}"),
            *("--data.num_nodes=300", "--data.edge_probability=0.007", "--trainer.max_epochs=2"),
            *("--trainer.accelerator=cpu", f"--trainer.devices={devices}"),
            *("--checkpoint.every_n_epochs=1", f"--trainer.logger.save_dir={tmp_path / str(devices)}"),
        ]
        if devices == 1:
            main(arguments)
        else:
            # Which starts itself again.
            process = WarmCommand([*arguments, "--trainer.strategy=ddp"], before=draw_quickly)
            printed = process.communicate(SECONDS)
            assert process.returncode == 0, printed
        run = tmp_path / str(devices) / "infection" / "version_0"
        assert [path.name for path in run.parent.iterdir()] == ["version_0"]
        assert (run / "checkpoints" / "last.ckpt").is_file()
        found.append(json.loads((run / "metrics.json").read_text()))
    one, two = found
    assert set(one) == set(two)
    assert {"val/acc", "explain/gatt/truth_auroc"} <= set(one)
    for name, value in one.items():
        if name == "intervals":
            assert set(two[name]) == set(value)
            for metric, ends in value.items():
                assert None in ends or two[name][metric] == pytest.approx(ends, abs=1e-3), metric
        elif name not in ("explain/seconds", "verdict"):
            assert two[name] == pytest.approx(value, abs=1e-4, nan_ok=True), name
