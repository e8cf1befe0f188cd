"""TensorBoard on sweeps of 12, 60 and 200 runs: the page that opens first shows every curve without a click."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("selenium", reason="the browser tests drive Chromium with selenium: pip install '.[dev]'")

from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import WebDriverWait
from torch.utils.tensorboard import SummaryWriter

from attree.callbacks.tensorboard import RUNS_BESIDE, TensorBoardWriter
from attree.faithfulness import PROTOCOLS
from browser import chromium, missing, set_screen, tensorboard_command, wait_until_read
from helpers.logdirs import METHODS, write_run

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]

TICKED = "return document.querySelectorAll('runs-data-table .mat-mdc-checkbox-checked').length"
ROWS_OF_CHARTS = """return [...document.querySelectorAll('scalar-card')].slice(0, 2)
    .map(card => card.querySelectorAll('tb-data-table-content-row').length)"""
MATCHES = """const texts = [];
const walk = root => root.querySelectorAll('*').forEach(element => {
    if (element.shadowRoot) walk(element.shadowRoot);
    if (element.classList.contains('matches-text')) texts.push(element.textContent.trim());
});
walk(document);
return texts"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


def write_sweep(root: Path, number: int) -> None:
    """The event files that the runs of a sweep leave: curves, hyperparameters, and the layout of charts."""
    evaluator: Any = SimpleNamespace(truth=True, protocols=[PROTOCOLS["removal"]], methods=dict.fromkeys(METHODS))
    for run in range(number):
        write_run(root / f"decay={run // 3}-seed={run % 3}", decay=0.01 * (run // 3) / number, seed=run % 3)
        with SummaryWriter(str(root / f"decay={run // 3}-seed={run % 3}")) as writer:
            TensorBoardWriter(writer).write_layout(evaluator, ["val/acc"])


@pytest.mark.parametrize("number", [12, 60, 200])
def test_all_curves_of_a_sweep_are_shown_without_a_click(
    driver: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv(RUNS_BESIDE, str(number + 1))
    write_sweep(tmp_path, number)
    set_screen(driver, 1400, 1000)
    with tensorboard_command(tmp_path) as address:
        wait_until_read(address, runs=number)
        driver.get("about:blank")
        driver.get(address)
        waiting = WebDriverWait(driver, 120)
        # Under each chart is a table with a row for each curve that it draws. Above the runs is a box for all.
        waiting.until(lambda _: driver.execute_script(ROWS_OF_CHARTS) == [number, number])
        assert driver.current_url.endswith("#timeseries")
        assert driver.execute_script(TICKED) == number + 1
        # The page of chosen charts ticks no run above 40. It is there if it is not blank.
        if number < 40:
            driver.get(f"{address}/#custom_scalars")
            driver.refresh()
            methods = f"Matches ({number * len(METHODS)})"
            waiting.until(lambda _: methods in driver.execute_script(MATCHES))
        else:
            pages = json.loads(urlopen(f"{address}/data/plugins_listing").read())
            assert pages["attree"]["enabled"]
            assert not pages["custom_scalars"]["enabled"]
