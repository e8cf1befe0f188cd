"""ExplainCallback with loggers other than TensorBoard's: each holds its scalars and figures, and reaches no host."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from torch_geometric.loader import DataLoader

from attree.callbacks import ExplainCallback
from helpers.plain_projects import PlainNodes, node_graph


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


@pytest.mark.long
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


@pytest.mark.long
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
