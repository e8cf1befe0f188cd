from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import attree.data
from attree import cli
from attree.errors import ArgumentError
from attree.paper.printed_numbers import RECIPES, recipe

ALL_CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
OTHERS = ("acm", "cora_links", "cora_sgformer", "dblp", "hetero_infection", "molecules_gps", "mutag_gps", "on_disk")
CONFIGS = [path for path in ALL_CONFIGS if path.stem not in OTHERS]
"""Those of the paper's datasets."""
DATASETS = ("Infection", "BA-Shapes", "Cora", "CiteSeer", "PubMed", "Arxiv", "Cornell", "Texas", "Wisconsin")


def load(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    return config


def dataset_of(config: dict[str, Any]) -> str:
    data = config["data"]
    arguments = data["init_args"]
    return str(arguments.get("name") or getattr(attree.data, data["class_path"].rpartition(".")[2]).name)


def test_every_dataset_has_a_config() -> None:
    assert {dataset_of(load(path)) for path in CONFIGS} == {*DATASETS, "MUTAG", "HIN"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_follows_the_recipe(path: Path) -> None:
    config = load(path)
    model = config["model"]["init_args"]
    net = model["net"]
    expected = recipe(dataset_of(config), net["class_path"].rpartition(".")[2], net["init_args"]["num_layers"])
    assert net["init_args"]["hidden_channels"] == expected.hidden_channels
    assert model["lr"] == expected.lr
    # With sampling an epoch is many steps, so the paper's number of them, one step each, does not apply.
    if "num_neighbors" not in config["data"]["init_args"]:
        assert config["trainer"]["max_epochs"] == expected.epochs
        assert config["data"]["init_args"].get("split", "paper") == "paper"
    assert set(model) <= {"net", "lr", "readout"}
    assert set(net["init_args"]) == {"hidden_channels", "num_layers"}


@pytest.mark.parametrize("path", ALL_CONFIGS, ids=lambda path: path.stem)
def test_first_line_is_the_command_and_it_parses(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = path.read_text().splitlines()[0]
    assert first == f"# attree fit --config {path.stem}"
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fit", "--config", str(path), "--print_config"])
    assert stopped.value.code == 0
    resolved = yaml.safe_load(capsys.readouterr().out)
    for key, value in leaves(load(path)):
        found: Any = resolved
        for part in key:
            found = found[part]
        assert found == value


def leaves(config: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def test_recipes_cover_the_table() -> None:
    networks = {(model, layers) for model in ("GAT", "GATv2") for layers in (2, 3)}
    for dataset in DATASETS:
        found = {key[1:]: RECIPES[key] for key in RECIPES if key[0] == dataset and key[1] != "SuperGAT"}
        assert set(found) == networks
        # Test accuracies of k out of n nodes: WebKB's test sets are small enough to tell.
        if size := {"Cornell": 37, "Texas": 37, "Wisconsin": 51, "BA-Shapes": 140}.get(dataset):
            for one in found.values():
                assert abs(one.accuracy * size - round(one.accuracy * size)) < 0.01
    with pytest.raises(ArgumentError, match=r"among those of Arxiv, .*but got"):
        recipe("Reddit", "GAT", 2)
