"""Pictures of TensorBoard for the docs: the tab "Explanations" and the Custom Scalars page, as a user sees them.

    make demo && python benchmarks/tensorboard_screenshots.py [--logdir logs] [--out docs/images]

TensorBoard is started by its command, and finds the tab by the package's entry point.
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


def take_tab(driver: Chrome, address: str, path: Path, theme: str = "light") -> None:
    """The tab among TensorBoard's own: runs compared, and the last run below."""
    set_screen(driver, 1440, 1250, theme)
    driver.get("about:blank")
    driver.get(f"{address}/{'?darkMode=true' if theme == 'dark' else ''}#attree")
    frame = WebDriverWait(driver, SECONDS).until(lambda _: driver.find_element(By.CSS_SELECTOR, "iframe"))
    driver.switch_to.frame(frame)
    WebDriverWait(driver, SECONDS).until(lambda _: driver.find_elements(By.CSS_SELECTOR, ".run .curve, .empty"))
    time.sleep(1.0)
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
    parser.add_argument("--logdir", type=Path, default=Path("logs"), help="log folder of finished runs")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the pictures go")
    arguments = parser.parse_args()
    with tensorboard_command(arguments.logdir) as address, chromium() as driver:
        wait_until_read(address)
        take_tab(driver, address, arguments.out / "tab.png")
        take_tab(driver, address, arguments.out / "tab_dark.png", "dark")
        take_custom_scalars(driver, address, arguments.out / "tensorboard.png")


if __name__ == "__main__":
    main()
