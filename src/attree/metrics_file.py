"""The metrics of a finished run as a JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from attree.files import write_text


def write_metrics(path: Path, metrics: Mapping[str, float]) -> Path:
    """Write metrics by name. JSON knows no NaN and no infinity: what is undefined or infinite is `null`."""
    known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    return write_text(path, json.dumps(known, indent=2, allow_nan=False) + "\n")


def read_metrics(path: Path) -> dict[str, float]:
    """Read metrics that `write_metrics` wrote; `null` is NaN."""
    metrics = json.loads(path.read_text(encoding="utf-8"))
    return {name: math.nan if value is None else value for name, value in metrics.items()}
