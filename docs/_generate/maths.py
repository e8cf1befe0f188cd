r"""Formulas of docstrings as MathML, which browsers draw by themselves: no script, nothing fetched."""

from __future__ import annotations

import re
from typing import Any

import griffe
from latex2mathml.converter import convert


class Formulas(griffe.Extension):
    r"""Rewrites :math:`x` and `.. math:: x`, as docstrings have them, before they become pages."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Griffe calls this for each thing that may have a docstring."""
        if obj.docstring is not None and "math:" in obj.docstring.value:
            obj.docstring.value = with_mathml(obj.docstring.value)


def with_mathml(text: str) -> str:
    """Replace formulas by MathML."""
    text = re.sub(r"^( *)\.\. math:: (.*(?:\n\1 +\S.*)*)$", _block, text, flags=re.MULTILINE)
    return re.sub(r":math:`([^`]*)`", lambda match: convert(" ".join(match[1].split())), text)


def _block(match: re.Match[str]) -> str:
    # A blank line inside would end the HTML block.
    formula = "".join(convert(" ".join(match[2].split()), display="block").splitlines())
    return f'{match[1]}<div class="formula">{formula}</div>'
