"""Reading the page in a browser: its parts by what a reader calls them, and its numbers beside the saved ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from helpers.explained import TARGETS, ExplainedModel

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


def one(page: Chrome, selector: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, selector)


def texts(page: Chrome, selector: str) -> list[str]:
    return [element.text for element in page.find_elements(By.CSS_SELECTOR, selector)]


def column(page: Chrome, place: int) -> list[float]:
    """The numbers in one column of the table of edges, read with one request."""
    script = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.innerText.trim());"
    return [read(text) for text in page.execute_script(script, f".edges tbody tr > :nth-child({place + 1})")]


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
        name, share = after.removesuffix(" %").rsplit(" ", 1)
        assert name == class_names[int(reduction.probability[place].argmax())]
        assert float(share.lstrip("<>")) / 100 == pytest.approx(float(reduction.probability[place].max()), abs=0.006)


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


def rows(page: Chrome) -> list[WebElement]:
    return page.find_elements(By.CSS_SELECTOR, ".edges tbody tr")
