"""The page in a browser: what a reader does, what the reader is told, and that nothing goes wrong on the way."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install 'attree[dev]'")

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from attree.attribution import ComputationTree
from attree.evaluation import evaluate
from attree.io.json_files import json_ready
from attree.models import GAT
from attree.report.looks import LOOKS
from attree.report.page import write_page
from attree.report.page.content import page_content
from attree.report.page.write import asset
from browser import chromium, missing, set_screen
from helpers.explained import IMAGE, SCRIPT, TARGETS, ExplainedModel, explained_model
from helpers.graphs import randomize

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def model() -> ExplainedModel:
    return explained_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[Chrome]:
    with chromium(downloads=folder) as driver:
        yield driver


@pytest.fixture
def page(driver: Chrome, model: ExplainedModel, folder: Path) -> Iterator[Chrome]:
    """The page, freshly opened from disk on node n7; afterwards nothing may have complained."""
    path = folder / "page.html"
    if not path.exists():
        write_page(path, model.evaluation, **model.options)
    set_screen(driver, 1400, 1000)
    driver.get("about:blank")
    driver.get(f"{path.as_uri()}#target=7")
    yield driver
    assert driver.get_log("browser") == []


def one(page: Chrome, selector: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, selector)


def texts(page: Chrome, selector: str) -> list[str]:
    return [element.text for element in page.find_elements(By.CSS_SELECTOR, selector)]


def field(page: Chrome, label: str) -> Select:
    return Select(page.find_element(By.XPATH, f"//label[span[text()='{label}']]/select"))


def press(page: Chrome, text: str) -> None:
    page.find_element(By.XPATH, f"//button[text()='{text}']").click()


def keys(page: Chrome, *pressed: str) -> None:
    ActionChains(page).send_keys(*pressed).perform()


def read(text: str) -> float:
    """A number as the page writes it; changes below a ten-millionth are written as none."""
    return 0.0 if text == "≈ 0" else float(text.replace("−", "-").replace("+", "").replace(",", ""))


def drawn(page: Chrome) -> int:
    """Arrows of the first picture: filled paths."""
    return len(page.find_elements(By.CSS_SELECTOR, ".picture:first-child svg g > g:nth-child(2) > path"))


def place_of(model: ExplainedModel, target: int) -> slice:
    """The pairs of a target."""
    position = TARGETS.index(target)
    return slice(int(model.evaluation.pairs.ptr[position]), int(model.evaluation.pairs.ptr[position + 1]))


def pair(model: ExplainedModel, target: int, source: str, destination: str) -> int:
    """The position among all pairs of a target's edge, given by the names of its ends."""
    pairs, names = model.evaluation.pairs, model.options["node_names"]
    position = TARGETS.index(target)
    found = [
        place
        for place in range(int(pairs.ptr[position]), int(pairs.ptr[position + 1]))
        if [names[node] for node in pairs.graph.edge_index[:, pairs.edges[place]].tolist()] == [source, destination]
    ]
    assert len(found) >= 1
    return found[0]


def assert_card_is_right(card: WebElement, model: ExplainedModel, target: int) -> None:
    """Every number on an edge's card is the saved one."""
    source, destination = card.find_element(By.TAG_NAME, "h3").text.split(" → ")
    place = pair(model, target, source, destination)
    evaluation, class_names = model.evaluation, model.options["class_names"]
    for method, scores in evaluation.pair_scores.items():
        shown = card.find_element(By.CSS_SELECTOR, f'[data-method="{method}"] .value').text
        assert read(shown) == pytest.approx(float(scores[place]), rel=6e-4, abs=1e-12)
    for protocol, reduction in evaluation.reductions.items():
        row = card.find_element(By.CSS_SELECTOR, f'[data-protocol="{protocol}"]')
        pc, ne, after = (row.find_element(By.CLASS_NAME, name).text for name in ("pc", "ne", "after"))
        assert read(pc) == pytest.approx(float(reduction.delta_pc[place]), rel=6e-3, abs=1e-7)
        assert read(ne) == pytest.approx(float(reduction.delta_ne[place]), rel=6e-3, abs=1e-7)
        assert reduction.probability is not None
        name, _, confidence = after.rpartition(" ")
        assert name == class_names[int(reduction.probability[place].argmax())]
        assert read(confidence) == pytest.approx(float(reduction.probability[place].max()), rel=6e-3)


def hover_arrow(page: Chrome, index: int) -> WebElement:
    """Move the pointer to the middle of an arrow; the tooltip."""
    # A loop's bounding box is empty in the middle, so the point is taken on the arrow's own outline.
    script = """
        const path = document.querySelectorAll(".picture svg g > g:nth-child(2) > path")[arguments[0]];
        const point = path.getPointAtLength(path.getTotalLength() * 0.2).matrixTransform(path.getScreenCTM());
        return [Math.round(point.x), Math.round(point.y)];
    """
    page.execute_script("arguments[0].scrollIntoView()", one(page, ".stage"))
    x, y = page.execute_script(script, index)
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(x, y)
    actions.perform()
    return one(page, ".floating")


def test_the_first_target_is_shown_with_what_is_known_of_it(page: Chrome, model: ExplainedModel) -> None:
    assert one(page, ".target-name").text == "Node n7"
    assert "predicted" in one(page, ".heading .about").text
    pairs = model.evaluation.pairs
    assert drawn(page) == int(pairs.ptr[1])
    assert one(page, ".edges caption").text == f"{int(pairs.ptr[1])} of {int(pairs.ptr[1])} edges"


def test_the_page_opens_on_the_most_telling_target_and_lists_them_in_that_order(page: Chrome, folder: Path) -> None:
    page.get("about:blank")
    page.get((folder / "page.html").as_uri())
    assert one(page, ".target-name").text == "Node n11"
    assert "which is right" in one(page, ".heading .about").text
    assert texts(page, "[role=option] .name") == ["n11", "n7", "n30", IMAGE]
    field(page, "Sort").select_by_visible_text("by name")
    assert texts(page, "[role=option] .name") == [IMAGE, "n7", "n11", "n30"]
    field(page, "Sort").select_by_visible_text("largest first")
    sizes = {name: len(rows_of(page, name)) for name in ("n7", "n11", "n30")}
    shown = [name for name in texts(page, "[role=option] .name") if name != IMAGE]
    assert shown == sorted(sizes, key=lambda name: -sizes[name])


def rows_of(page: Chrome, name: str) -> list[WebElement]:
    """Open a target and give its rows."""
    next(option for option in page.find_elements(By.CSS_SELECTOR, "[role=option]") if name in option.text).click()
    return rows(page)


def test_pick_a_target_by_list_search_and_buttons(page: Chrome, model: ExplainedModel) -> None:
    page.find_elements(By.CSS_SELECTOR, "[role=option]")[1].click()
    assert one(page, ".target-name").text == "Node n7"
    one(page, '[aria-label="Next target"]').click()
    assert one(page, ".target-name").text == "Node n30"
    one(page, '[aria-label="Next target"]').click()
    one(page, '[aria-label="Next target"]').click()  # round to the first
    assert one(page, ".target-name").text == "Node n11"
    one(page, '[aria-label="Previous target"]').click()
    assert one(page, ".target-name").text == f"Node {IMAGE}"
    one(page, "input[type=search]").send_keys("n11", Keys.ENTER)
    assert texts(page, "[role=option] .name") == ["n11"]
    assert one(page, ".target-name").text == "Node n11"
    assert one(page, ".targets").get_attribute("aria-activedescendant") == one(
        page, '[role=option][aria-selected="true"]'
    ).get_attribute("id")


def test_wrong_predictions_can_be_listed(page: Chrome) -> None:
    field(page, "Show").select_by_visible_text("wrong predictions")
    assert texts(page, "[role=option] .name") == [IMAGE]
    field(page, "Show").select_by_visible_text("with true edges")
    assert texts(page, "[role=option] .name") == ["n11", "n7"]


def test_a_tooltip_says_the_saved_numbers(page: Chrome, model: ExplainedModel) -> None:
    for arrow in range(0, drawn(page), 3):
        tooltip = hover_arrow(page, arrow)
        assert tooltip.is_displayed()
        assert_card_is_right(tooltip, model, target=7)


def test_a_click_keeps_the_edge_and_marks_its_row(page: Chrome, model: ExplainedModel) -> None:
    hover_arrow(page, 0)
    actions = ActionChains(page)
    actions.click()
    actions.perform()
    card = one(page, ".docked")
    assert card.is_displayed()
    assert_card_is_right(card, model, target=7)
    assert one(page, ".edges .chosen th").text == card.find_element(By.TAG_NAME, "h3").text
    card.find_element(By.CLASS_NAME, "close").click()
    assert not card.is_displayed()


def test_methods_and_protocols_change_picture_and_table(page: Chrome, model: ExplainedModel) -> None:
    pairs = model.evaluation.pairs
    own = slice(0, int(pairs.ptr[1]))
    for method, label in (("avgatt", "AvgAtt"), ("random", "Random"), ("gatt", "GAtt")):
        field(page, "Method").select_by_visible_text(label)
        expected = sorted(model.evaluation.pair_scores[method][own].tolist(), reverse=True)
        shown = [read(text) for text in texts(page, ".edges .barred")[1:]]
        assert shown == pytest.approx(expected, rel=6e-4)
        assert label in one(page, ".picture svg").get_attribute("aria-label")
    for protocol, reduction in model.evaluation.reductions.items():
        field(page, "Reduce an edge by").select_by_visible_text(protocol)
        order = model.evaluation.pair_scores["gatt"][own].sort(descending=True, stable=True).indices
        effects = [read(row.find_elements(By.TAG_NAME, "td")[2].text) for row in rows(page)]
        assert effects == pytest.approx(reduction.delta_pc[own][order].tolist(), rel=6e-3, abs=1e-7)


def rows(page: Chrome) -> list[WebElement]:
    return page.find_elements(By.CSS_SELECTOR, ".edges tbody tr")


@pytest.mark.parametrize("key", ["score gatt", "score avgatt", "pc", "ne"])
def test_the_table_sorts_by_any_column(page: Chrome, key: str) -> None:
    columns = [
        button.get_attribute("data-key") for button in page.find_elements(By.CSS_SELECTOR, ".edges thead button")
    ]
    place = columns.index(key)

    def values() -> list[float]:
        return [read(row.find_elements(By.CSS_SELECTOR, "th, td")[place].text) for row in rows(page)]

    button = f'.edges [data-key="{key}"]'
    if one(page, f"{button}").find_element(By.XPATH, "..").get_attribute("aria-sort") is None:
        one(page, button).click()
    assert values() == sorted(values(), reverse=True)
    one(page, button).click()
    assert values() == sorted(values())
    assert one(page, button).find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"


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


def test_the_filter_keeps_the_strongest_edges(page: Chrome, model: ExplainedModel) -> None:
    slider = one(page, "input[type=range]")
    slider.send_keys(Keys.HOME)
    assert drawn(page) == 1
    highest = float(model.evaluation.pair_scores["gatt"][: int(model.evaluation.pairs.ptr[1])].max())
    assert [read(text) for text in texts(page, ".edges td.barred")] == pytest.approx([highest], rel=6e-4)
    slider.send_keys(Keys.END)
    assert drawn(page) == int(model.evaluation.pairs.ptr[1])


def test_the_keyboard_alone_does_it_all(page: Chrome, model: ExplainedModel) -> None:
    def tab_to(reached: Callable[[WebElement], bool]) -> WebElement:
        for _ in range(60):
            keys(page, Keys.TAB)
            if reached(page.switch_to.active_element):
                return page.switch_to.active_element
        raise AssertionError("the Tab key never gets there")

    tab_to(lambda element: element.get_attribute("type") == "search")
    keys(page, "n30", Keys.ENTER)
    assert one(page, ".target-name").text == "Node n30"
    tab_to(lambda element: element.text == "Computation tree")
    keys(page, Keys.ENTER)
    assert "Computation tree" in one(page, ".picture svg").get_attribute("aria-label")
    keys(page, Keys.SHIFT + Keys.TAB)
    ActionChains(page).key_up(Keys.SHIFT).perform()
    keys(page, Keys.ENTER)  # the neighbourhood again
    tab_to(lambda element: element.get_attribute("class") == "stage")
    keys(page, Keys.ARROW_DOWN)
    best = model.evaluation.pair_scores["gatt"][int(model.evaluation.pairs.ptr[3]) :].max()
    value = one(page, '.docked [data-method="gatt"] .value').text
    assert read(value) == pytest.approx(float(best), rel=6e-4)
    assert "Edge from" in one(page, "[aria-live]").get_attribute("textContent")
    keys(page, "+")
    assert "scale(1.4)" in one(page, ".picture svg > g").get_attribute("transform")
    keys(page, "0", Keys.PAGE_UP)  # the search found n30 alone, so the keys go through all
    assert one(page, ".target-name").text == "Node n7"
    tab_to(lambda element: element.get_attribute("data-key") == "pc")
    keys(page, Keys.ENTER)
    assert one(page, '.edges [aria-sort] [data-key="pc"]') == page.switch_to.active_element
    row = tab_to(lambda element: element.tag_name == "tr")
    keys(page, Keys.ARROW_DOWN)
    assert page.switch_to.active_element != row
    assert one(page, ".edges .chosen") == page.switch_to.active_element
    assert_card_is_right(one(page, ".docked"), model, target=7)


def test_names_are_text_whatever_they_hold(page: Chrome) -> None:
    assert page.title == f"A page {IMAGE}"
    assert one(page, "h1").text == f"A page {IMAGE}"
    assert one(page, ".facts dd").text == SCRIPT
    assert any(SCRIPT in text for text in texts(page, ".edges tbody th"))
    field(page, "Show").select_by_visible_text("wrong predictions")
    one(page, "[role=option]").click()
    assert one(page, ".target-name").text == f"Node {IMAGE}"
    one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    press(page, "Computation tree")
    assert page.find_elements(By.TAG_NAME, "img") == []
    assert len(page.find_elements(By.TAG_NAME, "script")) == 2


def test_curves_stand_beside_each_other(page: Chrome) -> None:
    panels = {
        figure.find_element(By.TAG_NAME, "figcaption").get_attribute("textContent"): figure.find_element(
            By.TAG_NAME, "svg"
        ).get_attribute("aria-label")
        for figure in page.find_elements(By.CSS_SELECTOR, "figure.curve")
    }
    assert list(panels)[:3] == ["accuracy", "faithfulness (mean), weight", "loss"]
    assert panels["accuracy"].endswith("at the end: val 0.875")
    assert panels["faithfulness (mean), weight"].endswith("at the end: GAtt 0.5")
    assert "confidence, Pearson, weight" in panels


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_methods_curve_has_its_colour_in_all_figures(page: Chrome, theme: str) -> None:
    set_screen(page, 1400, 900, theme)
    WebDriverWait(page, 10).until(lambda _: one(page, "#attree").get_attribute("data-theme") == theme)
    line = one(page, "svg[aria-label^='faithfulness (mean), weight'] polyline").get_attribute("stroke")
    drawn = [int(number) for number in line.removeprefix("rgb(").removesuffix(")").split(",")]
    look = [int(LOOKS["gatt"].color[start : start + 2], 16) for start in (1, 3, 5)]
    if theme == "light":
        assert drawn == look
    else:  # lighter, until lines stand out from dark paper
        assert all(shown >= own for shown, own in zip(drawn, look, strict=True))
        assert contrast(drawn, [0x15, 0x18, 0x1D]) >= 3


def contrast(one: list[int], other: list[int]) -> float:
    """WCAG 2's ratio of two colours."""

    def luminance(color: list[int]) -> float:
        parts = [value / 255 for value in color]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_summary_is_the_evaluation(page: Chrome, model: ExplainedModel) -> None:
    metrics = model.evaluation.metrics
    for method in model.evaluation.pair_scores:
        cells = [text.split()[0] for text in texts(page, f'.headline [data-method="{method}"] td')]
        shown = [float(text.replace("−", "-").replace("undefined", "nan")) for text in cells]
        named = ("truth_auroc", "weight/pc_pearson", "removal/pc_pearson")  # faithfulness is undefined
        assert shown == pytest.approx([metrics[f"explain/{method}/{name}"] for name in named], abs=6e-5)
    for folded in page.find_elements(By.CSS_SELECTOR, ".verdict summary"):
        folded.click()
    assert texts(page, ".verdict p") == [said.replace("`", "") for said in model.evaluation.verdict.sentences]
    page.find_element(By.XPATH, "//summary[text()='All statistics']").click()
    row = page.find_element(By.XPATH, "//table[@class='metrics']//tr[th[text()='ground truth, AUROC']]")
    assert [float(cell.text.split()[0]) for cell in row.find_elements(By.TAG_NAME, "td")] == pytest.approx(
        [metrics[f"explain/{method}/truth_auroc"] for method in model.evaluation.pair_scores], abs=6e-5
    )


def test_the_summary_has_a_correlation_where_faithfulness_is_undefined(
    driver: Chrome, model: ExplainedModel, folder: Path
) -> None:
    known = replace(
        model.evaluation,
        metrics={
            name: 0.25 if name == "explain/gatt/weight/faithfulness" else value
            for name, value in model.evaluation.metrics.items()
        },
    )
    assert math.isnan(known.metrics["explain/gatt/removal/faithfulness"])  # it changes no prediction
    driver.get(write_page(folder / "half.html", known).as_uri())
    heads = [head.split("\n")[0] for head in texts(driver, ".headline thead th")]
    assert heads == ["method", "ground truth, AUROC", "faithfulness (mean)", "confidence, Pearson"]
    shown = [text.split()[0] for text in texts(driver, '.headline [data-method="gatt"] td')][1:]
    assert [read(text) for text in shown] == pytest.approx(
        [0.25, known.metrics["explain/gatt/removal/pc_pearson"]], abs=6e-5
    )
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_the_summary_is_cut_at_no_width(page: Chrome, width: int) -> None:
    set_screen(page, width, 900)
    table = one(page, ".headline")
    assert table.size["width"] <= width
    box = page.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.left, b.right]", table)
    assert 0 <= box[0] < box[1] <= width
    assert [head.split("\n")[0] for head in texts(page, ".headline thead th")] == [
        *("method", "ground truth, AUROC", "confidence, Pearson", "confidence, Pearson")
    ]


def test_the_picture_is_saved_as_svg(page: Chrome, folder: Path) -> None:
    field(page, "Compare with").select_by_visible_text("AvgAtt")
    save(page, "Picture (SVG)")
    saved = folder / "node_7_gatt_avgatt.svg"
    WebDriverWait(page, 20).until(lambda _: saved.exists())
    root = ET.fromstring(saved.read_text(encoding="utf-8"))
    namespace = {"svg": "http://www.w3.org/2000/svg"}
    assert len(root.findall("svg:svg", namespace)) == 2
    assert len(root.findall("svg:svg/svg:g/svg:g/svg:path", namespace)) == 2 * drawn(page)
    assert SCRIPT[:13] + "…" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_address_says_what_is_looked_at(page: Chrome) -> None:
    one(page, '[aria-label="Next target"]').click()
    field(page, "Method").select_by_visible_text("AvgAtt")
    press(page, "Computation tree")
    assert page.current_url.endswith("#target=30&method=avgatt&protocol=weight&view=tree")
    page.refresh()
    assert one(page, ".target-name").text == "Node n30"
    assert field(page, "Method").first_selected_option.text == "AvgAtt"
    assert "Computation tree" in one(page, ".picture svg").get_attribute("aria-label")


def save(page: Chrome, entry: str) -> None:
    page.find_element(By.XPATH, "//summary[text()='Save']").click()
    press(page, entry)


def saved_file(page: Chrome, path: Path) -> Path:
    WebDriverWait(page, 20).until(lambda _: path.exists() and path.stat().st_size > 0)
    return path


def test_the_whole_state_is_in_the_copied_link(page: Chrome, model: ExplainedModel) -> None:
    field(page, "Compare with").select_by_visible_text("AvgAtt")
    field(page, "Reduce an edge by").select_by_visible_text("removal")
    for label in ("self-loops", "unconnected nodes", "one scale for both"):
        page.find_element(By.XPATH, f"//label[text()='{label}']/input").click()
    field(page, "Sort").select_by_visible_text("by name")
    field(page, "Show").select_by_visible_text("with true edges")
    one(page, "input[type=search]").send_keys("n")
    one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    chosen = one(page, ".docked h3").text
    press(page, "Take this edge out")
    press(page, "Dark")
    press(page, "Copy link")
    WebDriverWait(page, 5).until(lambda _: page.find_elements(By.XPATH, "//button[text()='Link copied']"))
    link = page.current_url
    page.get("about:blank")
    page.get(link)
    assert one(page, ".target-name").text == "Node n7"
    assert field(page, "Compare with").first_selected_option.text == "AvgAtt"
    assert field(page, "Reduce an edge by").first_selected_option.text == "removal"
    ticked = {
        label.text: label.find_element(By.TAG_NAME, "input").is_selected()
        for label in page.find_elements(By.CSS_SELECTOR, ".check")
    }
    assert ticked == {"self-loops": False, "unconnected nodes": True, "one scale for both": True}
    assert texts(page, "[role=option] .name") == ["n7", "n11"]
    assert one(page, ".docked h3").text == chosen
    assert texts(page, ".chip") == [f"{chosen} ×"]
    assert one(page, "#attree").get_attribute("data-theme") == "dark"


@pytest.mark.parametrize("broken", ["target=99", "edge=-7&cut=1,x", "method=no&view=%00&strongest=-3", "cut=99999"])
def test_an_address_that_fits_nothing_shows_the_page_as_at_first(page: Chrome, folder: Path, broken: str) -> None:
    page.get("about:blank")
    page.get(f"{(folder / 'page.html').as_uri()}#{broken}")
    assert one(page, ".target-name").text == "Node n11"
    assert drawn(page) > 0


def test_edges_are_saved_as_csv(page: Chrome, model: ExplainedModel, folder: Path) -> None:
    save(page, "Edges (CSV)")
    table = pd.read_csv(saved_file(page, folder / "node_7.csv"))
    own, pairs = place_of(model, 7), model.evaluation.pairs
    assert table["target"].unique().tolist() == [7]
    assert (
        table[["source", "destination"]].to_numpy().T.tolist() == pairs.graph.edge_index[:, pairs.edges[own]].tolist()
    )
    for method, scores in model.evaluation.pair_scores.items():
        assert table[method].tolist() == pytest.approx(scores[own].tolist(), rel=1e-6)
    for protocol, reduction in model.evaluation.reductions.items():
        assert table[f"dpc_{protocol}"].tolist() == pytest.approx(reduction.delta_pc[own].tolist(), rel=1e-6, abs=1e-12)
        assert table[f"changed_{protocol}"].astype(bool).tolist() == reduction.changed[own].tolist()
    assert SCRIPT in set(table["source_name"])


def test_the_graph_is_saved_as_graphml(page: Chrome, model: ExplainedModel, folder: Path) -> None:
    save(page, "Graph (GraphML)")
    graph = nx.read_graphml(saved_file(page, folder / "node_7.graphml"), force_multigraph=True)
    own, pairs = place_of(model, 7), model.evaluation.pairs
    assert graph.is_directed()
    assert graph.number_of_edges() == own.stop - own.start
    names = nx.get_node_attributes(graph, "name")
    assert [names[node] for node, is_target in graph.nodes(data="target") if is_target] == ["n7"]
    assert SCRIPT in names.values()
    read_scores = sorted(score for _, _, score in graph.edges(data="gatt"))
    assert read_scores == pytest.approx(sorted(model.evaluation.pair_scores["gatt"][own].tolist()), rel=1e-6)
    assert pairs.graph.num_nodes >= graph.number_of_nodes()


def test_the_picture_is_saved_as_png(page: Chrome, folder: Path) -> None:
    save(page, "Picture (PNG)")
    path = saved_file(page, folder / "node_7_gatt.png")
    pixels = plt.imread(path)
    assert pixels.shape[1] == pytest.approx(2 * one(page, ".picture svg").size["width"], abs=2)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 20  # a picture, not a blank sheet


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
        assert f"Without {source} → {destination} (reduced by removal)" in told
        share = float(told.rpartition("(")[2].rstrip(" %).").lstrip("<>")) / 100
        assert share == pytest.approx(float(after.max()), abs=0.006)
        changed = bool(reduction.changed[pair(model, 7, source, destination)])
        assert (f"it would say {names[int(after.argmax())]}" in told) == changed
        assert len(page.find_elements(By.CSS_SELECTOR, ".picture path.cut")) == 1
        one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    assert len(texts(page, ".chip")) == 1  # one edge at a time, where there is no model


def test_words_are_explained_by_touch_and_keyboard(page: Chrome) -> None:
    terms = page.find_elements(By.CSS_SELECTOR, "details.term")
    assert len(terms) >= 5
    for summary in page.find_elements(By.CSS_SELECTOR, "details.term > summary"):
        assert summary.get_attribute("aria-label").startswith("What is meant by ")
    first = page.find_element(By.CSS_SELECTOR, "details.term > summary")
    first.click()
    assert first.find_element(By.XPATH, "..").find_element(By.CLASS_NAME, "note").is_displayed()
    keys(page, Keys.ESCAPE)
    assert not first.find_element(By.XPATH, "..").find_element(By.CLASS_NAME, "note").is_displayed()
    page.find_element(By.XPATH, "//summary[text()='How to read this page']").click()
    guide = one(page, ".guide").text
    for word in ("drop of confidence (ΔPC)", "loss of certainty (ΔNE)", "faithfulness", "reduced by removal"):
        assert word in guide


def test_the_first_column_of_the_table_stays(page: Chrome) -> None:
    set_screen(page, 390, 800)
    scroller = one(page, ".edge-table .scroller")
    left = "return document.querySelector('.edges tbody th').getBoundingClientRect().left"
    before = page.execute_script(left)
    page.execute_script("arguments[0].scrollLeft = 150", scroller)
    assert page.execute_script("return arguments[0].scrollLeft", scroller) > 50
    assert page.execute_script(left) == pytest.approx(before, abs=1)


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


def test_names_of_any_length_and_direction_break_nothing(driver: Chrome, folder: Path) -> None:
    edge_index = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])
    graph = Data(x=torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), edge_index=edge_index)
    graph.node_names = ["x" * 300, "\N{GRINNING FACE}" * 40, "שלום", "", "<b>bold</b>"]
    graph.class_names = ["مرحبا" * 40, "\N{GRINNING FACE}", "y" * 300]
    model = randomize(GAT(4, 3, num_layers=1), seed=0).eval()
    evaluation = evaluate(model, graph, [0], ["gatt"], ["removal"])
    path = write_page(folder / "odd.html", evaluation, class_names=graph.class_names, node_names=graph.node_names)
    for width in (390, 1400):
        set_screen(driver, width, 900)
        driver.get("about:blank")
        driver.get(path.as_uri())
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert one(driver, ".target-name").text == f"Node {'x' * 300}"
    edges = {row.text.split("\n")[0].strip() for row in driver.find_elements(By.CSS_SELECTOR, ".edges tbody th")}
    assert f"\u2068שלום\u2069 → {'x' * 300}" in edges  # the arrow keeps its direction
    assert f"3 → {'x' * 300}" in edges  # no name, so its number
    drawn_names = texts(driver, ".picture svg text")
    assert "\N{GRINNING FACE}" * 13 + "…" in drawn_names  # no half characters
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", [360, 800])
def test_narrow_screens_scroll_one_way_only(page: Chrome, width: int) -> None:
    set_screen(page, width, 740)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    assert one(page, ".docked").is_displayed()
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(not AXE.exists(), reason=f"{AXE} not found: npm ci in web/")
@pytest.mark.parametrize("view", ["Neighbourhood", "Computation tree"])
@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (1400, "dark"), (380, "light")])
def test_axe_finds_nothing_serious(page: Chrome, width: int, theme: str, view: str) -> None:
    set_screen(page, width, 900, theme)
    WebDriverWait(page, 10).until(lambda _: one(page, "#attree").get_attribute("data-theme") == theme)
    press(page, view)
    one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    page.execute_script(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 20
    serious = [rule for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in serious] == []


def test_the_same_module_is_the_notebook_widget(driver: Chrome, model: ExplainedModel) -> None:
    script = """
        const [source, content, done] = arguments;
        const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        const element = document.body.appendChild(document.createElement("div"));
        const model = { get: (name) => content[name] };
        import(address).then((module) => module.default.render({ model, el: element }))
          .then(() => done(""), (error) => done(String(error)));
    """
    driver.get("about:blank")
    content = {"content": json_ready(page_content(model.evaluation, **model.options))}
    assert driver.execute_async_script(script, asset("explorer.js"), content) == ""
    assert one(driver, ".target-name").text == "Node n11"
    own = place_of(model, 11)
    assert len(rows(driver)) == own.stop - own.start
