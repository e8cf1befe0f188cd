"""Shows CHANGELOG.md on the site, with its links as they are from there."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page; mkdocs calls this."""
    text = re.sub(r"\]\(docs/", "](", CHANGELOG.read_text(encoding="utf-8"))
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[A-Z]\w*(?:\.\w+)?\)", r"\1", text)  # files that are not pages
    files.append(File.generated(config, "changelog.md", content=text))
    return files
