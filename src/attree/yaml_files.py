"""Read YAML that anyone may have written: refused in a sentence where a parser would fail, or never end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from attree.errors import ArgumentError

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
    """Raise a `yaml.YAMLError` if the text is no YAML, nested too deep, or too much once its aliases are written out.

    The text is read as a stream of events, so that the check itself takes no more time than the text is long.
    """
    sizes: dict[str, int] = {}
    open_anchors: list[str | None] = []
    open_sizes = [0]
    for event in yaml.parse(text, Loader=_EVENTS):
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
