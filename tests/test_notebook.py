"""The example notebook runs from top to bottom as a person would run it, and what is kept of its outputs is small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "explain_your_model.ipynb"


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget", reason="the notebook extra is not installed")
    shell_module = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    shell = shell_module.InteractiveShell()
    results = []
    for cell in cells():
        done = shell.run_cell("".join(cell["source"]))
        done.raise_error()
        results.append(done.result)
    names = shell.user_ns
    assert 0.7 < float((names["predicted"] == names["graph"].y)[~names["train"]].float().mean()) <= 1
    metrics = names["result"].metrics
    assert metrics["explain/gatt/removal/p_auroc"] > metrics["explain/avgatt/removal/p_auroc"]
    assert metrics["explain/gatt/removal/pc_pearson"] > metrics["explain/avgatt/removal/pc_pearson"]
    shown = [type(one).__name__ for one in results if one is not None]
    assert shown == ["Image", "DataFrame", "ExplorerWidget", "PosixPath"]
    assert (tmp_path / "page.html").is_file()


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
