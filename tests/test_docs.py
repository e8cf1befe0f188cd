"""The documentation: its Python runs as it stands, and its commands parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import yaml

from attree.cli import main
from attree.cli.commands import COMMANDS
from attree.io.configs import sweep_names

REPO = Path(__file__).parents[1]
DOCS = REPO / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))
RUN = (
    "quick_start",
    "explain_your_model",
    "export",
    "from_pyg_and_captum",
    "graph_transformers",
    "heterogeneous",
    "numbers",
    "protocols",
    "regularization",
)
"""Pages whose blocks are run here; callback.md is run below, extending.md by test_extending.py, how_to.md by
test_newcomer.py."""


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
