"""Run a page's Python blocks in their order, and print what each prints that has a text block after it.

    python docs/_generate/recorded.py tutorial

A text block that is recorded stands between `<!-- numbers: NAME -->` and `<!-- end -->`, right after the Python block
that prints it. `python benchmarks/measure.py --only tutorial` writes it, and the pictures that the page saves.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
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


def main() -> None:
    """Print what the recorded blocks of a page print, separated by form feeds; its pictures go to this folder."""
    page = sys.argv[1]
    texts = zip(blocks_of(page), printed(page), strict=True)
    sys.stdout.write("\f".join(text for match, text in texts if match["between"]))


if __name__ == "__main__":
    main()
