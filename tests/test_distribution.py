"""What people install: the source archive, the wheel made from it, and the demo run from that in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from attree import __version__
from attree.cli import main
from helpers.cli import CONFIGS

REPO = Path(__file__).parents[1]
SOURCE = ("benchmarks", "configs", "docs", "examples", "src", "tests", "web")
"""Folders of the repository that are copied to build from; what a developer keeps beside them is not."""


def _setuptools() -> int:
    try:
        return int(version("setuptools").partition(".")[0])
    except PackageNotFoundError:
        return 0


pytestmark = pytest.mark.skipif(_setuptools() < 77, reason="building needs setuptools>=77: pip install '.[dev]'")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, with nothing of this process' paths, and return what it prints."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "COVERAGE_PROCESS_START")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"XDG_CACHE_HOME": str(cwd / ".cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "150"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive."""
    copy = tmp_path_factory.mktemp("repository")
    for name in SOURCE:
        if (REPO / name).is_dir():
            shutil.copytree(
                REPO / name, copy / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__", "*.egg-info")
            )
    for path in REPO.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    code = "import setuptools.build_meta as backend; print(backend.build_sdist('dist'))"
    name = run(sys.executable, "-c", code, cwd=copy).splitlines()[-1]
    return copy / "dist" / name


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source archive alone."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, archive, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def attree(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `attree` command of a new environment that has the wheel; all it depends on is this environment's."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    install = ("install", "--no-deps", "--no-index", "--quiet", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=home)
    # A path in a .pth file is searched after the environment's own packages, and .pth files in it (such as the one of
    # an editable attree) are not read.
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    shared = [path for path in sys.path if path.endswith("-packages")]
    (own / "shared.pth").write_text("\n".join(shared) + "\n")
    found = run(python, "-c", "import attree; print(attree.__file__)", cwd=home).strip()
    assert Path(found).is_relative_to(own)
    return home / "bin" / "attree"


def test_the_source_archive_has_what_builds_tests_and_documents(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for path in (
        "setup.py",
        "constraints.txt",
        "Makefile",
        "LICENSE",
        "mkdocs.yml",
        "configs/sweeps/regularization.yaml",
    ):
        assert path in names
    for folder in ("src/attree", "tests", "docs", "web/src", "benchmarks", "examples"):
        expected = {str(path.relative_to(REPO)) for path in (REPO / folder).rglob("*.*") if path.is_file()}
        expected = {name for name in expected if "__pycache__" not in name and not name.endswith(".pyc")}
        assert expected - names == set(), folder
    assert not [name for name in names if "node_modules" in name or name.startswith(("data/", "logs/"))]


def test_the_wheel_has_one_copy_of_every_config_and_all_data_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        for path in CONFIGS.rglob("*.yaml"):
            name = f"attree/configs/{path.relative_to(CONFIGS)}"
            assert names.count(name) == 1
            assert content.read(name) == path.read_bytes()
    source = REPO / "src"
    wanted = {str(path.relative_to(source)) for path in (source / "attree").rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    assert wanted - set(names) == set()
    assert {name.partition("/")[0] for name in names} == {"attree", f"attree-{__version__}.dist-info"}


@pytest.mark.long
def test_the_demo_runs_in_an_empty_folder(attree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(attree, "--version", cwd=tmp_path) == f"attree {__version__}\n"
    with pytest.raises(SystemExit):
        main(["configs"])
    assert run(attree, "configs", cwd=tmp_path) == capsys.readouterr().out
    small = ("--data.num_nodes", "300", "--data.edge_probability", "0.007", "--explain.figures", "1")
    printed = run(attree, "fit", "--config", "infection", "--trainer.max_epochs", "2", *small, cwd=tmp_path)
    assert "true edges: AUROC" in " ".join(printed.split())
    folder = tmp_path / "logs" / "infection" / "version_0"
    assert (folder / "checkpoints" / "last.ckpt").is_file()
    assert (folder / "metrics.json").is_file()
    assert (folder / "page.html").is_file()  # whose script and style are files of the package
    planned = run(attree, "sweep", "regularization", "--dry_run", cwd=tmp_path).splitlines()
    assert len(planned) == 27
