"""The page in a browser: targets and edges are picked, and what is said of them is what was measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PlainGAT

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

import attree
from attree.evaluation import evaluate
from attree.models import GAT
from attree.report.page import write_page
from browser import missing, set_screen
from helpers.deleted_edges import deletion_effects, star
from helpers.explained import IMAGE, SCRIPT, ExplainedModel
from helpers.graphs import randomize
from helpers.page_in_browser import (
    assert_card_is_right,
    column,
    drawn,
    field,
    hover_arrow,
    keys,
    one,
    press,
    read,
    rows,
    texts,
)

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_the_first_target_is_shown_with_what_is_known_of_it(page: Chrome, model: ExplainedModel) -> None:
    assert one(page, ".target-name").text == "Node n7"
    assert "predicted" in one(page, ".heading .about").text
    pairs = model.evaluation.pairs
    assert drawn(page) == int(pairs.ptr[1])
    assert one(page, ".edges caption").text == f"{int(pairs.ptr[1])} of {int(pairs.ptr[1])} edges"


def test_the_page_opens_on_the_most_instructive_target_and_lists_them_in_that_order(page: Chrome, folder: Path) -> None:
    page.get("about:blank")
    page.get((folder / "page.html").as_uri())
    assert one(page, ".target-name").text == "Node n11"
    assert "which is right" in one(page, ".heading .about").text
    assert names_in_list(page) == ["n11", "n7", "n30", IMAGE]
    field(page, "Sort").select_by_visible_text("by name")
    assert names_in_list(page) == [IMAGE, "n7", "n11", "n30"]
    field(page, "Sort").select_by_visible_text("largest first")
    sizes = {name: len(rows_of(page, name)) for name in ("n7", "n11", "n30")}
    shown = [name for name in names_in_list(page) if name != IMAGE]
    assert shown == sorted(sizes, key=lambda name: -sizes[name])


def names_in_list(page: Chrome) -> list[str | None]:
    """The names of the listed targets, whole."""
    return [name.get_attribute("title") for name in page.find_elements(By.CSS_SELECTOR, "[role=option] .name")]


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
    assert names_in_list(page) == [IMAGE]
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
    assert one(page, ".edges .chosen th .ends").text == card.find_element(By.TAG_NAME, "h3").text
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
        assert column(page, 2) == pytest.approx(reduction.delta_pc[own][order].tolist(), rel=6e-3, abs=1e-7)


@pytest.mark.parametrize("key", ["score gatt", "score avgatt", "pc", "ne"])
def test_the_table_sorts_by_any_column(page: Chrome, key: str) -> None:
    page.find_element(By.XPATH, "//label[text()='all columns']/input").click()
    columns = [
        button.get_attribute("data-key") for button in page.find_elements(By.CSS_SELECTOR, ".edges thead button")
    ]
    place = columns.index(key)
    button = f'.edges [data-key="{key}"]'
    if one(page, f"{button}").find_element(By.XPATH, "..").get_attribute("aria-sort") is None:
        one(page, button).click()
    assert column(page, place) == sorted(column(page, place), key=abs, reverse=True)
    one(page, button).click()
    assert column(page, place) == sorted(column(page, place), key=abs)
    assert one(page, button).find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"


def test_an_edge_against_the_prediction_counts_by_its_size_and_has_its_own_colour(page: Chrome, folder: Path) -> None:
    """Of the effects of deletion, the largest size is drawn alone when one edge is asked for, whatever its sign."""
    model, data = PlainGAT(4, 8, 1, out_channels=3, add_self_loops=False), star()
    signs = set()
    for seed in range(8):
        torch.manual_seed(seed)
        model.reset_parameters()
        effects = deletion_effects(model.eval(), data, 0)
        source, destination = max(effects, key=lambda ends: abs(effects[ends]))
        effect = effects[source, destination]
        if (effect > 0) in signs:
            continue
        signs.add(effect > 0)
        path = attree.explain(model, data, 0).page(folder / f"sign_{seed}.html")
        page.get(path.as_uri())
        assert texts(page, ".edges tbody tr:first-child th .ends") == [f"{source} → {destination}"]
        cell = one(page, ".edges tbody tr:first-child td.barred")
        assert read(cell.text) == pytest.approx(effect, rel=1e-3)
        assert ("against" in (cell.get_attribute("class") or "")) == (effect < 0)
        one(page, "input[type=range]").send_keys(Keys.HOME)
        assert drawn(page) == 1
        red, green, _ = map(int, re.findall(r"\d+", one(page, ".picture path[fill^=rgb]").get_attribute("fill") or ""))
        assert (green > red) == (effect < 0)
        legend = texts(page, ".picture text")
        assert {"against", "for"} <= set(legend)
    assert signs == {True, False}


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

    def back() -> None:
        ActionChains(page).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()

    tab_to(lambda element: element.get_attribute("type") == "search")
    keys(page, "n30", Keys.ENTER)
    assert one(page, ".target-name").text == "Node n30"
    tab_to(lambda element: element.text == "Computation tree")
    keys(page, Keys.ENTER)
    assert "Computation tree" in one(page, ".picture svg").get_attribute("aria-label")
    back()
    keys(page, Keys.ENTER)  # the neighbourhood again
    while page.switch_to.active_element.get_attribute("class") != "stage":
        back()
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
    ends = page.find_elements(By.CSS_SELECTOR, ".edges .ends")
    assert any(SCRIPT in (cell.get_attribute("title") or "") for cell in ends)
    assert any("</script><scr" in cell.text for cell in ends)
    field(page, "Show").select_by_visible_text("wrong predictions")
    one(page, "[role=option]").click()
    assert one(page, ".target-name").text == f"Node {IMAGE}"
    one(page, ".stage").send_keys(Keys.ARROW_DOWN)
    press(page, "Computation tree")
    assert page.find_elements(By.TAG_NAME, "img") == []
    assert len(page.find_elements(By.TAG_NAME, "script")) == 2


def test_the_summary_has_another_correlation_where_the_leading_one_is_undefined(
    driver: Chrome, model: ExplainedModel, folder: Path
) -> None:
    metrics = {
        name: math.nan if name.endswith("removal/within_pearson") else value
        for name, value in model.evaluation.metrics.items()
    }
    driver.get(write_page(folder / "half.html", replace(model.evaluation, metrics=metrics)).as_uri())
    statistics = [
        "pc_pearson" if protocol == "removal" else "within_pearson" for protocol in model.evaluation.reductions
    ]
    titles = {"pc_pearson": "confidence, Pearson", "within_pearson": "within targets, Pearson"}
    heads = [head.split("\n")[0] for head in texts(driver, ".headline thead th")]
    assert heads == ["method", "ground truth, AUROC", *(titles[statistic] for statistic in statistics)]
    shown = [text.split()[0] for text in texts(driver, '.headline [data-method="gatt"] td')][1:]
    names = zip(model.evaluation.reductions, statistics, strict=True)
    assert [read(text) for text in shown] == pytest.approx(
        [metrics[f"explain/gatt/{protocol}/{statistic}"] for protocol, statistic in names], abs=6e-5
    )
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
    cells = driver.find_elements(By.CSS_SELECTOR, ".edges .ends")
    edges = {cell.get_attribute("title") for cell in cells}
    assert f"\u2068שלום\u2069 → {'x' * 300}" in edges  # the arrow keeps its direction
    assert f"3 → {'x' * 300}" in edges  # no name, so its number
    assert f"\u2068שלום\u2069 → {'x' * 13}…{'x' * 6}" in {cell.text.strip() for cell in cells}
    drawn_names = texts(driver, ".picture svg text")
    smiling = [name for name in drawn_names if "\N{GRINNING FACE}" in name]
    assert len(smiling) == 1
    assert set(smiling[0]) == {"\N{GRINNING FACE}", "…"}  # no half characters
    assert smiling[0].count("…") == 1
    assert driver.get_log("browser") == []
