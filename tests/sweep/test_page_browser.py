"""The charts of a sweep's page: any setting as colour, axis or panel, a floor of accuracy, and a way to each run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from attree.sweep.page import sweep_page
from attree.sweep.results import find_frontier
from browser import chromium, missing, set_screen
from helpers.page_in_browser import AXE, field, texts

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]

QUALITY = "explain/gatt/removal/within_pearson"
NETWORKS = ["attree.models.GAT", "attree.models.GATv2", "attree.models.SuperGAT"]
DECAYS, DROPOUTS, SEEDS = [0.0, 0.001, 0.01], [0.0, 0.5], [0, 1]


def three_keys() -> pd.DataFrame:
    """Networks x weight decay x dropout, two seeds. SuperGAT is seven points less accurate than the others."""
    rows = []
    for network, decay, dropout, seed in itertools.product(NETWORKS, DECAYS, DROPOUTS, SEEDS):
        run = f"grid-network={network.rpartition('.')[2]}-weight_decay={decay:g}-dropout={dropout:g}-seed={seed}"
        place = NETWORKS.index(network)
        quality = 0.5 + 10 * decay + 0.1 * dropout + 0.02 * place + 0.01 * seed
        settings = {"network": network, "weight_decay": decay, "dropout": dropout}
        about = {"sweep": "grid", "setting": f"{network} {decay:g} {dropout:g}", **settings, "seed": seed, "run": run}
        rows.append({**about, "val/acc": 0.9 - (0.07 if place == 2 else 0.0) - decay, QUALITY: quality})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    folder, results = tmp_path_factory.mktemp("sweep"), three_keys()
    opened = folder / str(results["run"][0])
    opened.mkdir()
    (opened / "page.html").write_text("<h1>the run</h1>")
    frontier = find_frontier(results, {"val/acc": "maximize", QUALITY: "maximize"})
    path = folder / "page.html"
    path.write_text(sweep_page("grid", results, ["val/acc", QUALITY], frontier, {}, [], folder), encoding="utf-8")
    with chromium() as driver:
        set_screen(driver, 1280, 900)
        driver.get(path.as_uri())
        yield driver
        assert driver.get_log("browser") == []


def charts(page: Chrome) -> dict[str, WebElement]:
    """The charts by their titles."""
    found = page.find_elements(By.CSS_SELECTOR, ".scatter")
    return {
        (one.find_element(By.TAG_NAME, "svg").get_attribute("aria-label") or "").split(":")[0]: one for one in found
    }


def keys_of(chart: WebElement) -> list[str | None]:
    return [point.get_attribute("data-key") for point in chart.find_elements(By.CLASS_NAME, "point")]


def test_three_keys_are_one_picture(page: Chrome) -> None:
    """Weight decay is the axis, networks have colours, and dropout has a chart for each value."""
    quality = "within targets, Pearson, edge deleted"
    assert list(charts(page)) == [
        f"{quality}, against accuracy",
        *(
            f"{what}, against weight_decay where dropout is {dropout}"
            for what in (quality, "accuracy")
            for dropout in ("0", "0.5")
        ),
    ]
    panels = list(charts(page).values())[1:3]
    assert all(sorted(set(keys_of(panel))) == sorted(NETWORKS) for panel in panels)
    assert all(len(panel.find_elements(By.TAG_NAME, "polyline")) == 3 for panel in panels)
    assert texts(page, ".charts .legend li") == ["network:", "GAT", "GATv2", "SuperGAT"]


def test_what_is_less_accurate_than_the_best_by_five_points_is_faint(page: Chrome) -> None:
    rows = page.find_elements(By.CSS_SELECTOR, ".runs tbody tr")
    assert len(rows) == 18  # means over seeds
    faint = [row.text for row in rows if row.get_attribute("class") == "below"]
    assert len(faint) == 6
    assert all("network=SuperGAT" in text for text in faint)
    field(page, "Accuracy").select_by_visible_text("any")
    assert page.find_elements(By.CSS_SELECTOR, ".runs .below") == []
    field(page, "Accuracy").select_by_visible_text("within 5 points of the best")


def test_any_setting_is_a_colour(page: Chrome) -> None:
    for setting, values in (("dropout", DROPOUTS), ("weight_decay", DECAYS), ("network", NETWORKS)):
        field(page, "Colour by").select_by_visible_text(setting)
        assert set(keys_of(next(iter(charts(page).values())))) == {
            f"{value:g}" if isinstance(value, float) else value for value in values
        }


def test_names_are_short_and_a_click_opens_the_page_of_a_run(page: Chrome) -> None:
    first = page.find_element(By.CSS_SELECTOR, ".runs tbody th")
    assert first.text.startswith("network=GAT-weight_decay=0-dropout=0 seeds")
    address = page.current_url
    first.find_element(By.TAG_NAME, "button").click()
    assert page.find_element(By.TAG_NAME, "h1").text == "the run"
    page.get(address)


def test_labels_of_an_axis_do_not_overlap(page: Chrome) -> None:
    for width in (390, 1280):
        set_screen(page, width, 900)
        for setting in ("network", "weight_decay"):
            field(page, "Against").select_by_visible_text(setting)
            boxes = page.execute_script("""
                return [...document.querySelectorAll('.scatter')].map(chart => {
                  const labels = [...chart.querySelectorAll('text[text-anchor=middle]')].slice(0, -1);
                  return labels.map(label => label.getBoundingClientRect()).map(box => [box.left, box.right]);
                })""")
            for chart in boxes:
                for (_, right), (left, _) in itertools.pairwise(sorted(map(tuple, chart))):
                    assert right <= left


def test_the_keyboard_goes_from_point_to_point_and_opens_a_run(page: Chrome) -> None:
    chart = next(iter(charts(page).values()))
    points = chart.find_elements(By.CLASS_NAME, "point")
    assert [point.get_attribute("tabindex") for point in points].count("0") == 1
    page.execute_script("arguments[0].focus()", chart.find_element(By.CSS_SELECTOR, '.point[tabindex="0"]'))
    places = []
    for _ in range(len(points)):
        page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        places.append(float(page.switch_to.active_element.get_attribute("data-x") or "nan"))
    assert sorted(places) == sorted(float(point.get_attribute("data-x") or "nan") for point in points)  # each once
    address, results = page.current_url, three_keys()
    while page.switch_to.active_element.get_attribute("data-run") != results["run"][0]:
        page.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.find_element(By.TAG_NAME, "h1").text == "the run"
    page.get(address)


@pytest.mark.skipif(not AXE.exists(), reason=f"{AXE} not found: npm ci in web/")
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_axe_finds_nothing_serious(page: Chrome, width: int, theme: str) -> None:
    set_screen(page, width, 900, theme)
    page.refresh()
    page.execute_script(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 10
    serious = [rule for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in serious] == []


def test_on_a_phone_numbers_of_runs_are_seen_beside_their_names(page: Chrome) -> None:
    set_screen(page, 390, 844)
    page.refresh()
    cell = page.find_element(By.CSS_SELECTOR, ".runs tbody td:nth-of-type(2)")
    assert page.execute_script("return arguments[0].getBoundingClientRect().right", cell) <= 390


def test_networks_of_links_are_compared_by_their_auc(tmp_path: Path, page: Chrome) -> None:
    results = three_keys().rename(columns={"val/acc": "val/auc"})
    frontier = find_frontier(results, {"val/auc": "maximize", QUALITY: "maximize"})
    path = tmp_path / "links.html"
    path.write_text(sweep_page("grid", results, ["val/auc", QUALITY], frontier, {}, [], tmp_path), encoding="utf-8")
    address = page.current_url
    page.get(path.as_uri())
    titles = list(charts(page))
    assert titles[0] == "within targets, Pearson, edge deleted, against AUC"
    assert "AUC, against weight_decay where dropout is 0" in titles
    assert page.find_elements(By.CSS_SELECTOR, ".runs .below") != []  # below the floor of the best AUC
    page.get(address)
