"""Training curves as a run's loggers left them in its folder: TensorBoard's event files, or a CSV table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from attree.evaluation.names import MetricName

Points = list[tuple[int, float]]

MOST_POINTS = 400
"""Points of a curve; of more, some at equal distances and the last are kept."""


def read_curves(folder: Path, most_points: int = MOST_POINTS) -> dict[str, Points]:
    """The curves of a run, by name: losses, accuracies and how well each method explains.

    Args:
        folder: The run's folder.
        most_points: Most points of a curve.

    Returns:
        (step, value) of each scalar; nothing if the run has left no curves.
    """
    events = sorted(folder.glob("events.out.tfevents.*"))
    table = folder / "metrics.csv"
    curves = _from_events(folder) if events else _from_table(table) if table.is_file() else {}
    return {name: _thinned(points, most_points) for name, points in curves.items() if _is_shown(name) and points}


def _is_shown(name: str) -> bool:
    return name.startswith(("train/", "val/")) or MetricName.parse(name) is not None


def _from_events(folder: Path) -> dict[str, Points]:
    # Imported here: it takes a moment, and only runs that are looked at need it.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    # A resumed run writes some steps twice: the later counts.
    return {
        name: sorted({event.step: event.value for event in events.Scalars(name)}.items())
        for name in events.Tags()["scalars"]
    }


def _from_table(path: Path) -> dict[str, Points]:
    table = pd.read_csv(path)
    if "step" not in table:
        return {}
    curves = {}
    for name in table.columns.drop("step"):
        if pd.api.types.is_numeric_dtype(table[name]):
            known = table[["step", name]].dropna().drop_duplicates("step", keep="last").sort_values("step")
            curves[str(name)] = [(int(step), float(value)) for step, value in known.to_numpy()]
    return curves


def _thinned(points: Points, most: int) -> Points:
    if len(points) <= most:
        return points
    return [points[place] for place in np.linspace(0, len(points) - 1, most).round().astype(int).tolist()]
