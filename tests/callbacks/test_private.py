"""Private members of Lightning and TensorBoard that `callbacks/lightning_internals.py` uses still do what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch_geometric.loader import DataLoader

import attree
from attree.callbacks import lightning_internals
from helpers.plain_projects import PlainNodes, node_graph

SOURCE = Path(attree.__file__).parent


class Steps(Callback):
    """Asks for the step within and after training, validates again at the end, and logs something then."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.seen.append(("validation", lightning_internals.log_step(trainer)))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen.append(("epoch", lightning_internals.log_step(trainer)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen.append(("end", lightning_internals.log_step(trainer)))
        lightning_internals.validate_again(trainer, self)
        lightning_internals.log_after_training(trainer, {"late": 0.5})


def test_steps_and_late_metrics(tmp_path: Path) -> None:
    steps, other = Steps(), Callback()
    logger = CSVLogger(tmp_path, name="", version="run")
    options: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=2, logger=logger, callbacks=[steps, other], log_every_n_steps=1, **options)
    before = list(trainer.callbacks)  # type: ignore[attr-defined]
    loader = DataLoader([node_graph()] * 3)
    trainer.fit(PlainNodes(), loader, loader)
    assert steps.seen == [
        ("validation", 2),
        ("epoch", 2),
        ("validation", 5),
        ("epoch", 5),
        ("end", 5),
        ("validation", 5),
    ]
    assert trainer.callbacks == before  # type: ignore[attr-defined]
    assert float(trainer.callback_metrics["late"]) == float(trainer.logged_metrics["late"]) == 0.5
    header, *rows = (line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines())
    table = [dict(zip(header, row, strict=True)) for row in rows]
    # Lightning's own scalars are at the steps that were foretold, those of the validation at the end among them.
    assert {row["step"] for row in table if row["val_acc"]} == {"2", "5"}
    assert [(row["step"], row["epoch"]) for row in table if row["late"]] == [("5", "1")]


def test_a_summary_reaches_the_event_file(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        lightning_internals.add_summary(writer, Summary(value=[Summary.Value(tag="here", simple_value=2.0)]))
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"] == ["here"]
