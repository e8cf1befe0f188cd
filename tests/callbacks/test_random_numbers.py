"""A script draws the same random numbers after a fit, with and without the callback."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.style
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from attree.callbacks import ExplainCallback
from helpers.plain_projects import PlainNodes, node_graph


class Noisy(PlainNodes):
    """A module whose validation draws random numbers of all kinds."""

    def validation_step(self, data: Data, batch_idx: int) -> None:
        super().validation_step(data, batch_idx)
        _ = torch.rand(3), np.random.rand(), random.random()  # noqa: NPY002


def after_fit(folder: Path, explain: bool, options: dict[str, Any]) -> dict[str, Any]:
    """What a script draws and trains after a fit whose final weights need another validation."""
    seed_everything(7)
    graph, own = node_graph(), torch.Generator().manual_seed(3)
    train = DataLoader([graph] * 2, batch_size=1)
    validation = DataLoader([graph] * 2, batch_size=1, shuffle=True, generator=own)
    settings: dict[str, Any] = {"max_epochs": 3, "logger": CSVLogger(folder), "callbacks": [], **options}
    settings["callbacks"] = [*settings["callbacks"], *([ExplainCallback(num_targets=3, figures=0)] if explain else [])]
    shared: dict[str, Any] = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    Trainer(**settings, **shared).fit(Noisy(), train, validation)
    drawn = [float(torch.rand(())), random.random(), float(torch.rand((), generator=own))]
    drawn.append(float(np.random.rand()))  # noqa: NPY002
    second = PlainNodes()
    Trainer(max_epochs=2, logger=False, **shared).fit(second, train)
    return {"drawn": drawn, **second.state_dict()}


@pytest.fixture
def random_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links as rich 13 and 14 make them: each draws a number of Python's generator for its id."""
    create = rich.style.Style.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        if options.get("link"):
            random.randint(0, 999999)

    monkeypatch.setattr(rich.style.Style, "__init__", init)


CASES: dict[str, dict[str, Any]] = {
    "weights are averaged": {"callbacks": [StochasticWeightAveraging(1e-2, swa_epoch_start=1, annealing_epochs=1)]},
    "ends within an epoch": {"max_epochs": -1, "max_steps": 3},
    "last epoch is not validated": {"check_val_every_n_epoch": 2},
    "all is validated": {},
}


@pytest.mark.usefixtures("random_links")
@pytest.mark.parametrize("case", CASES)
def test_a_script_goes_on_as_without_the_callback(tmp_path: Path, case: str) -> None:
    plain = after_fit(tmp_path / "plain", explain=False, options=CASES[case])
    explained = after_fit(tmp_path / "explained", explain=True, options=CASES[case])
    assert explained["drawn"] == plain["drawn"]
    for name, value in plain.items():
        assert not isinstance(value, Tensor) or torch.equal(value, explained[name]), name
