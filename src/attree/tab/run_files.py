"""Finds and reads the explanations that runs have saved in their folders, and nothing outside of the log folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

PAGES = ("page.html", "explain/page.html")
"""Pages that `attree fit` and `attree explain` write into a run's folder."""

STEPS = "explanations/steps"
"""Where a fit saves its explanations while it goes on: one file `<step>.json` each."""

MOST_BYTES = 200 * 2**20
DATA = re.compile(rb'<script type="application/json" id="attree-data">(.*?)</script>', re.DOTALL)


class RunFiles:
    """Reads what the runs of a log folder have saved, and nothing outside of it, even through links.

    Args:
        logdir: The log folder; empty if TensorBoard was started with several.
        multiplexer: TensorBoard's own list of runs and their folders, if it has one.
    """

    def __init__(self, logdir: str | None, multiplexer: Any = None) -> None:
        self._logdir = logdir
        self._multiplexer = multiplexer

    def pages(self, run: str) -> list[str]:
        """Names of what a run has saved: steps in their order, then the finished pages."""
        folder = self._folder(run)
        if folder is None:
            return []
        try:
            names = [entry.name for entry in os.scandir(folder / STEPS) if re.fullmatch(r"\d{1,12}\.json", entry.name)]
        except OSError:
            names = []
        steps = sorted(names, key=lambda name: int(name.removesuffix(".json")))
        return [f"{STEPS}/{name}" for name in steps] + [name for name in PAGES if self._file(folder, name) is not None]

    def read(self, run: str, page: str) -> str | None:
        """What a page shows, as JSON text; None if the run has no such page."""
        folder = self._folder(run)
        if folder is None or not (page in PAGES or re.fullmatch(rf"{STEPS}/\d{{1,12}}\.json", page)):
            return None
        path = self._file(folder, page)
        if path is None:
            return None
        content = path.read_bytes()
        if page.endswith(".html"):
            match = DATA.search(content)
            if match is None:
                return None
            content = match[1]
        try:
            text = content.decode("utf-8")
            json.loads(text)
        except ValueError:
            return None
        return text

    def _folder(self, run: str) -> Path | None:
        """The folder of a run, if TensorBoard knows it."""
        known = {} if self._multiplexer is None else self._multiplexer.RunPaths()
        if run in known:
            return Path(known[run])
        return Path(self._logdir, run) if self._logdir else None

    def _file(self, folder: Path, name: str) -> Path | None:
        """A file below a run's folder, and within the log folder when all links are followed."""
        path = Path(os.path.realpath(folder / name))
        root = Path(os.path.realpath(self._logdir or folder))
        if not path.is_relative_to(root) or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        return path
