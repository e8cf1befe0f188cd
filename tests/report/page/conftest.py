"""One browser for all tests of the page, and the page that most of them open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attree.report.page import write_page
from helpers.explained import ExplainedModel, explained_model

if TYPE_CHECKING:  # where selenium is absent, tests without a browser run all the same
    from selenium.webdriver import Chrome


@pytest.fixture(scope="session")
def model() -> ExplainedModel:
    return explained_model()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="session")
def driver(folder: Path) -> Iterator[Chrome]:
    from browser import chromium

    with chromium(downloads=folder) as driver:
        yield driver


@pytest.fixture
def page(driver: Chrome, model: ExplainedModel, folder: Path) -> Iterator[Chrome]:
    """The page, freshly opened from disk on node n7; afterwards nothing may have complained."""
    from browser import set_screen

    path = folder / "page.html"
    if not path.exists():
        write_page(path, model.evaluation, **model.options)
    set_screen(driver, 1400, 1000)
    driver.get("about:blank")
    driver.get(f"{path.as_uri()}#target=7")
    yield driver
    assert driver.get_log("browser") == []
