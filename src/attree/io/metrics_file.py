"""The metrics of a finished run as a JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from attree.errors import ArgumentError
from attree.io.files import write_text


def write_metrics(path: Path, metrics: Mapping[str, float]) -> Path:
    """Write metrics by name. JSON knows no NaN and no infinity: what is undefined or infinite is `null`."""
    known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    return write_text(path, json.dumps(known, indent=2, allow_nan=False) + "\n")


def read_metrics(path: Path) -> dict[str, float]:
    """Read metrics that `write_metrics` wrote; `null` is NaN. A file of anything else is refused in a sentence."""
    try:
        content = json.loads(path.read_bytes())
        return {name: math.nan if value is None else float(value) for name, value in content.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ArgumentError(f"Expected {path} to hold metrics as JSON, but it does not ({error}).") from error
