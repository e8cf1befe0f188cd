"""Fixtures and markers for every test: where real datasets are, and skipping where they are not."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = ["*/conftest.py"]
"""Files of fixtures have no doctests, and are one module to pytest since they have one name."""

DATA = Path(os.environ.get("ATTREE_DATA", Path(__file__).parents[1] / "data"))


LONG = (
    *(
        "test_distribution.py",
        "test_docs.py",
        "test_site.py",
        "test_browser.py",
        "test_browser_pictures.py",
        "test_explain_dataset.py",
        "test_explain_ddp.py",
    ),
    *("test_processes.py", "test_paper_command.py", "test_notebook.py", "test_stop.py", "test_tab_browser.py"),
    *("test_strangers.py", "test_explain_command.py", "test_any_project.py", "test_other_projects.py"),
)
"""Files that take longest: begun first, so that no process works on one of them while the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the server of processes, if a test may need it: it is forked from this process as it is now."""
    if session.items and "helpers.processes" in sys.modules:
        sys.modules["helpers.processes"].start_server()
    gc.collect()
    gc.freeze()  # modules and tests stay to the end: the collector need not walk through them again and again


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process (unless `--dist` says otherwise), so that what its tests share is made once."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "needs(*paths): skip unless these files or folders are in the data folder ($ATTREE_DATA or data/)",
    )
    hands_out = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if not hands_out:  # the process that only hands out tests needs no libraries, and need not wait for them
        # Lightning writes its log to the standard error that it finds when it is first imported. The command line does
        # so late, which in tests would be one test's captured stream, closed in all later ones.
        import_module("lightning.pytorch")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        absent = [path for path in marker.args if not (DATA / path).exists()]
        if absent:
            pytest.skip(f"{', '.join(absent)} not in {DATA}; set ATTREE_DATA to a folder that has it")
    import torch

    torch.manual_seed(0)  # a test's networks are the same whichever tests ran before it


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


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log folder of a tiny run, `infection/version_0`, which no test changes."""
    from helpers.cli import fit

    folder = tmp_path_factory.mktemp("trained")
    fit(folder)
    return folder


@pytest.fixture
def logs(trained: Path, tmp_path: Path) -> Path:
    """A copy of that folder, for a test that goes on with the run."""
    return Path(shutil.copytree(trained, tmp_path / "logs"))


@pytest.fixture(autouse=True)
def _quick_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that fits and commands leave are drawn coarsely: laying them out takes most of such a test's time.

    How they look is what tests of figures are about, which draw them as they are.
    """
    if {"report", "explanation", "tensorboard_tab", "serve"}.isdisjoint(request.path.parts):
        from helpers.quick_figures import QuickFigure

        monkeypatch.setattr("attree.report.style.Figure", QuickFigure)
        monkeypatch.setattr("attree.report.style.FILE_DPI", 20)
