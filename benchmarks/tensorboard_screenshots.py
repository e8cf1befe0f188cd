"""Pictures of TensorBoard for the docs: the tab "Explanations" and the Custom Scalars page, as a user sees them.

    make demo && attree sweep small_grid && python benchmarks/tensorboard_screenshots.py [--out docs/images]

The Custom Scalars page is that of `logs/infection`, the tab that of `logs/sweeps/small_grid`. TensorBoard is started by
its command, and finds the tab by the package's entry point.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import chromium, set_screen, tensorboard_command, wait_until_read

SECONDS = 120


def wait_for_tab(driver: Chrome) -> None:
    """Wait until the tab has drawn its runs."""
    WebDriverWait(driver, SECONDS).until(lambda _: driver.find_elements(By.CSS_SELECTOR, ".run .curve, .empty"))
    time.sleep(1.0)


def take_tab(driver: Chrome, address: str, path: Path, theme: str = "light") -> None:
    """The tab among TensorBoard's own: runs compared, and the last run below."""
    set_screen(driver, 1440, 1250, theme)
    driver.get("about:blank")
    driver.get(f"{address}/{'?darkMode=true' if theme == 'dark' else ''}#attree")
    frame = WebDriverWait(driver, SECONDS).until(lambda _: driver.find_element(By.CSS_SELECTOR, "iframe"))
    driver.switch_to.frame(frame)
    wait_for_tab(driver)
    driver.switch_to.default_content()
    driver.save_screenshot(str(path))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def take_custom_scalars(driver: Chrome, address: str, path: Path) -> None:
    """The first charts of the Custom Scalars page: accuracy beside all methods."""
    set_screen(driver, 1440, 900)
    driver.get("about:blank")
    driver.get(f"{address}/#custom_scalars")
    time.sleep(8.0)  # its charts are inside shadow roots, and draw themselves one after the other
    driver.save_screenshot(str(path))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=Path("logs"), help="folder of the finished runs")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the pictures go")
    parser.add_argument("--only", default="tab,scalars", help="which pictures")
    arguments = parser.parse_args()
    picture_names, logs, out = arguments.only.split(","), arguments.logs, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with chromium() as driver:
        if "tab" in picture_names:
            with tensorboard_command(logs / "sweeps" / "small_grid") as address:
                wait_until_read(address, runs=12)
                take_tab(driver, address, out / "tab.png")
                take_tab(driver, address, out / "tab_dark.png", "dark")
        if "scalars" in picture_names:
            with tensorboard_command(logs / "infection") as address:
                wait_until_read(address)
                take_custom_scalars(driver, address, out / "tensorboard.png")


if __name__ == "__main__":
    main()
