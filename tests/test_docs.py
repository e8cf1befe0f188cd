"""The documentation: its Python runs as it stands, and its commands parse."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import yaml

from attree.cli import main
from attree.cli.commands import COMMANDS
from attree.io.config_files import sweep_names

REPO = Path(__file__).parents[1]
DOCS = REPO / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_generate" not in path.parts)
GENERATED = ("configuration.md", "changelog.md", "measured.md")
"""Pages that are made when the site is built."""
RUN = (
    "how_to/your_model",
    "how_to/datasets",
    "how_to/export",
    "how_to/from_pyg_and_captum",
    "how_to/graph_transformers",
    "how_to/heterogeneous",
    "how_to/loggers",
    "how_to/report",
    "how_to/train_for_explainability",
    "concepts/numbers",
)
"""Pages whose blocks are run here; how_to/lightning.md and the recorded pages are run below, how_to/extending.md by
test_extending.py, how_to/index.md by test_newcomer.py, lab/planted.md by test_planted.py."""
RECORDED = runpy.run_path(str(DOCS / "_generate" / "recorded.py"), run_name="recorded")
"""What runs a page and stores what it prints."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / f"{page}.md").read_text(), flags=re.S)


def test_the_callback_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("how_to/lightning", "python")
    assert len(re.findall(r"# \d", block)) <= 5
    names: dict[str, object] = {"__name__": "lightning_page"}
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
    if page == "how_to/your_model":
        assert (tmp_path / "page.html").read_text().startswith("<!")
        assert (tmp_path / "explained" / "metrics.json").is_file()


def wording(text: str) -> list[str]:
    """The words of a text, without numbers and bars: their last digits are a machine's own."""
    return re.sub(r"[-+±]*\d[\d.,]*|█+", "#", text).replace("#", "").split()


@pytest.mark.parametrize("page", RECORDED["recorded_pages"]())
def test_recorded_pages_print_what_they_show(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    stored = [match["text"] if match["between"] else None for match in RECORDED["blocks_of"](page)]
    for text, printed in zip(stored, RECORDED["printed"](page), strict=True):
        if text is not None:
            assert wording(text) == wording(printed), (
                f"python benchmarks/measure.py --only {page} stores what it prints now"
            )
    plt.close("all")
    for name, picture in RECORDED["PICTURES"].get(page, {}).items():
        assert (tmp_path / name).is_file()
        assert (DOCS / "images" / picture).is_file()


def commands() -> list[tuple[str, list[str]]]:
    """Every `attree` command of the pages' shell blocks, with the page it stands on."""
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES]
    lines = [(page, line) for page in pages for block in blocks(page, "sh") for line in block.splitlines()]
    return [(page, shlex.split(line, comments=True)[1:]) for page, line in lines if line.startswith("attree ")]


def test_commands_are_known() -> None:
    assert len(commands()) > 10
    for page, arguments in commands():
        assert arguments[0] in COMMANDS, page
        if arguments[0] == "sweep":
            assert arguments[1] in sweep_names(), page


@pytest.mark.parametrize(
    "arguments",
    [one for _, one in commands() if one[0] in ("fit", "test") and "--resume" not in one],
    ids=lambda one: " ".join(one)[:60],
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
        assert (page.parent / source).exists() or Path(link).name in GENERATED, link
