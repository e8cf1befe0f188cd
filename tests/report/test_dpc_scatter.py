"""The scatter of scores against what reducing edges does."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from attree.errors import ArgumentError
from attree.report.score_figures import dpc_scatter


def test_every_pair_is_a_point_with_one_colour_a_method() -> None:
    scores = {"gatt": torch.tensor([0.0, 0.5, 1.0]), "random": torch.tensor([0.3, 0.1, 0.2])}
    effect = torch.tensor([0.0, 0.1, 0.2])
    figure = dpc_scatter(scores, effect, "removal")
    assert [axes.get_title() for axes in figure.axes] == ["GAtt, Pearson 1.000", "Random, Pearson -0.500"]
    assert figure.get_suptitle().endswith("(removal)\n3 pairs")
    for axes, values in zip(figure.axes, scores.values(), strict=True):
        np.testing.assert_allclose(axes.collections[0].get_offsets(), np.column_stack([values, effect]), rtol=1e-6)
    colors = {to_hex(axes.collections[0].get_facecolor()[0]) for axes in figure.axes}
    assert len(colors) == 2
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_of_many_pairs_some_are_drawn_and_it_says_so() -> None:
    values = torch.arange(500.0)
    figure = dpc_scatter({"gatt": values}, values, most_points=100)
    points = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert len(points) == len(np.unique(points[:, 0])) == 100
    assert "100 of 500 pairs, drawn at random" in figure.get_suptitle()
    assert figure.axes[0].get_title() == "GAtt, Pearson 1.000"


def test_what_is_undefined_is_said_and_drawn() -> None:
    figure = dpc_scatter({"gatt": torch.zeros(4)}, torch.zeros(4))
    assert figure.axes[0].get_title() == "GAtt, Pearson undefined"
    figure.savefig(BytesIO())
    with pytest.raises(ArgumentError, match=r"scores\['gatt'\]"):
        dpc_scatter({"gatt": torch.zeros(3)}, torch.zeros(4))
