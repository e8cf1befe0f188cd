"""What a reader takes from the page: pictures, tables, graphs and links that open what was looked at."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from browser import missing
from helpers.explained import SCRIPT, ExplainedModel
from helpers.page_in_browser import drawn, field, one, place_of, press, texts

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_the_picture_is_saved_as_svg(page: Chrome, folder: Path) -> None:
    field(page, "Compare with").select_by_visible_text("AvgAtt")
    save(page, "Picture (SVG)")
    saved = folder / "node_7_gatt_avgatt.svg"
    WebDriverWait(page, 20).until(lambda _: saved.exists())
    root = ET.fromstring(saved.read_text(encoding="utf-8"))
    namespace = {"svg": "http://www.w3.org/2000/svg"}
    assert len(root.findall("svg:svg", namespace)) == 2
    assert len(root.findall("svg:svg/svg:g/svg:g/svg:path", namespace)) == 2 * drawn(page)
    assert SCRIPT[:9] + "…" + SCRIPT[-4:] in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


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
    by_default = {"nodes by GAtt": False, "all columns": False}
    assert ticked == by_default | {"self-loops": False, "unconnected nodes": True, "one scale for both": True}
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
