"""Shows on the site where numbers, texts and pictures come from: command, date, version and machine of each result."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from results import Repository, Result, age, names_of, result_of

INTRO = """# Where numbers come from

Each table and each text that was measured or recorded, and each picture, with the command that makes it. `make numbers`
runs what is old or missing, in hours; `make numbers QUICK=1` repeats in minutes what can be compared to the last digit.
`python benchmarks/measure.py --list` says what there is to do.

*By* a date: measured before results were stored, not later than this day; the version is the one of that day. *Older*:
measured with an earlier version, or the command has changed since. Load: of the machine when the command started. The
results, with the versions of Python, PyTorch and PyTorch Geometric, are in `docs/_generate/numbers`."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page; mkdocs calls this."""
    files.append(File.generated(config, "lab/measured.md", content=page(Repository())))
    return files


def page(repository: Repository) -> str:
    """The page's Markdown."""
    return (
        "\n".join([INTRO, "", "| what | command | when | version | |", "|---|---|---|---|---|", *rows(repository)])
        + "\n"
    )


def rows(repository: Repository) -> Iterator[str]:
    """A row for each result."""
    for measurement in repository.measurements:
        commands = "; ".join(f"`{command}`" for command in measurement.commands).replace("|", "\\|")
        for name in names_of(measurement):
            result = result_of(repository, name)
            if result is not None:
                older = "older" if age(repository, measurement, name) else ""
                pages = measurement.blocks[name].pages if name in measurement.blocks else ()
                links = ", ".join(f"[{name}](../{link}.md)" for link in pages if link != "README") or name
                cells = (links, commands, _when(result), result.versions["attree"], older)
                yield f"| {' | '.join(cells)} |"


def _when(result: Result) -> str:
    """When it was measured, how long it took, and where."""
    if result.machine is None or result.seconds is None:
        return f"{'by ' if result.imported else ''}{result.date}"
    return f"{result.date}, {result.seconds:.0f} s, {result.machine['cores']} cores, load {result.machine['load']}"
