"""The documentation's site: it builds with every link checked, has every page and name, and fetches nothing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import attree
from attree.cli.training_parser import CHOICES
from attree.io.config_files import config_names, sweep_names

REPO = Path(__file__).parents[1]
DOCS = REPO / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_generate" not in path.parts)

pytestmark = pytest.mark.long

PACKAGES = [
    f"attree.{name}"
    for name in (
        *("attention", "attribution", "callbacks", "data", "evaluation", "explanation", "faithfulness"),
        *("metrics", "metrics.functional", "runs", "models", "penalties", "planted", "report.page", "subject"),
    )
]
"""What the API reference shows."""


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


def test_the_site_has_every_page_and_fetches_nothing(site: Path) -> None:
    built = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")} - {"404"}
    gallery = {f"gallery/{path.stem}" for path in (DOCS / "gallery").glob("*.json")}
    assert (
        built
        == {str(path.relative_to(DOCS).with_suffix("")) for path in PAGES}
        | {"configuration", "changelog", "lab/measured"}
        | gallery
    )
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
