"""Encodes numbers and text for a page: arrays as base64, text so that it is never read as HTML."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attree.io.files import json_ready

TYPES = {"f4": "<f4", "u1": "<u1", "u2": "<u2", "i4": "<i4"}
"""Kinds of numbers that the page reads, little-endian as browsers have them."""


def packed(values: ArrayLike, kind: str) -> dict[str, str]:
    """An array as base64 text under the name of its kind.

    >>> packed([1, 2, 258], "u2")
    {'u2': 'AQACAAIB'}
    """
    array = np.ascontiguousarray(values, dtype=TYPES[kind])
    return {kind: base64.b64encode(array.tobytes()).decode("ascii")}


def safe_json(content: Any) -> str:
    """JSON that is safe inside a script element: what could end it or begin a comment is written as an escape.

    >>> print(safe_json({"name": "</script>", "undefined": float("nan")}))
    {"name":"\\u003c/script\\u003e","undefined":null}
    """
    text = json.dumps(json_ready(content), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
