"""Modules, networks and data modules that users bring to the command line, from the folder they work in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import yaml

from helpers.cli import CONFIGS, TINY, files, refusal
from helpers.processes import WarmCommand

MINE = '''
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv


class Module(LightningModule):
    """No `net`, widths of its own."""

    def __init__(self, width: int = 4, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.first, self.last = GATConv(2, width), GATConv(width, 5)
        self.lr = lr

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch.x, batch.edge_index), batch.y)

    def validation_step(self, batch, batch_idx):
        right = self(batch.x, batch.edge_index).argmax(dim=-1) == batch.y
        self.log("val/acc", right.float().mean(), batch_size=1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Net(torch.nn.Module):
    """A network that asks for nothing."""

    out_channels = 5

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(2, 5)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Graphs(LightningDataModule):
    """A data module that does not know attree."""

    def __init__(self, num_nodes: int = 12) -> None:
        super().__init__()
        ring = torch.arange(num_nodes)
        edges = torch.stack([ring, (ring + 1) % num_nodes])
        x = torch.randn(num_nodes, 2, generator=torch.Generator().manual_seed(0))
        mask = torch.ones(num_nodes, dtype=torch.bool)
        self.data = Data(x=x, edge_index=edges, y=ring % 5, train_mask=mask, val_mask=mask, test_mask=mask)

    def train_dataloader(self):
        return DataLoader([self.data])

    def val_dataloader(self):
        return DataLoader([self.data])
'''

QUICK = ["--trainer.max_epochs=2", *TINY[2:]]
INFECTION = ["--data=Infection", *TINY[:2]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import a_package_that_nobody_has\n")
    return tmp_path


def attree(folder: Path, *arguments: str) -> str:
    """What the command, as it is installed, prints: its folder, not the working folder, is first on the path."""
    process = WarmCommand(arguments, folder)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return printed


def test_a_module_and_data_of_the_users_are_found_in_the_working_folder(folder: Path) -> None:
    attree(folder, "fit", "--data=mine.Graphs", "--model=mine.Module", "--model.width=6", *QUICK)
    run = folder / "logs" / "runs" / "version_0"
    assert yaml.safe_load((run / "config.yaml").read_text())["model"] == {
        "class_path": "mine.Module",
        "init_args": {"width": 6, "lr": 0.01},
    }
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["state_dict"]["last.att_src"].shape[-1] == 5
    recorded = {name: value for name, value in saved["hyper_parameters"].items() if not name.startswith("_")}
    assert recorded == {"width": 6, "lr": 0.01}
    assert "explain/gatt/" in (run / "metrics.json").read_text()


@pytest.mark.parametrize(
    "model",
    [
        ["--model=mine.Module"],
        ["--model=NodeClassifier", "--model.net=mine.Net"],
        ["--model=NodeClassifier", "--model.net=GAT", "--model.net.hidden_channels=4", "--model.net.num_layers=3"],
    ],
    ids=["own module", "own network", "attree's"],
)
def test_widths_are_taken_from_the_data_where_a_model_has_them(
    model: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    from attree.cli import main

    main(["fit", *INFECTION, *model, *QUICK])
    assert (folder / "logs" / "runs" / "version_0" / "metrics.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model=broken.Module"], "broken.Module of argument `model` cannot be imported: importing it raised"),
        (["--model=broken.Module"], "No module named 'a_package_that_nobody_has'."),
        (["--model=mine.Modul"], "mine.py has no 'Modul'. Did you mean `Module`?"),
        (["--data=nowhere.Graphs"], "nowhere.Graphs of argument `data` cannot be imported: "),
        (["--data=nowhere.Graphs"], "and the installed packages have no module 'nowhere'."),
        (["--model.net=mine.Nett"], "mine.Nett of argument `net` cannot be imported: "),
    ],
)
def test_what_cannot_be_imported_is_named_with_the_reason(
    arguments: list[str],
    sentence: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    before = files(folder)
    config = CONFIGS / "infection.yaml"
    assert sentence in refusal(["fit", f"--config={config}", *arguments, *QUICK], capsys)
    assert {path for path in files(folder) if path.suffix != ".pyc"} == before.keys()
