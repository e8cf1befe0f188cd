"""The documentation: its Python runs as it stands, its commands parse, and the site builds with every link checked."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pytest
import yaml

import attree
from attree.cli import main
from attree.cli.choices import CHOICES
from attree.cli.commands import COMMANDS
from attree.io.config_files import config_names, sweep_names

REPO = Path(__file__).parents[1]
DOCS = REPO / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))
RUN = (
    "quick_start",
    "explain_your_model",
    "export",
    "from_pyg_and_captum",
    "heterogeneous",
    "numbers",
    "protocols",
    "regularization",
)
"""Pages whose blocks are run here; callback.md is run below, extending.md by test_extending.py, how_to.md by
test_newcomer.py."""

PACKAGES = [
    f"attree.{name}"
    for name in (
        *("attention", "attribution", "callbacks", "data", "effects", "evaluation", "explanation", "faithfulness"),
        *("metrics", "metrics.functional", "runs", "models", "penalties", "report.page", "subject"),
    )
]
"""What the API reference shows."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / f"{page}.md").read_text(), flags=re.S)


def test_the_callback_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("callback", "python")
    assert len(re.findall(r"# \d", block)) <= 5
    names: dict[str, object] = {"__name__": "callback_page"}
    exec(block, names)
    (run,) = (tmp_path / "lightning_logs").iterdir()
    assert "explain/gatt/weight/faithfulness" in (run / "metrics.json").read_text()
    assert (run / "explanations" / "gatt.npz").is_file()


@pytest.mark.parametrize("page", RUN)
def test_python_runs_as_it_stands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(page, "python")
    assert code
    names: dict[str, object] = {"__name__": page}
    for block in code:
        exec(compile(block, f"{page}.md", "exec"), names)
    plt.close("all")
    if page == "explain_your_model":
        assert (tmp_path / "page.html").read_text().startswith("<!")
        assert (tmp_path / "explained" / "metrics.json").is_file()


def commands() -> list[tuple[str, list[str]]]:
    """Every `attree` command of the pages' shell blocks, with the page it stands on."""
    found = []
    for path in DOCS.glob("*.md"):
        for block in blocks(path.stem, "sh"):
            for line in block.splitlines():
                if line.startswith("attree "):
                    found.append((path.stem, shlex.split(line, comments=True)[1:]))
    return found


def test_commands_are_known() -> None:
    assert len(commands()) > 10
    for page, arguments in commands():
        assert arguments[0] in COMMANDS, page
        if arguments[0] == "sweep":
            assert arguments[1] in sweep_names(), page


@pytest.mark.parametrize(
    "arguments", [one for _, one in commands() if one[0] in ("fit", "test")], ids=lambda one: " ".join(one)[:60]
)
def test_training_commands_parse(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module of the user's own, which one of the commands names.
    (tmp_path / "mymod.py").write_text(
        "from attree.models import NodeClassifier\n\nclass MyModule(NodeClassifier): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--print_config"])
    assert stop.value.code == 0
    assert "class_path" in yaml.safe_load(capsys.readouterr().out)["data"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", page.read_text()):
        source = re.sub(r"gallery/(\w+)\.html", r"gallery/\1.json", link)  # the site makes pages of these
        assert (page.parent / source).exists() or link == "configuration.md", link


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every link and anchor checked."""
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    path = f"{REPO / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPO,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long
def test_the_site_has_every_page_and_fetches_nothing(site: Path) -> None:
    built = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")} - {"404"}
    gallery = {f"gallery/{path.stem}" for path in (DOCS / "gallery").glob("*.json")}
    assert built == {str(path.relative_to(DOCS).with_suffix("")) for path in PAGES} | {"configuration"} | gallery
    for page in site.rglob("*.html"):
        text = page.read_text()
        for fetched in re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?([^\" >]+)", text):
            assert not re.match(r"(?:https?:)?//", fetched), f"{page.name}: {fetched}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text()), style


def test_the_gallery_is_small_and_drawn_by_this_version(site: Path) -> None:
    pages = sorted((site / "gallery").glob("*.html"))
    assert {page.stem for page in pages} >= {"infection", "mutag", "cora", "acm"}
    explorer = (REPO / "src/attree/report/page/static/explorer.js").read_text()
    for page in pages:
        assert page.stat().st_size < 800_000
        assert (DOCS / "gallery" / f"{page.stem}.json").stat().st_size < 600_000
        assert explorer in page.read_text()
        assert "/home/" not in page.read_text()


def test_the_configuration_reference_has_every_choice(site: Path) -> None:
    text = (site / "configuration.html").read_text()
    names = [*config_names(), *sweep_names(), *(name for _, own in CHOICES.values() for name in own)]
    for word in (
        *names,
        "explain.num_targets",
        "trainer.max_epochs",
        "edge_probability",
        "hidden_channels",
        "--dry_run",
    ):
        assert word in text, word


@pytest.mark.parametrize("package", PACKAGES)
def test_the_api_reference_has_every_public_name(package: str, site: Path) -> None:
    text = "".join(path.read_text() for path in (site / "api").glob("*.html"))
    module = import_module(package)
    for name in module.__all__:
        if not isinstance(getattr(module, name), ModuleType):
            # A function in a file of its own name is shown as that file's.
            assert f'id="{package}.{name}"' in text or f'id="{package}.{name}.{name}"' in text, name


def test_the_api_reference_has_all_that_is_imported_first(site: Path) -> None:
    text = "".join(path.read_text() for path in (site / "api").glob("*.html"))
    for name in attree.__all__:
        found = re.search(rf'id="attree\.[\w.]*\.{name}"', text)
        assert found, name
        assert name in (DOCS / "api" / "index.md").read_text()


def test_the_api_reference_has_every_figure(site: Path) -> None:
    text = (site / "api" / "report.html").read_text()
    figures = []
    for path in (REPO / "src/attree/report").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) == "Figure":
                figures.append(f"attree.report.{path.stem}.{node.name}")
    figures = [name for name in figures if ".style." not in name and "._" not in name]
    assert len(figures) > 8
    for name in figures:
        assert f'id="{name}"' in text, name


def test_formulas_are_drawn(site: Path) -> None:
    text = "".join(path.read_text() for path in (site / "api").glob("*.html"))
    assert "<math" in text
    assert ":math:" not in text
