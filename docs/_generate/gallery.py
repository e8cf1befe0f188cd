"""The gallery: pages that `attree explain` wrote, kept as their content alone and drawn anew when the site is built.

What a page shows is a few dozen kilobytes of JSON; the rest is the explorer, which comes from this version of attree.
To add a page, or to make one again:

    python docs/_generate/gallery.py cora logs/cora/version_0/explain/page.html
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from attree.report.page.write import page_html, safe_json

FOLDER = Path(__file__).parents[1] / "gallery"
MOST_POINTS = 50
"""Points of a training curve that are kept."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put a page in the place of each stored content; mkdocs calls this."""
    for path in sorted(FOLDER.glob("*.json")):
        file = files.get_file_from_path(f"gallery/{path.name}")
        if file is not None:
            files.remove(file)
        page = page_html(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"gallery/{path.stem}.html", content=page))
    return files


def keep(name: str, page: Path) -> Path:
    """Take the content out of a page and store it under a name."""
    match = re.search(r'<script type="application/json" id="attree-data">(.*?)</script>', page.read_text("utf-8"), re.S)
    if match is None:
        raise SystemExit(f"{page} is no page of attree.")
    content = json.loads(match.group(1))
    for curve in content["curves"]:
        every = -(-len(curve["points"]) // MOST_POINTS)
        points = curve["points"][::-every][::-1]  # the last one is what the run ended with
        curve["points"] = [[step, value if value is None else round(value, 4)] for step, value in points]
    # Where the run was on the disk of who made the page is nobody's business.
    content["summary"] = [[what, re.sub(r"^/.*?(?=logs/)", "", text)] for what, text in content["summary"]]
    path = FOLDER / f"{name}.json"
    path.write_text(safe_json(content) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    print(keep(sys.argv[1], Path(sys.argv[2])))
