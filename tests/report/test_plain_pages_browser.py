"""Pages without scripts (a sweep's, the paper's) in a browser: narrow, dark, accessible, and deaf to what names say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from attree.paper.report_items import Picture, Report, Table
from attree.paper.run import write_report, write_summary
from attree.report.style import new_figure
from attree.sweep.page import sweep_page
from attree.sweep.results import find_frontier
from browser import chromium, missing, set_screen
from helpers.explained import IMAGE, SCRIPT

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
QUALITY = "explain/gatt/removal/faithfulness"
ODD = f"{IMAGE}{SCRIPT}\"'&amp;"
"""A name with everything that a careless page would run."""


def write_sweep(folder: Path) -> Path:
    """A sweep whose names, settings, runs and metrics are all odd."""
    own_metric = f"explain/{ODD}/removal/faithfulness"
    results = pd.DataFrame(
        {
            "sweep": ODD,
            "setting": [f"{number:03d}" for number in range(8)],
            ODD: [f"{ODD}{number}" for number in range(8)],
            "seed": 0,
            "run": [f"{ODD.replace('/', '')}{number}" for number in range(8)],
            "val/acc": [0.9 - 0.05 * number for number in range(8)],
            QUALITY: [0.1 * number for number in range(8)],
            own_metric: [float("nan")] * 8,
        }
    )
    own = folder / "sweep"
    (own / str(results["run"][0])).mkdir(parents=True)
    figure = new_figure(9, 2, ODD)
    figure.savefig(own / "heat_map.svg")
    frontier = find_frontier(results, {"val/acc": "maximize", QUALITY: "maximize"})
    importance = {ODD: {"val/acc": {ODD: 1.0}, QUALITY: {ODD: 0.5}}}
    metrics = ["val/acc", QUALITY, own_metric]
    page = own / "page.html"
    page.write_text(
        sweep_page(ODD, results, metrics, frontier, importance, [own / "heat_map.png"], own), encoding="utf-8"
    )
    return page


def paper_report() -> Report:
    """A report with a wide table, cells of all colours and a figure."""
    rows = pd.DataFrame(
        [
            {"dataset": dataset, "method": f"{ODD}{number}", "ours": 0.5, "paper": 0.5 + 0.035 * number}
            for dataset in ("Cora", ODD)
            for number in range(9)
        ]
    )
    rows["difference"] = rows["ours"] - rows["paper"]
    rows["slip"] = [ODD, *[float("nan")] * 17]
    table = Table("one", f"Table {ODD}", rows, ("dataset",), ("method",), notes=(ODD,))
    again = Table("two", "Numbers alone", rows, ("dataset",), ("method",), csv_only=True)
    return Report("report", f"Faithfulness {ODD}", [table, again, Picture("drawn", ODD, new_figure(9, 2))], [ODD, ODD])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plain")
    report = paper_report()
    return {
        "sweep": write_sweep(folder),
        "report": write_report(report, folder),
        "summary": write_summary([report], folder),
    }


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture(params=["sweep", "report", "summary"])
def page(driver: Chrome, pages: dict[str, Path], request: pytest.FixtureRequest) -> Chrome:
    driver.get_log("browser")
    driver.get(pages[request.param].as_uri())
    return driver


@pytest.mark.skipif(not AXE.exists(), reason=f"{AXE} not found: npm ci in web/")
@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(page: Chrome, width: int, theme: str) -> None:
    set_screen(page, width, 900, theme)
    page.execute_script(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 10
    serious = [rule for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in serious] == []


def test_names_are_shown_and_never_run(page: Chrome) -> None:
    assert ODD in page.find_element(By.TAG_NAME, "body").text
    scripts = page.find_elements(By.TAG_NAME, "script")  # the page of a sweep has its runs, and what draws them
    assert [script.get_attribute("type") for script in scripts] in ([], ["application/json", "module"])
    sources = [image.get_attribute("src") for image in page.find_elements(By.TAG_NAME, "img")]
    assert all(source.startswith("data:image/svg+xml") or source.endswith("/drawn.png") for source in sources)
    assert page.get_log("browser") == []


def test_narrow_screens_scroll_one_way_only_and_tables_keep_their_first_column(page: Chrome) -> None:
    set_screen(page, 390, 800)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    for scroller in page.find_elements(By.CLASS_NAME, "scroll"):
        left = "return arguments[0].querySelector('tbody th').getBoundingClientRect().left"
        before = page.execute_script(left, scroller)
        page.execute_script("arguments[0].scrollLeft = 200", scroller)
        assert page.execute_script(left, scroller) == pytest.approx(before, abs=1)


def test_dark_pages_are_dark(page: Chrome) -> None:
    color = "return getComputedStyle(document.body).backgroundColor"
    set_screen(page, 1400, 900, "light")
    light = page.execute_script(color)
    set_screen(page, 1400, 900, "dark")
    assert (light, page.execute_script(color)) == ("rgb(255, 255, 255)", "rgb(22, 24, 28)")


def test_contents_lead_to_every_part(driver: Chrome, pages: dict[str, Path]) -> None:
    for name in ("sweep", "report"):
        driver.get(pages[name].as_uri())
        links = driver.find_elements(By.CSS_SELECTOR, "nav a")
        assert len(links) >= 3
        headings = [heading.text for heading in driver.find_elements(By.TAG_NAME, "h2")]
        assert [link.text for link in links] == headings
        for link, heading in zip(links, headings, strict=True):
            place = link.get_attribute("href").rpartition("#")[2]
            assert driver.find_element(By.ID, place).text == heading


def test_a_slip_in_print_is_explained_without_a_mouse(driver: Chrome, pages: dict[str, Path]) -> None:
    driver.get(pages["report"].as_uri())
    details = driver.find_element(By.TAG_NAME, "details")
    details.find_element(By.TAG_NAME, "summary").click()
    assert ODD in details.find_element(By.TAG_NAME, "li").text
