"""The configs that come with attree, found by name.

In the repository they are in the folder `configs/`; the build copies them into the wheel.
"""

from __future__ import annotations

import re
from pathlib import Path

from attree.errors import ArgumentError, MissingDataError, did_you_mean

SUFFIX = ".yaml"


def config_names() -> list[str]:
    """Return the names of the configs for `attree fit`."""
    return [path.stem for path in sorted(_folder().glob(f"*{SUFFIX}"))]


def sweep_names() -> list[str]:
    """Return the names of the sweep files for `attree sweep`."""
    return [path.stem for path in sorted((_folder() / "sweeps").glob(f"*{SUFFIX}"))]


def find_config(name: str, beside: Path = Path()) -> str:
    """Return the path of a shipped config, or of a local file of that name in `beside`; other values are unchanged."""
    return _find(name, _folder(), config_names(), beside)


def find_sweep(name: str) -> str:
    """Return the path of a shipped sweep file, or of a local file of that name; other values are unchanged."""
    return _find(name, _folder() / "sweeps", sweep_names(), Path())


def expect_sweep(name: str) -> Path:
    """Return the path of a sweep file by its name or path; raise, with a suggestion, if there is none."""
    path = Path(find_sweep(name))
    if not path.is_file():
        raise MissingDataError(f"Expected a sweep file, but {name!r} does not exist.{config_hint(name, sweep=True)}")
    return path


def config_hint(path: str, sweep: bool = False) -> str:
    """Return a hint for an error message about a config or sweep file: the name that was probably meant.

    >>> config_hint("infectoin"), config_hint("configs/infection.yaml"), config_hint("mine.yaml")
    (' Did you mean `infection`?', ' Did you mean `infection`?', '')
    >>> config_hint("regularization")
    ' It is a sweep: attree sweep regularization'
    """
    name = Path(path).stem
    names, others = (sweep_names(), config_names()) if sweep else (config_names(), sweep_names())
    if name in others:
        return f" It is a config: attree fit --config {name}" if sweep else f" It is a sweep: attree sweep {name}"
    return did_you_mean(name, names)


def read_shipped(name: str) -> str:
    """Return the text of a shipped config or sweep file."""
    names = [*config_names(), *sweep_names()]
    if name not in names:
        hint = did_you_mean(Path(name).stem, names)
        raise ArgumentError(f"Expected argument `NAME` to be one of {', '.join(names)}, but got {name!r}.{hint}")
    parent = _folder() if name in config_names() else _folder() / "sweeps"
    return (parent / f"{name}{SUFFIX}").read_text(encoding="utf-8")


def first_sentence(text: str) -> str:
    """Return the first sentence of the comment that follows a config's command: what the config is for.

    >>> first_sentence("# attree fit --config a\\n#\\n# A: is it so, or ...?\\n# Read from b.npz. More.\\nseed: 0\\n")
    'A: is it so, or ...?'
    """
    head = re.split(r"^(?!#)", text, maxsplit=1, flags=re.MULTILINE)[0]
    words = " ".join(line.removeprefix("#").strip() for line in head.splitlines()[1:]).strip()
    return re.split(r"(?<=[.?!])\s", words, maxsplit=1)[0]


def _folder() -> Path:
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parents[1] / "configs"


def _find(name: str, folder: Path, names: list[str], beside: Path) -> str:
    if name not in names:
        return name
    local = next((file for file in (name, f"{name}{SUFFIX}") if (beside / file).is_file()), None)
    return local or str(folder / f"{name}{SUFFIX}")
