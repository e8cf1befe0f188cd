"""Runs the example notebook from top to bottom and keeps what its cells show.

    python docs/_generate/notebook.py

Widgets are kept as a sentence, since they need a running model. Pictures are kept as PNG, tables as text and HTML.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

NOTEBOOK = Path(__file__).parents[2] / "examples" / "explain_your_model.ipynb"
WIDGET = "The page, as a widget (run the notebook to see it)"


def main() -> None:
    """Write the notebook again, with the outputs of this run."""
    notebook = json.loads(NOTEBOOK.read_text())
    shell = InteractiveShell.instance()
    shell.kernel = object()  # as a notebook's shell has one
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for count, cell in enumerate(cells, start=1):
            with capture_output(display=False) as printed:
                done = shell.run_cell("".join(cell["source"]))
            done.raise_error()
            cell["execution_count"], cell["outputs"] = count, _outputs(shell, printed.stdout, done.result, count)
        os.chdir("/")
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _outputs(shell: InteractiveShell, printed: str, result: Any, count: int) -> list[dict[str, Any]]:
    """One cell's outputs as a notebook has them: what it printed, and what its last line is."""
    outputs: list[dict[str, Any]] = []
    if printed and result is None:
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    if result is not None:
        formats, _ = shell.display_formatter.format(result, include=["text/plain", "text/html", "image/png"])
        data = {"text/plain": WIDGET} if "Widget" in type(result).__name__ else formats
        lines = {name: text if name == "image/png" else text.splitlines(keepends=True) for name, text in data.items()}
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": lines})
    return outputs


if __name__ == "__main__":
    main()
