"""Values on their way into JSON: null for numbers that it does not know."""

from __future__ import annotations

import math
from typing import Any


def plain(content: Any) -> Any:
    """The same with null for numbers that JSON does not know, as deep as it goes.

    >>> plain({"values": [0.5, float("nan")]})
    {'values': [0.5, None]}
    """
    if isinstance(content, dict):
        return {name: plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
