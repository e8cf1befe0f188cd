"""Fixtures and markers for every test: where real datasets are, and skipping where they are not."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest
import torch

# Lightning writes its log to the standard error that it finds when it is first imported. The command line does so late,
# which in tests would be one test's captured stream, closed in all later ones.
import_module("lightning.pytorch")

DATA = Path(os.environ.get("ATTREE_DATA", Path(__file__).parents[1] / "data"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "needs(*paths): skip unless these files or folders are in the data folder ($ATTREE_DATA or data/)",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        absent = [path for path in marker.args if not (DATA / path).exists()]
        if absent:
            pytest.skip(f"{', '.join(absent)} not in {DATA}; set ATTREE_DATA to a folder that has it")
    # A test's networks are the same whichever tests ran before it.
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder of this process alone, with links to the real files.

    The loaders of PyG and OGB write processed files beside the raw ones. Here each test process writes its
    own, so that parallel tests never race, and every run processes the raw files afresh.
    """
    root = tmp_path_factory.mktemp("data")
    for folder, subfolders, files in os.walk(DATA):
        subfolders[:] = [name for name in subfolders if name != "processed"]
        mirror = root / Path(folder).relative_to(DATA)
        mirror.mkdir(exist_ok=True)
        for name in files:
            (mirror / name).symlink_to(Path(folder, name).resolve())
    return str(root)
