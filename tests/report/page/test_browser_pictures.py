"""The page's pictures in a browser: computation trees, compared methods, edges that are taken out, hubs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from attree.attribution import ComputationTree
from attree.evaluation import evaluate
from attree.faithfulness import PROTOCOLS, WholeReducer
from attree.models import GAT
from attree.report.page import write_page
from attree.tensors.arrays import Rows
from browser import missing, set_screen
from helpers.explained import ExplainedModel, explained_model
from helpers.graphs import randomize
from helpers.page_in_browser import drawn, field, keys, one, pair, place_of, press, read, texts

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_the_tree_adds_up_to_gatt(page: Chrome, model: ExplainedModel) -> None:
    press(page, "Computation tree")
    tree = ComputationTree(model.attention, target=7)
    steps = page.find_elements(By.CSS_SELECTOR, ".picture svg g > g:nth-child(2) > path")
    assert len(steps) == len(tree) - 1
    times = [sum(node.edge == own.edge for node in tree.nodes) for own in tree.nodes[1:]]
    marks = [int(text.removeprefix("×")) for text in texts(page, ".picture svg text.times")]
    assert set(marks) <= {count for count in times if count > 1}  # those that have room
    assert len(marks) > 0
    one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    for _ in range(5):
        card = one(page, ".docked")
        source, destination = card.find_element(By.TAG_NAME, "h3").text.split(" → ")
        place = pair(model, 7, source, destination)
        total = read(card.find_element(By.CLASS_NAME, "sum").text.rpartition("= ")[2])
        assert total == pytest.approx(tree.gatt()[int(model.evaluation.pairs.edges[place])], rel=6e-4)
        keys(page, Keys.ARROW_DOWN)


def test_a_large_tree_is_cut_with_a_note(driver: Chrome, folder: Path) -> None:
    deep = explained_model(num_layers=5)
    path = write_page(folder / "deep.html", deep.evaluation, attention=deep.attention)
    driver.get(f"{path.as_uri()}#target=7")
    press(driver, "Computation tree")
    size = len(ComputationTree(deep.attention, target=7))
    assert size > 400
    steps = ".picture svg g > g:nth-child(2) > path"
    assert len(driver.find_elements(By.CSS_SELECTOR, steps)) == 119
    assert f"of {size:,}" in one(driver, ".left-out").text
    press(driver, "Show all")
    assert len(driver.find_elements(By.CSS_SELECTOR, steps)) == 399
    assert not one(driver, ".all").is_displayed()


def test_two_methods_stand_side_by_side_in_one_layout(page: Chrome) -> None:
    field(page, "Compare with").select_by_visible_text("AvgAtt")
    places = [
        [(c.get_attribute("cx"), c.get_attribute("cy")) for c in picture.find_elements(By.CSS_SELECTOR, "g circle")]
        for picture in page.find_elements(By.CLASS_NAME, "picture")
    ]
    assert len(places[0]) > 3
    assert places[0] == places[1]
    field(page, "Compare with").select_by_visible_text("drop of confidence")
    assert "drop of confidence (weight)" in page.find_elements(By.CSS_SELECTOR, ".picture svg")[1].get_attribute(
        "aria-label"
    )


def test_self_loops_and_unconnected_nodes_can_be_hidden(page: Chrome, model: ExplainedModel) -> None:
    own, pairs = place_of(model, 7), model.evaluation.pairs
    source, destination = pairs.graph.edge_index[:, pairs.edges[own]]
    page.find_element(By.XPATH, "//label[text()='self-loops']/input").click()
    assert drawn(page) == int((source != destination).sum())
    slider = one(page, "input[type=range]")
    slider.send_keys(Keys.HOME)
    nodes = "return document.querySelectorAll('.picture:first-child svg > g > g:nth-child(4) > circle').length"
    few = page.execute_script(nodes)
    page.find_element(By.XPATH, "//label[text()='unconnected nodes']/input").click()
    everyone = len(set(source.tolist()) | set(destination.tolist()))
    assert few <= 4 < everyone  # the ends of one edge, and the target with its ring
    assert page.execute_script(nodes) == everyone + 1


def test_nodes_have_the_colour_of_their_class_and_say_what_they_are(page: Chrome, model: ExplainedModel) -> None:
    legend = texts(page, ".legend.groups li")
    assert legend[0] == "predicted class:"
    own, pairs = place_of(model, 7), model.evaluation.pairs
    nodes = pairs.graph.edge_index[:, pairs.edges[own]].unique()
    predicted = model.attention.output.argmax(-1)
    names = model.options["class_names"]
    assert legend[1:] == [names[group] for group in predicted[nodes].unique().tolist()]
    script = """
        const disc = document.querySelectorAll(".picture svg > g > g:nth-child(4) > circle")[arguments[0]];
        const box = disc.getBoundingClientRect();
        return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
    """
    page.execute_script("arguments[0].scrollIntoView()", one(page, ".stage"))
    x, y = page.execute_script(script, 0)
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(x, y)
    actions.perform()
    card = one(page, ".floating")
    assert card.is_displayed()
    node = int(nodes[0])
    assert card.find_element(By.TAG_NAME, "h3").text == model.options["node_names"][node]
    assert f"predicted class: {names[int(predicted[node])]}" in card.text


def test_a_path_of_the_tree_shows_its_product(page: Chrome, model: ExplainedModel) -> None:
    press(page, "Computation tree")
    page.execute_script("arguments[0].scrollIntoView()", one(page, ".stage"))
    script = """
        const discs = document.querySelectorAll(".picture svg > g > g:nth-child(4) > circle");
        const box = discs[discs.length - 1].getBoundingClientRect();
        return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
    """
    x, y = page.execute_script(script)
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(x, y)
    actions.perform()
    factors = [read(text) for text in texts(page, ".picture svg text.factor")]
    assert len(factors) == 2
    product = one(page, ".picture svg text.product").text
    assert read(product.rpartition("= ")[2]) == pytest.approx(factors[0] * factors[1], rel=0.02)


def pictures(page: Chrome) -> list[WebElement]:
    return page.find_elements(By.CSS_SELECTOR, ".picture")


def test_compared_pictures_share_a_scale_or_say_that_they_do_not(page: Chrome, model: ExplainedModel) -> None:
    own = place_of(model, 7)
    field(page, "Compare with").select_by_visible_text("AvgAtt")
    assert "its own scale" in one(page, ".left-out").text
    highest = [float(model.evaluation.pair_scores[name][own].max()) for name in ("gatt", "avgatt")]

    def ends() -> list[float]:
        pictures = page.find_elements(By.CSS_SELECTOR, ".picture")
        return [
            read(picture.find_elements(By.CSS_SELECTOR, "svg > g:last-child > text")[1].text) for picture in pictures
        ]

    assert ends() == pytest.approx(highest, rel=6e-4)
    page.find_element(By.XPATH, "//label[text()='one scale for both']/input").click()
    assert ends() == pytest.approx([max(highest)] * 2, rel=6e-4)
    assert "its own scale" not in one(page, ".left-out").text


def test_what_if_of_one_edge_is_the_exact_effect(page: Chrome, model: ExplainedModel) -> None:
    field(page, "Reduce an edge by").select_by_visible_text("removal")
    reduction, names = model.evaluation.reductions["removal"], model.options["class_names"]
    assert reduction.probability is not None
    one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    for _ in range(3):
        source, destination = one(page, ".docked h3").text.split(" → ")
        press(page, "Take this edge out")
        after = reduction.probability[pair(model, 7, source, destination)]
        told = one(page, ".what-if .sentence").text
        assert f"Without {source} → {destination} it would" in told
        share = float(told.rpartition("(")[2].rstrip(" %).").lstrip("<>")) / 100
        assert share == pytest.approx(float(after.max()), abs=0.006)
        changed = bool(reduction.changed[pair(model, 7, source, destination)])
        assert (f"it would predict {names[int(after.argmax())]}" in told) == changed
        assert len(page.find_elements(By.CSS_SELECTOR, ".picture path.cut")) == 1
        one(page, ".chip").click()
        one(page, ".stage").send_keys(Keys.ARROW_DOWN)


def test_several_edges_are_taken_out_of_a_saved_page(page: Chrome, model: ExplainedModel) -> None:
    field(page, "Reduce an edge by").select_by_visible_text("removal")
    subject = model.evaluation.subject
    assert subject is not None
    edges: list[int] = []
    for count in (1, 2, 3):
        one(page, ".stage").send_keys(Keys.ARROW_DOWN)
        source, destination = one(page, ".docked h3").text.split(" → ")
        edges.append(int(model.evaluation.pairs.edges[pair(model, 7, source, destination)]))
        press(page, "Take this edge out")
        assert len(texts(page, ".chip")) == count
        rows = Rows(torch.tensor([0, count]), torch.tensor(edges))
        output = (
            WholeReducer(subject)
            .record()
            .reduce_sets(torch.tensor([7]), torch.zeros(1, dtype=torch.int64), rows, PROTOCOLS["removal"])
        )
        expected = output.softmax(-1)[0]
        for row in page.find_elements(By.CSS_SELECTOR, ".what-if .classes tbody tr"):
            share = float(row.find_element(By.CSS_SELECTOR, ".then").text.rstrip(" %").lstrip("<>")) / 100
            assert share == pytest.approx(float(expected[int(row.get_attribute("data-class") or -1)]), abs=0.006)
    press(page, "Put all back")
    assert texts(page, ".chip") == []


def test_of_a_hub_the_strongest_edges_are_drawn_until_all_are_asked_for(driver: Chrome, folder: Path) -> None:
    spokes = 300
    edge_index = torch.stack([torch.arange(1, spokes + 1), torch.zeros(spokes, dtype=torch.int64)])
    graph = Data(x=torch.randn(spokes + 1, 4, generator=torch.Generator().manual_seed(0)), edge_index=edge_index)
    evaluation = evaluate(randomize(GAT(4, 3, num_layers=1), seed=0).eval(), graph, [0], ["gatt"], ["removal"])
    set_screen(driver, 1400, 1000)
    driver.get(write_page(folder / "hub.html", evaluation).as_uri())
    assert drawn(driver) == 60
    assert "60 of 601 edges are drawn, the strongest" in one(driver, ".left-out").text
    press(driver, "Show all")
    assert drawn(driver) == 601
    assert driver.get_log("browser") == []
