"""Cache of help texts. Making one takes seconds, because it imports PyTorch and Lightning.

The help of `attree fit` is generated from code. So the key of a cached text is a hash of attree's code, the versions of
Python and of the packages that define options, and the width of the terminal.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from attree.io.config_files import config_names, sweep_names

PACKAGES = ("docstring-parser", "jsonargparse", "lightning", "shtab", "torch", "torch-geometric", "typeshed-client")
"""Packages that the help and the completion depend on, besides attree."""

MAX_TEXTS = 40
"""Maximum number of cached texts."""


def show_cached(arguments: Sequence[str], command: Callable[[], object]) -> NoReturn:
    """Print a command's output, from the cache if possible, and exit with the command's status.

    Args:
        arguments: The arguments after `attree`.
        command: Prints the text, and may raise SystemExit. The text is cached if the command succeeds.
    """
    path = cache_folder() / f"{text_key(arguments)}.txt"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        text = ""
    if text:
        print(text, end="")
        raise SystemExit(0)
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            command()
        status: int | str | None = 0
    except SystemExit as stop:
        status = stop.code
    print(printed.getvalue(), end="")
    if status in (0, None):
        with suppress(OSError):  # the home directory may be read-only
            _store(path, printed.getvalue())
    raise SystemExit(status)


def cache_folder() -> Path:
    """Return the folder of the cache: `$XDG_CACHE_HOME/attree`, or `~/.cache/attree`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.cache"), "attree")


def text_key(arguments: Sequence[str]) -> str:
    """Return a hash of everything that the text depends on."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    facts = [*arguments, sys.version, shutil.get_terminal_size().columns, config_names(), sweep_names()]
    digest.update(repr([*facts, [_version(name) for name in PACKAGES]]).encode())
    return digest.hexdigest()[:32]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _store(path: Path, text: str) -> None:
    """Write a text, and remove the oldest texts beyond `MAX_TEXTS`."""
    from attree.io.files import write_text  # imports NumPy

    write_text(path, text)
    for old in sorted(path.parent.glob("*.txt"), key=lambda one: one.stat().st_mtime)[:-MAX_TEXTS]:
        old.unlink(missing_ok=True)
