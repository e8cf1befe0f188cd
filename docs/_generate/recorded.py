"""Run a page's Python blocks in their order, and store what each prints in the text block after it.

    python docs/_generate/recorded.py                 all pages with such text blocks
    python docs/_generate/recorded.py tutorial        one of them

A text block that is recorded stands between `<!-- numbers: NAME -->` and `<!-- end -->`, right after the Python block
that prints it. The pictures that the tutorial saves are stored in docs/images.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```\n"
    r"(?P<between>\n<!-- numbers: [\w.-]+ -->\n```text\n)?"
    r"(?P<text>(?(between).*?(?=```\n<!-- end -->)|))",
    flags=re.DOTALL,
)
PICTURES = {"tutorial": {"node42.png": "tutorial_node42.png"}}
"""Files that a page's code saves, and their names in docs/images."""


def recorded_pages() -> list[str]:
    """Names of the pages with recorded text, relative to docs."""
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in sorted(DOCS.rglob("*.md"))]
    return [page for page in pages if any(match["between"] for match in blocks_of(page))]


def blocks_of(page: str) -> list[re.Match[str]]:
    """The Python blocks of a page, each with the recorded text after it, if there is one."""
    return list(BLOCK.finditer((DOCS / f"{page}.md").read_text(encoding="utf-8")))


def printed(page: str) -> list[str]:
    """Run a page in the working directory; returns what each block printed."""
    names: dict[str, Any] = {"__name__": page}
    texts = []
    for match in blocks_of(page):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(match["code"], f"{page}.md", "exec"), names)
        texts.append("\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n")
    return texts


def record(page: str) -> None:
    """Run a page and write what it prints into it."""
    path = DOCS / f"{page}.md"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        texts = iter(printed(page))
        for name, picture in PICTURES.get(page, {}).items():
            shutil.copy(name, DOCS / "images" / picture)

    def with_text(match: re.Match[str]) -> str:
        text = next(texts)
        return f"```python\n{match['code']}```\n{match['between'] or ''}{text if match['between'] else ''}"

    path.write_text(BLOCK.sub(with_text, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "80")
    for name in sys.argv[1:] or recorded_pages():
        record(name)
