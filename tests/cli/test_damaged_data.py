"""Damaged data files, met by `attree fit`: one line that names the file, status 2, and nothing written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cli import CONFIGS, files, refusal


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 20)


def _lost(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "damage",
    [_half, *(pytest.param(damage, marks=pytest.mark.long) for damage in (_empty, _noise, _lost))],
    ids=["half", "empty", "noise", "lost"],
)
@pytest.mark.parametrize(
    ("config", "folder", "file", "more"),
    [
        pytest.param("cora", "planetoid/Cora", "raw/ind.cora.allx", [], marks=pytest.mark.needs("planetoid/Cora")),
        pytest.param("cora", "planetoid/Cora", "raw/ind.cora.graph", [], marks=pytest.mark.needs("planetoid/Cora")),
        pytest.param(
            "texas", "webkb/texas", "raw/out1_node_feature_label.txt", [], marks=pytest.mark.needs("webkb/texas")
        ),
        pytest.param(
            "texas", "webkb/texas", "raw/texas_split_0.6_0.2_0.npz", [], marks=pytest.mark.needs("webkb/texas")
        ),
        pytest.param("mutag", "tu/MUTAG", "raw/MUTAG_A.txt", [], marks=pytest.mark.needs("tu/MUTAG")),
        pytest.param("hin", "hin", "hin.npz", [], marks=pytest.mark.needs("hin")),
        pytest.param(
            "infection",
            "gatt_paper",
            "infection_3hop.npz",
            ["--data.source=authors"],
            marks=pytest.mark.needs("gatt_paper"),
        ),
        pytest.param(
            "ba_shapes", "gatt_paper", "ba_shapes.npz", ["--data.source=authors"], marks=pytest.mark.needs("gatt_paper")
        ),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(
    config: str,
    folder: str,
    file: str,
    more: list[str],
    damage: Callable[[Path], None],
    data_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch_geometric.data.download.fsspec.open", _no_network, raising=False)
    root = tmp_path / "data"
    shutil.copytree(Path(data_root, folder), root / folder, ignore=shutil.ignore_patterns("processed"))
    damage(root / folder / file)
    given = [f"--data.root={root}", "--trainer.accelerator=cpu", f"--trainer.logger.save_dir={tmp_path / 'logs'}"]
    line = refusal(["fit", f"--config={CONFIGS / f'{config}.yaml'}", *given, *more], capsys)
    assert Path(file).name in line or str(root / folder) in line, line
    assert files(tmp_path / "logs") == {}
    assert list(root.rglob("*.pt")) == [], "what was read of a damaged file must not be kept"


def _no_network(*args: object, **kwargs: object) -> None:
    raise OSError("no network")
