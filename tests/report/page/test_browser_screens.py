"""The page on screens of all widths, in light and dark, read by touch, keyboard and screen readers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import attree
from attree.io.files import json_ready
from attree.models import GAT
from attree.report.page.content import page_content
from attree.report.page.write import asset
from attree.report.style import LOOKS
from browser import missing, set_screen
from helpers.explained import ExplainedModel
from helpers.graphs import randomize
from helpers.page_in_browser import AXE, field, keys, one, place_of, press, rows, texts

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_curves_stand_beside_each_other(page: Chrome) -> None:
    panels = {
        figure.find_element(By.TAG_NAME, "figcaption").get_attribute("textContent"): figure.find_element(
            By.TAG_NAME, "svg"
        ).get_attribute("aria-label")
        for figure in page.find_elements(By.CSS_SELECTOR, "figure.curve")
    }
    assert list(panels)[:3] == ["accuracy", "within targets, Pearson, weight", "loss"]
    assert panels["accuracy"].endswith("at the end: val 0.875")
    assert panels["within targets, Pearson, weight"].endswith("at the end: GAtt 0.5")
    assert "confidence, Pearson, weight" in panels


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_methods_curve_has_its_colour_in_all_figures(page: Chrome, theme: str) -> None:
    set_screen(page, 1400, 900, theme)
    WebDriverWait(page, 10).until(lambda _: one(page, "#attree").get_attribute("data-theme") == theme)
    line = one(page, "svg[aria-label^='within targets, Pearson, weight'] polyline").get_attribute("stroke")
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
        named = ("truth_auroc", *(f"{protocol}/within_pearson" for protocol in model.evaluation.reductions))
        assert shown == pytest.approx([metrics[f"explain/{method}/{name}"] for name in named], abs=6e-5)
    for folded in page.find_elements(By.CSS_SELECTOR, ".verdict summary"):
        folded.click()
    verdict = model.evaluation.verdict
    said = [*verdict.headline.splitlines(), *verdict.sentences]
    assert texts(page, ".verdict p") == [sentence.replace("`", "") for sentence in said]
    page.find_element(By.XPATH, "//summary[text()='All statistics']").click()
    row = page.find_element(By.XPATH, "//table[@class='metrics']//tr[th[text()='ground truth, AUROC']]")
    assert [float(cell.text.split()[0]) for cell in row.find_elements(By.TAG_NAME, "td")] == pytest.approx(
        [metrics[f"explain/{method}/truth_auroc"] for method in model.evaluation.pair_scores], abs=6e-5
    )


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_the_summary_is_cut_at_no_width(page: Chrome, width: int) -> None:
    set_screen(page, width, 900)
    table = one(page, ".headline")
    assert table.size["width"] <= width
    box = page.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.left, b.right]", table)
    assert 0 <= box[0] < box[1] <= width
    assert [head.split("\n")[0] for head in texts(page, ".headline thead th")] == [
        *("method", "ground truth, AUROC", "within targets, Pearson", "within targets, Pearson")
    ]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_table_of_edges_fits_until_all_columns_are_asked_for(page: Chrome, width: int) -> None:
    set_screen(page, width, 900)
    scroller = one(page, ".edge-table .scroller")
    room = "return arguments[0].scrollWidth - arguments[0].clientWidth"
    assert page.execute_script(room, scroller) <= 0
    assert texts(page, ".edges thead button")[0] == "edge"
    few = len(texts(page, ".edges thead button"))
    page.find_element(By.XPATH, "//label[text()='all columns']/input").click()
    assert len(texts(page, ".edges thead button")) > few
    assert page.execute_script(room, scroller) > 0


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
    for word in (
        "drop of confidence (ΔPC)",
        "loss of certainty (ΔNE)",
        "within targets, Pearson",
        "reduced by removal",
    ):
        assert word in guide


def test_the_first_column_of_the_table_stays(page: Chrome) -> None:
    set_screen(page, 390, 800)
    page.find_element(By.XPATH, "//label[text()='all columns']/input").click()
    scroller = one(page, ".edge-table .scroller")
    left = "return document.querySelector('.edges tbody th').getBoundingClientRect().left"
    before = page.execute_script(left)
    page.execute_script("arguments[0].scrollLeft = 150", scroller)
    assert page.execute_script("return arguments[0].scrollLeft", scroller) > 50
    assert page.execute_script(left) == pytest.approx(before, abs=1)


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


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_first_screen_has_the_headline_the_picture_and_its_sentence(
    page: Chrome, model: ExplainedModel, width: int, height: int
) -> None:
    set_screen(page, width, height)
    bottom = "return arguments[0].getBoundingClientRect().bottom"
    for selector in (".verdict p", ".stage", *([".what-if .sentence"] if width > 600 else [])):
        assert page.execute_script(bottom, one(page, selector)) <= height
    assert one(page, ".verdict p").text == model.evaluation.verdict.headline.splitlines()[0].replace("`", "")
    places = [page.execute_script(bottom, one(page, selector)) for selector in (".verdict", ".stage", ".headline")]
    assert places == sorted(places)
    for menu in page.find_elements(By.CSS_SELECTOR, "select"):  # no chosen option is cut
        text = "const s = arguments[0], c = document.createElement('canvas').getContext('2d');"
        text += "c.font = getComputedStyle(s).font; return c.measureText(s.selectedOptions[0].text).width"
        assert page.execute_script(text, menu) <= menu.size["width"]


def test_the_sentence_under_the_picture_names_the_edge_that_matters_most(page: Chrome, model: ExplainedModel) -> None:
    place = place_of(model, 7)
    protocol = next(iter(model.evaluation.reductions))
    effects = model.evaluation.reductions[protocol].delta_pc[place]
    edge = model.evaluation.pairs.edges[place][int(effects.abs().argmax())]
    names = model.options["node_names"]
    source, destination = (names[int(node)] for node in model.evaluation.pairs.graph.edge_index[:, edge])
    press(page, "›")
    while one(page, ".target-name").text != "Node n7":
        press(page, "›")
    assert f"Without {source} → {destination} (reduced by {protocol})" in one(page, ".what-if .sentence").text
    press(page, "Take it out")
    assert texts(page, ".chip") == [f"{source} → {destination} ×"]


def test_black_and_grey_methods_differ_in_the_dark(page: Chrome) -> None:
    set_screen(page, 1400, 900, "dark")
    WebDriverWait(page, 10).until(lambda _: one(page, "#attree").get_attribute("data-theme") == "dark")
    code = page.execute_script(
        "return [...document.querySelectorAll('.headline .swatch')].map((dot) => dot.style.background)"
    )
    assert len(set(code)) == len(code)


LONG = "A paper whose title goes on and on until it has reached eighty characters or so,"
CUT_OPTIONS = """
const canvas = document.createElement("canvas").getContext("2d");
return [...document.querySelectorAll("select")].filter((select) => select.offsetParent).flatMap((select) => {
  const style = getComputedStyle(select);
  canvas.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const room = select.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 12;
  return [...select.options].filter(({ text }) => canvas.measureText(text).width > room).map(({ text }) => text);
});"""
OVERLAPS = """
const boxes = [...document.querySelectorAll(".picture svg text")].filter((text) => text.textContent.includes("…"))
  .map((text) => text.getBoundingClientRect());
const over = (low, high) => (a, b) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]) > 1;
const overlap = (a, b) => over("left", "right")(a, b) && over("top", "bottom")(a, b);
return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => overlap(a, b))).length;"""


@pytest.fixture(scope="module")
def long_names(folder: Path) -> Path:
    """The page of a chain of nodes, all of whose names begin with the same eighty characters."""
    chain = torch.arange(12)
    graph = Data(x=torch.randn(13, 4, generator=torch.Generator().manual_seed(0)))
    graph.edge_index = torch.stack([chain, chain + 1])
    graph.node_names = [f"{LONG} {node}" for node in range(13)]
    net = randomize(GAT(4, 3, num_layers=3), seed=0).eval()
    return attree.evaluate(net, graph, [12, 6], protocols=["removal"]).page(folder / "long.html")


@pytest.mark.parametrize("width", [390, 1280])
def test_names_that_begin_alike_are_told_apart_and_do_not_overlap(driver: Chrome, long_names: Path, width: int) -> None:
    set_screen(driver, width, 844)
    driver.get("about:blank")
    driver.get(long_names.as_uri())
    for selector in (".edges .ends", "[role=option] .name"):
        shown = texts(driver, selector)
        assert len(shown) > 1
        assert len(set(shown)) == len(shown)
    sentence = texts(driver, ".what-if .sentence")[0]
    assert LONG not in sentence
    assert re.search(r"Without A paper.*….* \d+ → A paper.*….* \d+ it would", sentence)
    assert driver.execute_script("return document.querySelectorAll('.picture svg text').length") >= 4
    assert driver.execute_script(OVERLAPS) == 0
    assert driver.get_log("browser") == []


def test_no_select_box_cuts_its_options_on_a_phone(page: Chrome) -> None:
    set_screen(page, 390, 844)
    assert page.find_elements(By.TAG_NAME, "select") != []
    assert page.execute_script(CUT_OPTIONS) == []


def test_the_page_opens_with_what_the_headline_recommends(driver: Chrome, folder: Path) -> None:
    """The picture shows the effects of deleting edges, for and against, and the table has them once."""
    generator = torch.Generator().manual_seed(0)
    graph = Data(
        x=torch.randn(30, 4, generator=generator), edge_index=torch.randint(0, 30, (2, 90), generator=generator)
    )
    result = attree.evaluate(randomize(GAT(4, 3), seed=0).eval(), graph, num_targets=10)
    assert result.verdict.method == "occlusion"
    set_screen(driver, 1280, 720)
    driver.get(result.page(folder / "opening.html").as_uri())
    assert "Use occlusion" in one(driver, ".verdict").text
    assert field(driver, "Method").first_selected_option.text == "Occlusion"
    heads = [head.rstrip("▼").replace("\n", " ") for head in texts(driver, ".edges thead button")]
    assert heads == ["edge", "Occlusion", "prediction then"]
    field(driver, "Method").select_by_visible_text("GAtt")
    assert "drop of confidence" in [head.replace("\n", " ") for head in texts(driver, ".edges thead button")]


def test_a_self_loop_is_called_so(driver: Chrome, folder: Path) -> None:
    graph = Data(x=torch.ones(1, 4), edge_index=torch.empty(2, 0, dtype=torch.long))
    result = attree.evaluate(randomize(GAT(4, 3), seed=0).eval(), graph, [0], protocols=["removal"])
    driver.get(result.page(folder / "alone.html").as_uri())
    assert "Without the self-loop of 0 it would" in one(driver, ".what-if .sentence").text
