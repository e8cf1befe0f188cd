"""Guess what a misspelt name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question to put behind a sentence that refuses `name`; empty if nothing known is like it.

    >>> did_you_mean("valdate", ["fit", "validate"])
    ' Did you mean `validate`?'
    >>> did_you_mean("xyz", ["fit", "validate"])
    ''
    """
    by_spelling = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_spelling, n=1)
    return f" Did you mean `{by_spelling[found[0]]}`?" if found else ""
