from __future__ import annotations

import pytest

from attree.errors import AttreeError
from attree.report.score_figures import MethodPoint, accuracy_runtime_figure


def test_every_method_is_a_labelled_point_at_its_time_and_accuracy() -> None:
    points = [MethodPoint("gatt", 0.01, 0.99), MethodPoint("saliency", 1.0, 0.8)]
    figure = accuracy_runtime_figure({"A": points, "B": points[:1]})
    left, right = figure.axes
    assert left.get_xscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GAtt", "Saliency"]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in left.lines if line.get_marker() != "None"]
    assert drawn == [(0.01, 0.99), (1.0, 0.8)]
    first, again = (next(line for line in axes.lines if line.get_marker() != "None") for axes in (left, right))
    assert first.get_color() == again.get_color()


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(AttreeError, match="panels"):
        accuracy_runtime_figure({})
