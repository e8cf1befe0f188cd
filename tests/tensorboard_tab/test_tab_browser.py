"""The tab inside TensorBoard, in a browser: on fits, on a sweep, on old runs, on nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait
from torch.utils.tensorboard import SummaryWriter

from attree.report.page import write_page
from browser import chromium, missing, set_screen, tensorboard_command, wait_until_read
from helpers.explained import IMAGE, SCRIPT, explained_model
from helpers.logdirs import tensorboard, write_run

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
ENTRY = "data/plugin_entry.html?name=attree"
DECAYS = (0.0, 0.001, 0.01)


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A sweep of three settings and two seeds, one run of it with a page, and an old run with other settings."""
    root = tmp_path_factory.mktemp("logs")
    for number, decay in enumerate(DECAYS):
        for seed in range(2):
            write_run(root / f"sweep/{number}_{seed}", decay, seed)
    model = explained_model()
    write_page(root / "sweep/2_1/page.html", model.evaluation, **model.options)
    old = write_page(root / "old/page.html", model.evaluation, **model.options)
    steps = root / "sweep/2_1/explanations/steps"
    steps.mkdir(parents=True)
    (data,) = re.findall(r'id="attree-data">(.*?)</script>', old.read_text(), re.DOTALL)
    content = json.loads(data)
    (steps / "10.json").write_text(json.dumps({**content, "title": "Early"}))
    # A page of before: none of what came later is in it.
    for name in ("groups", "verdict"):
        content.pop(name, None)
    for target in content["targets"]:
        target.pop("group", None)
    old.write_text(old.read_text().replace(data, json.dumps(content).replace("<", "\\u003c").replace(">", "\\u003e")))
    write_run(root / "old", 0.5, 0, settings=False)
    with tensorboard_command(root) as address:
        wait_until_read(address, runs=7)
        yield address, root


def wait(driver: Chrome, selector: str) -> WebElement:
    found: WebElement = WebDriverWait(driver, 60).until(
        lambda _: next(iter(driver.find_elements(By.CSS_SELECTOR, selector)), None)
    )
    return found


def open_tab(driver: Chrome, address: str) -> None:
    set_screen(driver, 1400, 1000)
    driver.get("about:blank")
    driver.get(f"{address}/{ENTRY}")


def field(driver: Chrome, label: str) -> Select:
    return Select(driver.find_element(By.XPATH, f"//label[span[text()='{label}']]/select"))


def serious(driver: Chrome) -> list[Any]:
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = driver.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 15
    bad = [rule for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
    return [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in bad]


def test_tensorboard_shows_the_tab_among_its_own(driver: Chrome, sweep: tuple[str, Path]) -> None:
    set_screen(driver, 1400, 1000)
    driver.get(f"{sweep[0]}/#attree")
    frame = wait(driver, "iframe")
    WebDriverWait(driver, 60).until(lambda _: "name=attree" in (frame.get_attribute("src") or ""))
    driver.switch_to.frame(frame)
    assert wait(driver, "h1").text == "How well attention explains"
    wait(driver, ".scatter")
    driver.switch_to.default_content()


def charts_by_title(driver: Chrome) -> dict[str, WebElement]:
    """The charts by what their titles say before the note."""
    charts = driver.find_elements(By.CSS_SELECTOR, ".scatter")
    return {chart.find_element(By.TAG_NAME, "svg").get_attribute("aria-label").split(":")[0]: chart for chart in charts}


def points_of(chart: WebElement, key: str) -> list[WebElement]:
    return chart.find_elements(By.CSS_SELECTOR, f'.point[data-key="{key}"]')


def test_runs_are_compared_and_a_click_opens_one(driver: Chrome, sweep: tuple[str, Path]) -> None:
    open_tab(driver, sweep[0])
    wait(driver, ".scatter .point")
    assert "7 runs with explanations" in driver.find_element(By.CSS_SELECTOR, "header .about").text
    charts = charts_by_title(driver)
    assert list(charts) == [
        "ground truth, AUROC, against accuracy",
        "ground truth, AUROC, against weight_decay",
        "accuracy, against weight_decay",
    ]
    over = charts["ground truth, AUROC, against weight_decay"]
    assert len(points_of(over, "gatt")) == 6  # the old run knows no setting
    fills = {
        method: {
            mark.get_attribute("fill") for mark in over.find_elements(By.CSS_SELECTOR, f'[data-key="{method}"] > *')
        }
        for method in ("gatt", "avgatt")
    }
    fills = {method: {fill for fill in marks if fill} for method, marks in fills.items()}
    assert all(len(marks) == 1 for marks in fills.values())
    assert fills["gatt"] != fills["avgatt"]
    point = charts["ground truth, AUROC, against accuracy"].find_element(
        By.CSS_SELECTOR, '.point[data-run="sweep/2_1"]'
    )
    driver.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", point)
    wait(driver, ".run .explorer")
    assert driver.find_element(By.CSS_SELECTOR, ".run > h2").text == "sweep/2_1"
    assert len(driver.find_elements(By.CSS_SELECTOR, ".run .curve")) >= 2
    assert driver.find_element(By.CSS_SELECTOR, ".run h1").text == f"A page {IMAGE}"
    field(driver, "Explanations").select_by_visible_text("at step 10")
    WebDriverWait(driver, 30).until(
        lambda _: [h.text for h in driver.find_elements(By.CSS_SELECTOR, ".run h1")] == ["Early"]
    )
    assert driver.find_elements(By.TAG_NAME, "img") == []
    said = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in said if "favicon.ico" not in message] == []


def test_the_statistic_of_the_headline_is_compared_first(driver: Chrome, tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"run_{seed}", 0.0, seed)
        with SummaryWriter(str(tmp_path / f"run_{seed}")) as writer:
            writer.add_scalar("explain/gatt/removal/within_pearson", 0.5, 20)
    with tensorboard_command(tmp_path) as address:
        open_tab(driver, address)
        wait(driver, ".scatter .point")
        assert next(iter(charts_by_title(driver))).startswith("within targets, Pearson")


def test_one_method_is_coloured_by_a_setting_and_the_front_is_of_accurate_runs(
    driver: Chrome, sweep: tuple[str, Path]
) -> None:
    open_tab(driver, sweep[0])
    wait(driver, ".scatter .point")
    field(driver, "Colour by").select_by_visible_text("weight_decay")
    assert field(driver, "Method").first_selected_option.text == "GAtt"
    trade = charts_by_title(driver)["ground truth, AUROC, against accuracy"]
    for decay in DECAYS:
        assert len(points_of(trade, f"{decay:g}")) == 2
    assert driver.find_element(By.CSS_SELECTOR, ".charts .legend").text.split("\n")[0] == "weight_decay:"

    def front() -> list[tuple[float, ...]]:
        (line,) = charts_by_title(driver)["ground truth, AUROC, against accuracy"].find_elements(
            By.CSS_SELECTOR, "polyline"
        )
        return [tuple(map(float, point.split(","))) for point in (line.get_attribute("points") or "").split()]

    # Accuracy falls by a tenth from the lowest to the highest weight decay, and GAtt's quality rises. The lower two are
    # within five points of the best accuracy, and no run is better in both.
    assert len(front()) == 2
    assert len(driver.find_elements(By.CSS_SELECTOR, ".runs .below")) == 3  # two runs, and the old one
    field(driver, "Accuracy").select_by_visible_text("any")
    xs, ys = zip(*front(), strict=True)
    assert len(xs) == 4  # the old run has the highest quality of all
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)  # lower on the screen is worse
    assert driver.find_elements(By.CSS_SELECTOR, ".runs .below") == []
    field(driver, "Method").select_by_visible_text("all methods")
    assert field(driver, "Colour by").first_selected_option.text == "method"


def test_means_over_seeds_are_one_point_for_a_setting(driver: Chrome, sweep: tuple[str, Path]) -> None:
    open_tab(driver, sweep[0])
    wait(driver, ".scatter .point")
    driver.find_element(By.XPATH, "//label[text()='means over seeds']/input").click()
    rows = driver.find_elements(By.CSS_SELECTOR, ".runs tbody tr")
    assert len(rows) == 4
    first = next(row for row in rows if row.get_attribute("data-run") == "sweep/0_0")
    accuracy = first.find_elements(By.TAG_NAME, "td")[0].text
    assert float(accuracy) == pytest.approx((0.9 + 0.91) / 2, abs=6e-5)
    assert [button.text for button in first.find_elements(By.CSS_SELECTOR, "th button")] == ["0", "1"]


def test_what_the_server_refuses_is_said_in_its_words(driver: Chrome, sweep: tuple[str, Path]) -> None:
    open_tab(driver, sweep[0])
    wait(driver, ".runs tbody tr")
    driver.execute_script(
        "const f = window.fetch; window.fetch = (url) => f(String(url).replace('run=old', 'run=gone'))"
    )
    driver.find_element(By.XPATH, "//button[@title='old']").click()
    text = wait(driver, ".run .wrong").text
    assert text.startswith("Its curves could not be read: ")
    assert "Expected `run` to be a run of this log folder, but it is not." in text


def test_the_table_sorts_finds_and_says_what_is_undefined(driver: Chrome, sweep: tuple[str, Path]) -> None:
    open_tab(driver, sweep[0])
    wait(driver, ".runs tbody tr")
    driver.find_element(By.XPATH, "//thead//button[text()='accuracy']").click()
    column = [
        row.find_elements(By.TAG_NAME, "td")[0].text for row in driver.find_elements(By.CSS_SELECTOR, ".runs tbody tr")
    ]
    values = [float(text.replace("−", "-")) for text in column]
    assert values == sorted(values, reverse=True)
    driver.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("2_")
    assert len(driver.find_elements(By.CSS_SELECTOR, ".runs tbody tr")) == 2
    field(driver, "Quality").select_by_visible_text("faithfulness (mean), edge deleted")
    cells = [cell.text for cell in driver.find_elements(By.CSS_SELECTOR, ".runs tbody tr:first-child td")]
    assert cells[1] == "0.4000"
    assert cells[2] == "undefined"


def test_an_old_run_opens_and_one_without_a_page_says_how_to_get_one(driver: Chrome, sweep: tuple[str, Path]) -> None:
    open_tab(driver, sweep[0])
    wait(driver, ".runs tbody tr")
    driver.find_element(By.XPATH, "//button[@title='old']").click()
    wait(driver, ".run .explorer .stage")
    assert SCRIPT in driver.find_element(By.CSS_SELECTOR, ".run .facts").text
    driver.find_element(By.XPATH, "//button[@title='sweep/0_0']").click()
    WebDriverWait(driver, 30).until(
        lambda _: f"attree explain {sweep[1]}/sweep/0_0" in driver.find_element(By.CSS_SELECTOR, ".run").text
    )


def test_nothing_to_show_says_what_to_do(driver: Chrome, tmp_path: Path) -> None:
    with tensorboard(tmp_path) as address:
        open_tab(driver, address)
        text = wait(driver, ".empty").text
        assert "attree fit --config infection" in text
        assert str(tmp_path) in text
        assert not AXE.exists() or serious(driver) == []
        write_run(tmp_path / "first", 0.0, 0)


@pytest.mark.skipif(not AXE.exists(), reason=f"{AXE} not found: npm ci in web/")
@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (1400, "dark"), (390, "light")])
def test_axe_finds_nothing_serious_in_the_tab(driver: Chrome, sweep: tuple[str, Path], width: int, theme: str) -> None:
    open_tab(driver, sweep[0])
    set_screen(driver, width, 900, theme)
    wait(driver, ".runs tbody tr")
    WebDriverWait(driver, 20).until(
        lambda _: driver.find_element(By.CSS_SELECTOR, ".tab").get_attribute("data-theme") == theme
    )
    driver.find_element(By.XPATH, "//button[@title='sweep/2_1']").click()
    wait(driver, ".run .explorer .stage")
    assert serious(driver) == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
