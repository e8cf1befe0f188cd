"""The committed bundle is what its source makes, and can stand inside a page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from attree.report.page.write import asset

WEB = Path(__file__).parents[3] / "web"


@pytest.mark.skipif(not (WEB / "node_modules" / "esbuild").exists(), reason="esbuild not found: npm ci in web/")
def test_the_bundle_is_built_from_its_source(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    subprocess.run([node, "build.js", str(tmp_path)], cwd=WEB, check=True, timeout=60)
    for name in ("explorer.js", "explorer.css", "tab.js"):
        assert (tmp_path / name).read_text(encoding="utf-8") == asset(name)


def test_nothing_in_the_bundle_ends_its_element_or_makes_html() -> None:
    script, style = asset("explorer.js") + asset("tab.js"), asset("explorer.css")
    assert "</script" not in script
    assert "<!--" not in script
    assert "</style" not in style
    for careless in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert careless not in script


def test_the_lock_file_pins_every_package_and_names_no_host() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert len(packages) > 2
    for entry in packages.values():
        assert "resolved" not in entry
        assert entry["integrity"].startswith("sha512-")
    wanted = json.loads((WEB / "package.json").read_text())["devDependencies"]
    assert {name: packages[f"node_modules/{name}"]["version"] for name in wanted} == wanted
