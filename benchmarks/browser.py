"""A headless Chromium to look at pages with, and TensorBoard as a user starts it: for benchmarks and tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


def missing() -> str:
    """Why there is no browser, in words; empty if there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found: apt-get install chromium chromium-driver" if absent else ""


@contextmanager
def chromium(width: int = 1400, height: int = 1000, downloads: Path | None = None) -> Iterator[Chrome]:
    """Start Chromium with a profile of its own; both are gone afterwards.

    Args:
        width: Width of the window.
        height: Height of the window.
        downloads: Folder that saved files go to.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if downloads is not None:
            options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def set_screen(driver: Chrome, width: int, height: int, theme: str = "light") -> None:
    """Give the page a screen of this size, in light or dark."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def tensorboard_command(logdir: Path, seconds: float = 120.0) -> Iterator[str]:
    """Run `tensorboard --logdir`, which finds the tab by the package's entry point; gives its address.

    Args:
        logdir: The log folder.
        seconds: How long it may take to start.
    """
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0"]
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + seconds
            address = None
            while address is None and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.1)
                said.seek(0)
                address = re.search(r"http://\S+?:(\d+)/", said.read())
            if address is None:
                said.seek(0)
                raise RuntimeError(f"TensorBoard did not start: {said.read()}")
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            process.terminate()
            process.wait()


def wait_until_read(address: str, runs: int = 1, seconds: float = 120.0) -> None:
    """Wait until TensorBoard has read so many runs with explanations."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len(json.loads(urlopen(f"{address}/data/plugin/attree/runs").read())["runs"]) >= runs:
            return
        time.sleep(0.2)
    raise RuntimeError(f"TensorBoard has not read {runs} runs with explanations")
