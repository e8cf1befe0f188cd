"""Configs that come with attree are found by name, from any folder; a local file of that name wins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from attree.cli import main
from attree.errors import MissingDataError
from attree.io.config_files import config_names, find_config, find_sweep, sweep_names
from attree.sweep import load_plan
from helpers.cli import CONFIGS, refusal


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is where a stranger starts."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed_config(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["fit", *arguments, "--print_config"])
    assert stop.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_names_are_those_of_the_folder() -> None:
    assert config_names() == sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    assert sweep_names() == sorted(path.stem for path in (CONFIGS / "sweeps").glob("*.yaml"))
    assert not set(config_names()) & set(sweep_names())


@pytest.mark.parametrize("form", [["--config", "cora"], ["--config=cora"], ["-c", "cora"]])
def test_a_name_stands_for_its_file(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    expected = printed_config(capsys, f"--config={CONFIGS / 'cora.yaml'}")
    assert expected["data"]["class_path"] == "attree.data.Planetoid"
    assert printed_config(capsys, *form) == expected


@pytest.mark.parametrize("name", ["infection", "infection.yaml"])
def test_a_local_file_wins(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = (CONFIGS / "infection.yaml").read_text().replace("max_epochs: 500", "max_epochs: 7")
    (folder / name).write_text(own)
    assert printed_config(capsys, "--config", "infection")["trainer"]["max_epochs"] == 7


def test_a_local_folder_does_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "infection").mkdir()
    assert printed_config(capsys, "--config", "infection")["trainer"]["max_epochs"] == 500


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("infectoin", "which does not exist. Did you mean `infection`?"),
        ("configs/infection.yaml", "which does not exist. Did you mean `infection`?"),
        ("regularization", "which does not exist. It is a sweep: attree sweep regularization"),
        ("", "but got ''."),
    ],
)
def test_a_slip_is_told_what_was_meant(given: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["fit", "--config", given], capsys)
    assert "`config` to be a YAML file or a name that `attree configs` lists" in line
    assert line.endswith(hint)


def test_a_sweep_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    plan = load_plan("regularization")
    assert plan == load_plan(CONFIGS / "sweeps" / "regularization.yaml")
    with pytest.raises(SystemExit):
        main(["sweep", "regularization", "--dry_run"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(plan.runs)
    assert lines[0].startswith("attree sweep regularization --folder ")


def test_a_local_sweep_wins_and_starts_from_a_name_or_the_file_beside_it(folder: Path) -> None:
    (folder / "mine").mkdir()
    sweep = folder / "mine" / "regularization.yaml"
    sweep.write_text("name: small\nconfig: cora\nruns: [{list: [{model.init_args.lr: 0.1}]}]\n")
    assert load_plan(sweep).config == Path(find_config("cora"))
    shutil.copy(CONFIGS / "cora.yaml", folder / "mine")
    assert load_plan(sweep).config == folder / "mine" / "cora.yaml"
    assert find_sweep("regularization") == str(CONFIGS / "sweeps" / "regularization.yaml")
    shutil.copy(sweep, folder)
    assert load_plan("regularization").name == "small"


@pytest.mark.parametrize(
    ("given", "hint"),
    [("regularisation", " Did you mean `regularization`?"), ("cora", " It is a config: attree fit --config cora")],
)
def test_a_slip_in_a_sweep(given: str, hint: str) -> None:
    with pytest.raises(MissingDataError) as error:
        load_plan(given)
    assert str(error.value) == f"Expected a sweep file, but '{given}' does not exist.{hint}"


def test_the_list_has_a_sentence_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["configs"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line.startswith("  ")}
    assert list(listed) == [*config_names(), *sweep_names()]
    for name, sentence in listed.items():
        assert sentence[-1] in ".?", name
        text = " ".join(line.removeprefix("# ") for line in _path(name).read_text().splitlines() if line[:1] == "#")
        assert sentence in text


def _path(name: str) -> Path:
    return CONFIGS / (f"sweeps/{name}.yaml" if name in sweep_names() else f"{name}.yaml")


@pytest.mark.parametrize("name", ["infection", "regularization"])
def test_one_is_printed_as_it_stands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["configs", name])
    assert stop.value.code == 0
    assert capsys.readouterr().out == _path(name).read_text()


def test_what_is_no_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(["configs", "infectoin"], capsys).endswith("but got 'infectoin'. Did you mean `infection`?")
