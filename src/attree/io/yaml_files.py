"""Read YAML files. Invalid files, and files that would keep a parser busy for too long, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from attree.errors import ArgumentError

MAX_DEPTH = 50
"""Most levels of nested lists and mappings; libyaml's recursion has no limit."""

MAX_VALUES = 100_000
"""Most values with all aliases expanded: a few lines of aliases to aliases can expand to billions."""

_EVENTS: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Read a YAML file with one document. An `ArgumentError` names the file and what is wrong with it."""
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
    """Raise a `yaml.YAMLError` if the text is not YAML, has duplicate keys, is nested too deep, or has too many values.

    Values are counted with all aliases expanded. The text is read as a stream of events, so that the check takes time
    linear in its length.
    """
    sizes: dict[str, int] = {}
    open_anchors: list[str | None] = []
    open_sizes = [0]
    keys = _Keys()
    for event in yaml.parse(text, Loader=_EVENTS):
        keys.see(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise yaml.YAMLError(f"the alias *{event.anchor} refers to a value that contains it")
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
            raise yaml.YAMLError(f"more than {MAX_VALUES} values, with aliases expanded")


class _Keys:
    """Finds duplicate keys of a mapping: YAML forbids them, but its parsers silently take the last value."""

    def __init__(self) -> None:
        self._open: list[dict[str, int] | None] = []  # lines of the keys of each open collection; None for a list
        self._key_is_next: list[bool] = []

    def see(self, event: yaml.Event) -> None:
        """Process the next event."""
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
