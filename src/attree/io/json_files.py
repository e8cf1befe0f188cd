"""JSON files: the metrics of a run, and content without NaN and infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attree.errors import ArgumentError
from attree.io.files import write_text

INTERVALS, VERDICT = "intervals", "verdict"
"""Keys of a metrics file that are no metrics: the intervals, and the sentences of the verdict."""


def write_metrics(
    path: Path,
    metrics: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    verdict: Sequence[str] | None = None,
) -> Path:
    """Write metrics by name. NaN and infinity become `null`, because JSON has neither.

    Args:
        path: The file.
        metrics: Numbers by name.
        intervals: Low and high end of some metrics, written under the key `intervals`.
        verdict: Sentences on the metrics, written under the key `verdict`.
    """
    content: dict[str, Any] = {name: _finite(value) for name, value in metrics.items()}
    if intervals:
        content[INTERVALS] = {name: [_finite(end) for end in ends] for name, ends in intervals.items()}
    if verdict:
        content[VERDICT] = list(verdict)
    return write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_metrics(path: Path) -> dict[str, float]:
    """Read metrics that `write_metrics` wrote; `null` becomes NaN. Any other file raises an `ArgumentError`."""
    try:
        content = json.loads(path.read_bytes())
        return {name: _number(value) for name, value in content.items() if name not in (INTERVALS, VERDICT)}
    except (ValueError, TypeError, AttributeError) as error:
        raise _refusal(path, error) from error


def read_intervals(path: Path) -> dict[str, tuple[float, float]]:
    """Read the intervals that `write_metrics` wrote; empty if it wrote none."""
    try:
        content = json.loads(path.read_bytes())
        return {name: (_number(low), _number(high)) for name, (low, high) in content.get(INTERVALS, {}).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise _refusal(path, error) from error


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _refusal(path: Path, error: Exception) -> ArgumentError:
    return ArgumentError(f"Expected {path} to hold metrics as JSON, but it does not ({error}).")


def json_ready(content: Any) -> Any:
    """Replace NaN and infinity by None at any depth: JSON has neither.

    >>> json_ready({"values": [0.5, float("nan")]})
    {'values': [0.5, None]}
    """
    if isinstance(content, dict):
        return {name: json_ready(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [json_ready(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
