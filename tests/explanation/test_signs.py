"""An edge that speaks against a prediction is listed, drawn and written by the size of its effect, with its sign."""

from __future__ import annotations

import math
import re
from base64 import b64decode

import numpy as np
import pyarrow as pa
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import rgb_to_hsv
from torch_geometric.nn import GAT

import attree
from attree.explain_run.rows import strongest_rows
from attree.explain_run.summary import top_edges_table
from attree.explanation import TargetExplanation
from attree.report.drawn_targets import strongest_first
from attree.report.page.content import page_content
from attree.report.style import AGAINST, FOR
from helpers.deleted_edges import deletion_effects, star


@pytest.fixture(scope="module")
def explanations() -> list[tuple[TargetExplanation, dict[tuple[int, int], float]]]:
    """Explanations of node 0 by several models, with the effects of deletion."""
    data, pairs = star(), []
    for seed in range(8):
        torch.manual_seed(seed)
        model = GAT(4, 8, 1, out_channels=3, add_self_loops=False).eval()
        pairs.append((attree.explain(model, data, 0), deletion_effects(model, data, 0)))
    return pairs


def is_against(effects: dict[tuple[int, int], float]) -> bool:
    return max(effects.values(), key=abs) < 0


def test_edges_are_listed_by_the_size_of_what_deletion_does(
    explanations: list[tuple[TargetExplanation, dict[tuple[int, int], float]]],
) -> None:
    assert {is_against(effects) for _, effects in explanations} == {True, False}
    for explanation, effects in explanations:
        strongest = max(effects, key=lambda ends: abs(effects[ends]))
        first = explanation.edges[0]
        assert (first.source, first.destination) == strongest
        assert math.copysign(1, first.effect) == math.copysign(1, effects[strongest])
        sizes = [abs(edge.score) for edge in explanation.edges]
        assert sizes == sorted(sizes, reverse=True)
        table = explanation.to_pandas()
        assert (table["effect"] < 0).sum() == sum(effect < -1e-9 for effect in effects.values())


def test_text_says_which_edges_speak_against_the_prediction(
    explanations: list[tuple[TargetExplanation, dict[tuple[int, int], float]]],
) -> None:
    for explanation, effects in explanations:
        source, destination = max(effects, key=lambda ends: abs(effects[ends]))
        row = str(explanation).splitlines()[2]
        assert row.startswith(f"{source} -> {destination} ")
        assert row.split()[-1 if row.endswith(("for", "against")) else -2] == (
            "against" if is_against(effects) else "for"
        )
        assert ("which speaks against it" in explanation.sentence) == is_against(effects)


def test_figures_and_notebooks_have_two_colours(
    explanations: list[tuple[TargetExplanation, dict[tuple[int, int], float]]],
) -> None:
    hue = {
        name: float(rgb_to_hsv([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])[0])
        for name, color in (("for", FOR), ("against", AGAINST))
    }
    for explanation, effects in explanations:
        axes, bar = explanation.plot().axes
        (shafts,) = [one for one in axes.collections if isinstance(one, LineCollection) and one.get_zorder() == 2]
        widest = int(np.argmax(shafts.get_linewidths()))
        drawn = float(rgb_to_hsv(np.asarray(shafts.get_colors())[widest, :3])[0])
        assert drawn == pytest.approx(hue["against" if is_against(effects) else "for"], abs=0.03)
        largest = max(map(abs, effects.values()))
        ticks = [float(text.get_text().replace("\N{MINUS SIGN}", "-")) for text in bar.get_xticklabels()]
        assert [ticks[0], ticks[-1]] == pytest.approx([-largest, largest], rel=5e-3)  # three digits
        first_row = re.findall(r"<tr>.*?</tr>", explanation._repr_html_(), re.DOTALL)[0]
        assert (AGAINST if is_against(effects) else FOR) in first_row


def test_scores_without_a_sign_have_a_scale_from_0() -> None:
    torch.manual_seed(0)
    figure = attree.explain(GAT(4, 8, 1, out_channels=3), star(), 0, "gatt").plot()
    assert float(figure.axes[1].get_xticklabels()[0].get_text()) == 0


def test_strongest_rows_of_a_dataset_have_the_largest_sizes() -> None:
    table = pa.table({"target": [0, 0, 0, 1, 1], "occlusion": [0.1, -0.5, math.nan, -0.2, 0.1]})
    assert strongest_rows(table, "occlusion", 1)["occlusion"].to_pylist() == [-0.5, -0.2]
    assert strongest_rows(table, "occlusion", 2)["occlusion"].to_pylist() == [0.1, -0.5, -0.2, 0.1]
    order = strongest_first(torch.tensor([0.1, -0.5, math.nan, 0.5, 0.0]), torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]))
    assert order.tolist() == [3, 1, 0, 4, 2]


def test_terminal_and_page_keep_the_strongest_edges_of_either_sign() -> None:
    data = star()
    for seed in range(8):
        torch.manual_seed(seed)
        model = GAT(4, 8, 1, out_channels=3, add_self_loops=False).eval()
        result = attree.evaluate(model, data, [0], ["occlusion"], "removal")
        effects = deletion_effects(model, data, 0)
        source, destination = max(effects, key=lambda ends: abs(effects[ends]))
        (table,) = top_edges_table(result, [0])
        assert next(iter(table.columns[0].cells)) == f"{source} -> {destination}"
        (target,) = page_content(result, max_edges=3)["targets"]
        decoded = np.frombuffer(b64decode(target["scores"]["occlusion"]["f4"]), dtype="<f4")
        expected = sorted(map(abs, effects.values()), reverse=True)[:3]
        assert sorted(np.abs(decoded), reverse=True) == pytest.approx(expected, rel=1e-4)
