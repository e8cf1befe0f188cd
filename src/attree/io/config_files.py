"""YAML: the configs that come with attree, found by name, and how any YAML file is read.

In the repository the configs are the folder `configs/`; the build copies them into the wheel. A file that is no valid
YAML, or that would keep a parser busy for ever, is refused in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from attree.errors import ArgumentError, did_you_mean

SUFFIX = ".yaml"


def config_names() -> list[str]:
    """Names of the configs for `attree fit`."""
    return [path.stem for path in sorted(_folder().glob(f"*{SUFFIX}"))]


def sweep_names() -> list[str]:
    """Names of the sweep files for `attree sweep`."""
    return [path.stem for path in sorted((_folder() / "sweeps").glob(f"*{SUFFIX}"))]


def find_config(given: str, beside: Path = Path()) -> str:
    """The path of a shipped config. A file of that name in `beside` is preferred; other values are kept."""
    return _find(given, _folder(), config_names(), beside)


def find_sweep(given: str) -> str:
    """The path of a shipped sweep file. A local file of that name is preferred; other values are returned unchanged."""
    return _find(given, _folder() / "sweeps", sweep_names(), Path())


def config_hint(given: str, sweep: bool = False) -> str:
    """A hint for the end of an error message about a config or sweep file: the name that was probably meant.

    >>> config_hint("infectoin"), config_hint("configs/infection.yaml"), config_hint("mine.yaml")
    (' Did you mean `infection`?', ' Did you mean `infection`?', '')
    >>> config_hint("regularization")
    ' It is a sweep: attree sweep regularization'
    """
    name = Path(given).stem
    own, other = (sweep_names(), config_names()) if sweep else (config_names(), sweep_names())
    if name in other:
        return f" It is a config: attree fit --config {name}" if sweep else f" It is a sweep: attree sweep {name}"
    return did_you_mean(name, own)


def read_shipped(name: str) -> str:
    """The text of the config or sweep file of this name."""
    known = [*config_names(), *sweep_names()]
    if name not in known:
        hint = did_you_mean(Path(name).stem, known)
        raise ArgumentError(f"Expected argument `NAME` to be one of {', '.join(known)}, but got {name!r}.{hint}")
    parent = _folder() if name in config_names() else _folder() / "sweeps"
    return (parent / f"{name}{SUFFIX}").read_text(encoding="utf-8")


def first_sentence(text: str) -> str:
    """What a config says it is for: the first sentence of the comment that follows its command.

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


def _find(given: str, folder: Path, names: list[str], beside: Path) -> str:
    if given not in names:
        return given
    local = next((one for one in (given, f"{given}{SUFFIX}") if (beside / one).is_file()), None)
    return local or str(folder / f"{given}{SUFFIX}")


MAX_DEPTH = 50
"""Lists and mappings in each other; libyaml's recursion has no limit of its own."""

MAX_VALUES = 100_000
"""Values with every alias written out: a few lines of aliases to aliases can stand for billions."""

_EVENTS: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Read a YAML file of one document; an `ArgumentError` names the file and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text)
        return yaml.load(text, loader)
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{path} is no UTF-8 text: byte {error.start} is {error.object[error.start]:#x}."
        ) from error
    except yaml.YAMLError as error:
        raise ArgumentError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error


def check_yaml(text: str) -> None:
    """Raise a `yaml.YAMLError` if the text is not YAML, has a key twice, is nested too deep, or is too long.

    How long it is counts with every alias written out. The text is read as a stream of events, so that the check itself
    takes no more time than the text is long.
    """
    sizes: dict[str, int] = {}
    open_anchors: list[str | None] = []
    open_sizes = [0]
    keys = _Keys()
    for event in yaml.parse(text, Loader=_EVENTS):
        keys.see(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise yaml.YAMLError(f"the alias *{event.anchor} stands for something that it is in")
            open_sizes[-1] += sizes.get(str(event.anchor), 0)
        elif isinstance(event, yaml.ScalarEvent):
            open_sizes[-1] += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            open_sizes.append(1)
            if len(open_anchors) > MAX_DEPTH:
                raise yaml.YAMLError(f"more than {MAX_DEPTH} lists or mappings in each other")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_anchors.pop(), open_sizes.pop()
            open_sizes[-1] += size
            if anchor is not None:
                sizes[anchor] = size
        if open_sizes[-1] > MAX_VALUES:
            raise yaml.YAMLError(f"more than {MAX_VALUES} values, counting what aliases stand for")


class _Keys:
    """Finds duplicate keys of a mapping: YAML forbids them, but its parsers silently take the last value."""

    def __init__(self) -> None:
        self._open: list[dict[str, int] | None] = []  # for each collection the lines of its keys; None is a list
        self._key_is_next: list[bool] = []

    def see(self, event: yaml.Event) -> None:
        """Look at the next event."""
        if isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._key_is_next.pop()
            return
        if not isinstance(event, yaml.NodeEvent):
            return
        if self._open and (lines := self._open[-1]) is not None:
            if self._key_is_next[-1] and isinstance(event, yaml.ScalarEvent):
                line = 0 if event.start_mark is None else event.start_mark.line + 1
                if event.value in lines:
                    raise yaml.YAMLError(f"the key {event.value!r} is in lines {lines[event.value]} and {line}")
                lines[event.value] = line
            self._key_is_next[-1] = not self._key_is_next[-1]
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append({} if isinstance(event, yaml.MappingStartEvent) else None)
            self._key_is_next.append(True)
