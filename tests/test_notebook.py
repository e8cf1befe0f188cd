"""The example notebook runs from top to bottom as a person would run it, and what is kept of its outputs is small."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "explain_your_model.ipynb"


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.long
def test_every_cell_runs_and_prints_what_is_kept_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget", reason="the notebook extra is not installed")
    shell_module = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    shell = shell_module.InteractiveShell.instance()
    shell.kernel = object()  # as a notebook's shell has one
    results, printed = [], []
    try:
        for cell in cells():
            with contextlib.redirect_stdout(io.StringIO()) as out:
                done = shell.run_cell("".join(cell["source"]))
            done.raise_error()
            results.append(done.result)
            printed.append(out.getvalue())
    finally:
        shell_module.InteractiveShell.clear_instance()
    names = shell.user_ns
    assert 0.7 < float((names["predicted"] == names["graph"].y)[~names["train"]].float().mean()) <= 1
    metrics = names["result"].metrics
    assert metrics["explain/gatt/removal/p_auroc"] > metrics["explain/avgatt/removal/p_auroc"]
    assert metrics["explain/gatt/removal/pc_pearson"] > metrics["explain/avgatt/removal/pc_pearson"]
    shown = [type(one).__name__ for one in results if one is not None]
    assert shown == ["Image", "Image", "DataFrame", "ExplorerWidget", "PosixPath"]
    assert metrics["explain/gatt/removal/pc_pearson"] > metrics["explain/uniform/removal/pc_pearson"]
    assert "explain/gnn_explainer/removal/pc_pearson" in names["slow"].metrics
    assert (tmp_path / "page.html").is_file()
    for cell, text in zip(cells(), printed, strict=True):
        kept = ["".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"]
        if kept:
            assert wording(text) == wording(kept[0]), "python docs/_generate/notebook.py keeps what the cells print now"


def wording(text: str) -> list[str]:
    """The words of a text, without numbers: their last digits are a machine's own."""
    return re.sub(r"[-+±]*\d[\d.,]*", "#", text).split()


def test_the_first_cell_installs_only_what_is_missing() -> None:
    first = "".join(cells()[0]["source"])
    assert '%pip install --quiet "..[notebook]"' in first
    assert first.index("if importlib.util.find_spec") < first.index("%pip")
    assert cells()[0]["outputs"] == []


def test_what_is_kept_is_what_these_cells_print() -> None:
    texts = ["".join(output.get("text", [])) for cell in cells() for output in cell["outputs"]]
    assert any(text.startswith("Use ") for text in texts)  # the verdict
    assert any(re.match(r"The network predicts class \d", text) for text in texts)


def test_kept_outputs_are_small_and_whole() -> None:
    assert NOTEBOOK.stat().st_size < 100_000
    kinds = set()
    for cell in cells():
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            kinds |= set(output.get("data", {"stream": 0}))
    assert {"stream", "image/png", "text/html"} <= kinds
    assert "/home/" not in NOTEBOOK.read_text()
    assert "/tmp/" not in NOTEBOOK.read_text()
