from __future__ import annotations

from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from attree.errors import ArgumentError
from attree.report.pareto_figures import pareto_figure, pareto_front
from attree.report.style import LOOKS

GATT, RANDOM = "explain/gatt/weight/faithfulness", "explain/random/weight/faithfulness"


def table(settings: list[object], accuracy: list[float], quality: list[float]) -> pd.DataFrame:
    columns = {"setting": settings, "val/acc": accuracy, GATT: quality, RANDOM: [0.0] * len(settings)}
    return pd.DataFrame(columns)


def points(figure: Figure, panel: int = 0) -> list[list[list[float]]]:
    """Where each method's points are, by method."""
    found = [one for one in figure.axes[panel].collections if isinstance(one, PathCollection)]
    return [np.asarray(one.get_offsets()).tolist() for one in found]


@pytest.mark.parametrize("seed", range(5))
def test_front_is_what_no_point_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 6, (30, 2)).astype(float)
    values[rng.integers(0, 30, 4), rng.integers(0, 2, 4)] = np.nan
    expected = [
        place
        for place, one in enumerate(values)
        if not np.isnan(one).any()
        and not any(
            other[0] >= one[0] and other[1] >= one[1] and (other[0] > one[0] or other[1] > one[1]) for other in values
        )
    ]
    front = pareto_front(values).tolist()
    assert sorted(front) == expected
    assert values[front, 0].tolist() == sorted(values[front, 0])


def test_points_are_means_of_settings_and_the_line_is_the_front() -> None:
    runs = table([0.1, 0.1, 0.0, 0.0, 0.5], [0.8, 0.6, 0.9, 0.9, 0.5], [0.6, 0.4, 0.2, 0.2, 0.1])
    figure = pareto_figure({"dropout": runs}, "val/acc", [GATT, RANDOM], "A title")
    gatt, random = points(figure)
    np.testing.assert_allclose(gatt, [[0.9, 0.2], [0.7, 0.5], [0.5, 0.1]])  # by ascending dropout
    np.testing.assert_allclose(random, [[0.9, 0], [0.7, 0], [0.5, 0]])
    fronts = [line for line in figure.axes[0].lines if line.get_linestyle() == "-" and len(line.get_xydata()) > 1]
    assert [line.get_color() for line in fronts] == [LOOKS["gatt"].color]  # none of a random method
    np.testing.assert_allclose(fronts[0].get_xydata(), [[0.7, 0.5], [0.9, 0.2]])
    drawn = next(one for one in figure.axes[0].collections if isinstance(one, PathCollection))
    assert np.all(np.diff(drawn.get_sizes()) > 0)
    assert np.all(np.diff(drawn.get_facecolors()[:, :3].sum(axis=1)) < 0)  # darker and darker
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["0", "0.1", "0.5"]
    figure.savefig(BytesIO())


def test_one_run_and_undefined_runs() -> None:
    one = pareto_figure({"lr": table([0.1], [0.9], [0.5])}, "val/acc", [GATT])
    assert [line.get_markerfacecolor() for line in one.axes[0].lines if line.get_marker() == "o"] == ["none"]  # a ring
    np.testing.assert_allclose(points(one)[0], [[0.9, 0.5]])
    one.savefig(BytesIO())
    diverged = table([0.1, 1e30], [0.9, 0.1], [0.5, np.nan])
    figure = pareto_figure({"lr": diverged, "odd $names_": diverged.assign(setting=["$x", "$"])}, "val/acc", [GATT])
    np.testing.assert_allclose(points(figure)[0], [[0.9, 0.5]])
    assert figure.axes[0].get_title(loc="right") == "1 undefined"
    figure.savefig(BytesIO())


def test_each_statistic_and_protocol_has_its_row() -> None:
    runs = table([0, 1], [0.9, 0.8], [0.5, 0.6])
    runs["explain/gatt/truth_auroc"] = [0.7, 0.8]
    figure = pareto_figure({"a": runs, "b": runs}, "val/acc", [GATT, RANDOM, "explain/gatt/truth_auroc"])
    labels = [axes.get_ylabel() for axes in figure.axes[:4]]
    assert labels == ["faithfulness (mean), weight", "", "ground truth, AUROC", ""]
    with pytest.raises(ArgumentError, match="qualities"):
        pareto_figure({"a": runs}, "val/acc", [])
