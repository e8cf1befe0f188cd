"""Log folders of runs that never ran: the event files and pages that a fit leaves, made in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from tensorboard import default, program
from tensorboard.backend.event_processing import data_ingester
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

METHODS = ("gatt", "avgatt")


def write_run(folder: Path, decay: float, seed: int, steps: int = 3, *, settings: bool = True) -> dict[str, float]:
    """A run whose last numbers follow from its settings; returns them by tag."""
    last = {
        "val/acc": 0.9 - 10 * decay + 0.01 * seed,
        "explain/gatt/truth_auroc": 0.8 + 20 * decay,
        "explain/avgatt/truth_auroc": 0.7 + 0.01 * seed,
        "explain/gatt/removal/faithfulness": 0.3 + 10 * decay,
        "explain/avgatt/removal/faithfulness": float("nan"),
        "train/loss": 0.5,
    }
    with SummaryWriter(str(folder)) as writer:
        for step in range(steps):
            for tag, value in last.items():
                writer.add_scalar(tag, value * (step + 1) / steps, step * 10)
        if settings:
            for summary in hparams({"weight_decay": decay, "seed": seed, "conv": "GAT"}, {"val/acc": 0.0}):
                writer._get_file_writer().add_summary(summary)
    return last


@contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    """TensorBoard with all installed plugins, as its command has them, on a log folder; gives its address."""
    server = program.TensorBoard(plugins=default.get_plugins())
    server.configure(
        argv=[None, "--logdir", str(logdir), "--port", "0", "--reload_interval", "0", "--load_fast", "false"]
    )
    made = server._make_server()
    thread = Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made.get_url().rstrip("/").replace(made.get_url().split("/")[2].split(":")[0], "127.0.0.1")
    finally:
        made.shutdown()
        thread.join(10)


def application(logdir: Path) -> Any:
    """The tab's routes alone, as TensorBoard would call them: a WSGI application by path."""
    from tensorboard.backend import application as backend

    server = program.TensorBoard(plugins=default.get_plugins())
    server.configure(argv=[None, "--logdir", str(logdir), "--load_fast", "false"])
    ingester = data_ingester.LocalDataIngester(server.flags)
    ingester._multiplexer.AddRunsFromDirectory(str(logdir))
    ingester._multiplexer.Reload()
    return backend.TensorBoardWSGIApp(
        server.flags,
        server.plugin_loaders,
        ingester.data_provider,
        server.assets_zip_provider,
        ingester.deprecated_multiplexer,
    )
