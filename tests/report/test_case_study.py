from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from attree.attention import Graph
from attree.errors import ArgumentError
from attree.evaluation import EvaluationConfig, Evaluator
from attree.models import GAT
from attree.report.case_study import case_study, draw_case_studies
from attree.report.graph_drawing import sketch
from attree.report.style import AGAINST, FOR
from attree.subject import Subject

PATH = Graph(torch.tensor([[0, 1, 3, 4], [1, 2, 2, 3]]), num_nodes=6)  # 0 -> 1 -> 2 <- 3 <- 4, and 5 alone


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_title()]


def lines(axes: Axes, zorder: int) -> LineCollection:
    """The halos (zorder 1) or the shafts (zorder 2) of a panel."""
    (found,) = [one for one in axes.collections if isinstance(one, LineCollection) and one.get_zorder() == zorder]
    return found


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def ramp(graph: Graph) -> Tensor:
    return torch.arange(1.0, graph.num_edges + 1)


def test_panels_show_the_induced_subgraph_in_one_layout() -> None:
    figure = case_study(PATH, 2, 1, {"gatt": ramp(PATH), "other": ramp(PATH).flip(0)})
    assert [axes.get_title() for axes in panels(figure)] == ["GAtt", "other"]
    for axes in panels(figure):
        assert sorted(texts(axes)) == ["1", "2", "3"]  # nodes within one hop
        assert len(lines(axes, 2).get_segments()) == 5  # 1 -> 2, 3 -> 2 and three self-loops
    positions = [[text.get_position() for text in axes.texts] for axes in panels(figure)]
    assert positions[0] == positions[1]
    assert "3 nodes, 5 edges" in figure.get_suptitle()


def test_targets_that_are_easy_to_read_are_drawn_first() -> None:
    # Node 0 has nothing around it, node 1 a thicket, node 2 three neighbours.
    sources = [*range(10, 80), 5, 6, 7]
    edge_index = torch.tensor([sources, [1] * 70 + [2] * 3])
    net = GAT(4, 2, num_layers=1)
    subject = Subject.of_data(net, Data(x=torch.randn(80, 4), edge_index=edge_index))
    evaluator = Evaluator(subject, [0, 1, 2], EvaluationConfig(["gatt"], ["removal"]))
    evaluator.evaluate()
    assert list(draw_case_studies(evaluator, 1)) == ["case_study_2"]
    assert list(draw_case_studies(evaluator, 1, torch.tensor([1]))) == ["case_study_1"]


def test_same_input_gives_the_same_picture() -> None:
    first, second = (case_study(PATH, 2, 2, {"gatt": ramp(PATH)}) for _ in range(2))
    for one, other in zip(lines(first.axes[0], 2).get_segments(), lines(second.axes[0], 2).get_segments(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_widest_line_is_the_highest_score_and_ends_at_its_destination() -> None:
    scores = torch.zeros(PATH.num_edges)
    scores[1] = 0.3  # 1 -> 2
    axes = panels(case_study(PATH, 2, 2, {"gatt": scores}))[0]
    shafts = lines(axes, 2)
    widest = shafts.get_segments()[int(np.argmax(shafts.get_linewidths()))]
    place = {text.get_text(): np.array(text.get_position()) for text in axes.texts}
    distance = {name: np.hypot(*(widest[-1] - at)) for name, at in place.items()}
    assert min(distance, key=lambda name: distance[name]) == "2"
    begin = {name: np.hypot(*(widest[0] - at)) for name, at in place.items()}
    assert min(begin, key=lambda name: begin[name]) == "1"


def test_truth_gets_a_halo_each_and_only_there() -> None:
    truth = torch.tensor([[0, 1, 2], [1, 2, 2]])
    axes = panels(case_study(PATH, 2, 2, {"gatt": ramp(PATH)}, truth))[0]
    assert len(lines(axes, 1).get_segments()) == 3
    without = panels(case_study(PATH, 2, 2, {"gatt": ramp(PATH)}))[0]
    assert len(lines(without, 1).get_segments()) == 0


def test_isolated_target_is_drawn_with_its_loop() -> None:
    axes = panels(case_study(PATH, 5, 2, {"gatt": ramp(PATH)}))[0]
    assert texts(axes) == ["5"]
    assert len(lines(axes, 2).get_segments()) == 1


@pytest.mark.parametrize("most", [1, 7, 40])
def test_hub_is_cut_to_connected_high_scores_and_says_so(most: int) -> None:
    star = torch.stack([torch.arange(1, 101), torch.zeros(100, dtype=torch.long)])
    tails = torch.stack([torch.arange(101, 201), torch.arange(1, 101)])
    graph = Graph(torch.cat([star, tails], dim=1), num_nodes=201)
    scores = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(0))
    figure = case_study(graph, 0, 2, {"gatt": scores}, max_edges=most)
    axes = panels(figure)[0]
    shown = len(lines(axes, 2).get_segments())
    assert 1 <= shown <= most
    assert shown >= most - 2  # a further edge may need up to two more on its way to the target
    assert f"{401 - shown:,} lower-scored edges not shown" in figure.get_suptitle()
    (discs,) = [one for one in axes.collections if isinstance(one, EllipseCollection)]
    assert len(discs.get_offsets()) <= shown + 1  # connected: a forest would need more nodes


def test_true_edges_of_a_hub_are_kept_whatever_they_score() -> None:
    star = torch.stack([torch.arange(1, 101), torch.zeros(100, dtype=torch.long)])
    graph = Graph(star, num_nodes=101)
    scores = torch.ones(graph.num_edges)
    scores[50] = 0.0
    figure = case_study(graph, 0, 1, {"gatt": scores}, truth=star[:, 50:51], max_edges=10)
    assert "51" in texts(panels(figure)[0])
    assert len(lines(panels(figure)[0], 1).get_segments()) == 1


def test_undefined_scores_are_counted_not_drawn_strong() -> None:
    scores = ramp(PATH)
    scores[1] = torch.nan
    figure = case_study(PATH, 2, 1, {"gatt": scores})
    assert any("1 undefined" in axes.get_xlabel() for axes in figure.axes)


def test_no_global_figure_is_left_behind() -> None:
    before = pyplot.get_fignums()
    case_study(PATH, 2, 1, {"gatt": ramp(PATH)})
    assert pyplot.get_fignums() == before


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="`target`"):
        case_study(PATH, 6, 1, {"gatt": ramp(PATH)})
    with pytest.raises(ArgumentError, match="scores"):
        case_study(PATH, 2, 1, {})
    with pytest.raises(ArgumentError, match=r"scores\['gatt'\]"):
        case_study(PATH, 2, 1, {"gatt": torch.ones(3)})


def test_nodes_of_a_sketch_do_not_overlap_and_fit() -> None:
    random = nx.gnp_random_graph(40, 0.12, seed=1, directed=True)
    largest = nx.convert_node_labels_to_integers(random.subgraph(max(nx.weakly_connected_components(random), key=len)))
    edges = np.array(largest.edges).T
    drawn = sketch(edges[0], edges[1], largest.number_of_nodes())
    offset = drawn.positions[:, None] - drawn.positions[None]
    distance = np.hypot(offset[..., 0], offset[..., 1]) + 10 * np.eye(len(drawn.positions))
    assert distance.min() > 2 * drawn.radius
    assert np.abs(drawn.positions).max() == pytest.approx(1.0)
    assert all(len(curve) >= 2 for curve in drawn.curves)


def test_parts_that_do_not_hang_together_are_drawn_side_by_side() -> None:
    """As where a large graph is cut to its highest-scored edges: no part may shrink to a point."""
    ring = np.arange(5)
    sources = np.concatenate([ring, ring + 5])
    destinations = np.concatenate([np.roll(ring, 1), np.roll(ring, 1) + 5])
    placed = sketch(sources, destinations, 10).positions
    within = min(np.ptp(placed[part], axis=0).max() for part in (slice(0, 5), slice(5, 10)))
    assert within > 0.25 * np.ptp(placed, axis=0).max()


def test_nodes_are_painted_by_their_scores() -> None:
    graph = Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
    scores = torch.tensor([0.0, 4.0, -2.0])
    figure = case_study(graph, None, 1, {"gatt": torch.ones(6)}, node_scores=scores)
    (discs,) = [found for found in figure.axes[0].collections if isinstance(found, EllipseCollection)]
    white, red, green = discs.get_facecolors()[:, :3]
    assert white.tolist() == [1, 1, 1]
    np.testing.assert_allclose(red, 0.35 + 0.65 * np.array(to_rgb(FOR)), atol=1 / 255)
    np.testing.assert_allclose(green, 0.675 + 0.325 * np.array(to_rgb(AGAINST)), atol=1 / 255)
    with pytest.raises(ArgumentError, match="node_scores"):
        case_study(graph, None, 1, {"gatt": torch.ones(6)}, node_scores=scores[:2])
