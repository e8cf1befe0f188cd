"""The terminal: text is printed as it is, whatever paths and names people have."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A rich console that prints text as it is; what is to be bold or red is a `rich.text.Text`, or has a `style`.

    By default rich reads `[a]` as a style and `:b:` as an emoji: a path that has them is printed as another one, or
    ends the command with an error after all work is done.

    Args:
        **options: Arguments of `rich.console.Console`.
    """
    return Console(**{"markup": False, "emoji": False, "highlight": False, **options})
