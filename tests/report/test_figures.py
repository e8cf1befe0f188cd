from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from attree.attention import Attention, Graph
from attree.attribution import ComputationTree
from attree.errors import ArgumentError
from attree.report.graph_drawing import computation_tree
from attree.report.pareto_figures import pareto_figure
from attree.report.score_figures import (
    MethodPoint,
    accuracy_runtime_figure,
    deletion_curve,
    dpc_scatter,
    score_histogram,
)
from attree.report.sweep_figures import heat_map_figure, sweep_figure


def test_each_histogram_sums_to_one_over_its_own_pairs() -> None:
    scores = torch.tensor([0.0, 0.0, 0.1, 0.9, 1.0, 0.5])
    changed = torch.tensor([False, False, False, True, True, False])
    figure = score_histogram({"gatt": scores, "random": scores.flip(0)}, changed)
    assert [axes.get_title() for axes in figure.axes] == ["GAtt, AUROC 1.000", "Random, AUROC 0.188"]
    for axes in figure.axes:
        drawn = [patch.get_data().values for patch in axes.patches if isinstance(patch, StepPatch)]
        assert [float(np.sum(values)) for values in drawn] == pytest.approx([1.0, 1.0])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["unchanged (4 pairs)", "changed (2 pairs)"]


@pytest.mark.parametrize("changed", [False, True])
def test_histogram_with_one_class_only(changed: bool) -> None:
    figure = score_histogram({"gatt": torch.zeros(5)}, torch.full((5,), changed))
    assert figure.axes[0].get_title() == "GAtt, AUROC undefined"
    figure.savefig(BytesIO())


def test_histogram_refuses_scores_of_other_pairs() -> None:
    with pytest.raises(ArgumentError, match=r"scores\['gatt'\]"):
        score_histogram({"gatt": torch.zeros(4)}, torch.zeros(5, dtype=torch.bool))


def sweep_table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "setting": [0.0, 0.0, 0.01, 0.01],
            "val/acc": [0.8, 0.9, 0.6, 0.6],
            "explain/gatt/weight/faithfulness": [0.5, 0.7, 0.4, np.nan],
        }
    )


def test_sweep_draws_the_mean_over_runs_at_equal_distances() -> None:
    metrics = ["val/acc", "explain/gatt/weight/faithfulness"]
    figure = sweep_figure({"weight_decay": sweep_table(), "dropout": sweep_table()}, metrics)
    accuracy, _, faithfulness, _ = figure.axes
    assert [axes.get_ylabel() for axes in (accuracy, faithfulness)] == ["accuracy", "faithfulness (mean), weight"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "weight decay", "dropout"]
    np.testing.assert_allclose(accuracy.lines[0].get_xydata(), [[0, 0.85], [1, 0.6]])
    np.testing.assert_allclose(faithfulness.lines[0].get_xydata(), [[0, 0.6], [1, 0.4]])
    assert [text.get_text() for text in faithfulness.get_xticklabels()] == ["0", "0.01"]
    dots = next(one for one in accuracy.collections if isinstance(one, PathCollection))
    np.testing.assert_allclose(dots.get_offsets(), [[0, 0.8], [0, 0.9], [1, 0.6], [1, 0.6]])


def test_sweep_over_names_keeps_their_order_and_joins_nothing() -> None:
    table = sweep_table().assign(setting=["wide", "wide", "narrow", "narrow"])
    axes = sweep_figure({"net": table}, ["val/acc"]).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["wide", "narrow"]
    assert axes.lines[0].get_linestyle() == "None"


def test_settings_of_several_keys_are_named_by_their_values_and_the_axis_by_the_keys() -> None:
    settings = [f"weight_decay={decay}, dropout={rate}" for decay in (0, 0.01) for rate in (0, 0.5)]
    table = sweep_table().assign(setting=settings)
    axes = sweep_figure({"both_at_once": table}, ["val/acc"]).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0\n0", "0\n0.5", "0.01\n0", "0.01\n0.5"]
    assert axes.get_xlabel() == "both at once: weight decay, dropout"


def every_figure() -> dict[str, Figure]:
    """Figures of a 2-D grid with long names, all methods, and headings that are too long for one line."""
    methods = ["gatt", "avgatt", "uniform", "random", "occlusion", "integrated_gradients"]
    settings = [f"weight_decay={decay}, dropout={rate}" for decay in (0, 0.01) for rate in (0, 0.5)]
    qualities = [f"explain/{method}/weight/faithfulness" for method in methods]
    table = sweep_table().assign(setting=settings, **dict.fromkeys(qualities, 0.5))
    pairs = {"weight_decay": [0, 0, 0.01, 0.01], "dropout": [0, 0.5, 0, 0.5]}
    scores = {method: torch.rand(20, generator=torch.Generator().manual_seed(0)) for method in methods}
    title = (
        "a study of weight decay and dropout together, with a heading that no narrow figure has room for in one line"
    )
    points = [MethodPoint(method, 1.0, 0.5) for method in methods]
    return {
        "sweep": sweep_figure({"both": table}, ["val/acc", *qualities], title),
        "pareto": pareto_figure({"both": table}, "val/acc", qualities, title),
        "heat": heat_map_figure(table.assign(**pairs), ("weight_decay", "dropout"), ["val/acc"], title),
        "histogram": score_histogram(scores, torch.arange(20) > 10),
        "scatter": dpc_scatter(scores, torch.rand(20), "removal"),
        "runtime": accuracy_runtime_figure({"Infection": points}),
        "deletion": deletion_curve([0, 1, 5], {method: torch.rand(4, 3) for method in methods}, title),
    }


@pytest.mark.long
def test_nothing_that_a_figure_writes_is_cut_off() -> None:
    for name, figure in every_figure().items():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        whole = figure.bbox
        texts = [*figure.texts, *(text for axes in figure.axes for text in (axes.title, axes.xaxis.label))]
        for axes in figure.axes:  # ticks beyond an axis exist, but are not drawn
            low, high = axes.get_xlim()
            texts += [text for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high]
        parts: list[Any] = [text for text in texts if text.get_text() and text.get_visible()]
        parts += [one for one in (*figure.legends, *(axes.get_legend() for axes in figure.axes)) if one is not None]
        for part in parts:
            box = part.get_window_extent()
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1
            assert inside, (name, part, box.bounds, whole.bounds)


def test_gatt_is_seen_where_uniform_attention_gives_the_same() -> None:
    table = sweep_table().assign(**{"explain/uniform/weight/faithfulness": [0.5, 0.7, 0.4, np.nan]})
    metrics = ["explain/gatt/weight/faithfulness", "explain/uniform/weight/faithfulness"]
    above, below = sweep_figure({"weight_decay": table}, metrics).axes[0].lines
    assert above.get_zorder() > below.get_zorder()
    assert below.get_linewidth() > 2 * above.get_linewidth()
    assert below.get_markersize() > above.get_markersize()
    assert below.get_markerfacecolor() == "none"


def test_sweep_says_what_is_undefined() -> None:
    metrics = ["val/acc", "explain/gatt/weight/faithfulness"]
    some, diverged = sweep_table(), sweep_table().assign(**{metrics[1]: np.nan})
    figure = sweep_figure({"weight_decay": some, "dropout": diverged}, metrics)
    notes = [(axes.get_title(loc="right"), [text.get_text() for text in axes.texts]) for axes in figure.axes]
    assert notes == [("", []), ("", []), ("1 undefined", []), ("", ["all undefined"])]
    infinite = sweep_figure({"lr": some.assign(**{"val/acc": [np.inf, 0.9, 0.6, 0.6]})}, ["val/acc"])
    assert infinite.axes[0].get_title(loc="right") == "1 undefined"


def small_tree() -> ComputationTree:
    graph = Graph(torch.tensor([[1, 2], [0, 1]]), num_nodes=3)  # 2 -> 1 -> 0
    weights = [torch.tensor([0.9, 0.2, 0.1, 0.8, 1.0]), torch.tensor([0.25, 0.5, 0.75, 0.5, 1.0])]
    return ComputationTree(Attention.from_weights(graph, weights), target=0)


def test_tree_has_every_occurrence_once_and_marks_the_edge() -> None:
    tree = small_tree()
    figure = computation_tree(tree, edge=0)
    axes = figure.axes[0]
    nodes = [text for text in axes.texts if not text.get_text().startswith(".")]
    assert sorted(text.get_text() for text in nodes) == sorted(str(node.node) for node in tree.nodes)
    halos, steps = (one for one in axes.collections if isinstance(one, LineCollection))
    assert len(halos.get_segments()) == 2  # 1 -> 0 in layer 2, and in layer 1 under the root's self-loop
    assert len(steps.get_segments()) == len(tree) - 1
    for begin, end in steps.get_segments():
        assert end[1] == begin[1] + 1  # every step leads one level up
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 2", "layer 1"]
    places = [text.get_position() for text in nodes]
    assert len(set(places)) == len(places)


def test_tree_marks_the_edges_that_occur_several_times() -> None:
    figure = computation_tree(small_tree())
    halos = next(one for one in figure.axes[0].collections if isinstance(one, LineCollection))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    # Both in layer 2, and in layer 1 under the root's self-loop; the others occur once.
    tree = small_tree()
    carried = {"1 → 0": 0.25 + 0.75 * 0.9, "0 → 0": 0.75 + 0.75 * 0.1}
    assert labels == [f"{edge}, 2 times" for edge in sorted(carried, key=lambda edge: -carried[edge])]
    assert len(halos.get_segments()) == 4
    assert len({tuple(color) for color in halos.get_colors()}) == 2
    numbers = [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith(".")]
    assert sorted(numbers) == sorted(f"{node.attention:.2f}"[1:] for node in tree.nodes[1:])


def test_tree_too_large_to_draw_is_pruned_with_a_note() -> None:
    graph = Graph(torch.tensor([[1, 2], [0, 1]]), num_nodes=3)
    weights = [torch.tensor([0.9, 0.2, 0.1, 0.8, 1.0]), torch.tensor([0.25, 0.5, 0.75, 0.5, 1.0])]
    tree = ComputationTree(Attention.from_weights(graph, weights), target=0, max_nodes=4, prune=True)
    # The strongest: the root, its loop (.75), 1 -> 0 under that (.75 * .9), and 1 -> 0 (.25).
    assert [(node.depth, node.node) for node in tree.nodes] == [(0, 0), (1, 1), (1, 0), (2, 1)]
    figure = computation_tree(tree)
    assert "7 nodes in 2 layers\n(3 nodes with less attention not shown)" in figure.get_suptitle()
    assert len(next(c for c in figure.axes[0].collections if c.get_zorder() == 2).get_segments()) == 3


def test_tree_too_large_to_draw_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`max_nodes` = 3"):
        computation_tree(small_tree(), max_nodes=3)
