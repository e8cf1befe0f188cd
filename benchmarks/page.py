"""How fast the page is: its size, the time to write it, to open it, and to go from target to target.

    python benchmarks/page.py [--data data] [--targets 200] [--layers 2,3]

The page is of a GAT on Cora as it is initialised: times do not depend on the weights. It opens in headless Chromium,
from disk. Opening takes from the start of the navigation until the explorer has been drawn on screen; a change of
target from the press of a button until the next frame has been drawn. A page with neighbourhoods of up to 2,000 edges,
all of them on screen, comes last.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from selenium.webdriver import Chrome

from attree.attention import capture_attention
from attree.data import Planetoid
from attree.evaluation import evaluate
from attree.models import GAT
from attree.report.page import write_page
from browser import chromium

OPENED = """
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
"""
CHANGED = """
const [count, all, done] = arguments;
const next = document.querySelector('[aria-label="Next target"]');
const filter = document.querySelector("input[type=range]");
if (all) {
  filter.value = filter.max;
  filter.dispatchEvent(new Event("input"));
}
const times = [];
let most = 0;
function change() {
  const start = performance.now();
  next.click();
  // The first frame after the change is over when the task behind it runs.
  requestAnimationFrame(() => setTimeout(() => {
    times.push(performance.now() - start);
    most = Math.max(most, document.querySelectorAll(".picture svg path").length);
    if (times.length < count) setTimeout(change);
    else done([times, most]);
  }));
}
change();
"""


def make_page(path: Path, root: str, num_layers: int, count: int, max_edges: int) -> tuple[float, int]:
    """Write the page; the seconds that takes, and how many edges are on it."""
    data = Planetoid(name="Cora", root=root)
    torch.manual_seed(0)
    net = GAT(data.num_features, data.num_classes, num_layers=num_layers).eval()
    result = evaluate(net, data.graph, num_targets=count)
    attention = capture_attention(net, data.graph.x, data.graph.edge_index)
    targets = result.targets
    predictions = attention.output.softmax(-1)[targets]
    true_classes = data.graph.y[targets]
    start = time.perf_counter()
    write_page(
        path,
        result,
        attention=attention,
        predictions=predictions,
        true_classes=true_classes,
        max_targets=count,
        max_edges=max_edges,
    )
    return time.perf_counter() - start, int(result.pairs.ptr.diff().clamp(max=max_edges).sum())


def opened(driver: Chrome, path: Path, repeats: int) -> list[float]:
    """Milliseconds from the start of the navigation until the page is drawn, each time."""
    times = []
    for _ in range(repeats):
        driver.get("about:blank")
        driver.get(path.as_uri())
        times.append(float(driver.execute_async_script(OPENED)))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder")
    parser.add_argument("--targets", type=int, default=200, help="targets on the page")
    parser.add_argument("--layers", default="2,3", help="depths of the network")
    parser.add_argument("--repeats", type=int, default=5, help="times to open each page")
    arguments = parser.parse_args()
    table = Table(title=f"The page of {arguments.targets} Cora targets")
    for column in (
        "layers",
        "edges",
        "MB",
        "written, s",
        "opened, ms",
        "target changed, ms",
        "slowest, ms",
        "most edges drawn",
    ):
        table.add_column(column, justify="right")
    depths = [int(depth) for depth in arguments.layers.split(",")]
    cases = [(depth, 1000, False) for depth in depths] + [(max(depths), 2000, True)]
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        driver.set_script_timeout(300)
        for depth, max_edges, all_shown in cases:
            path = Path(folder, f"{depth}_{max_edges}.html")
            seconds, edges = make_page(path, arguments.data, depth, arguments.targets, max_edges)
            opening = opened(driver, path, arguments.repeats)
            times, drawn = driver.execute_async_script(CHANGED, arguments.targets, all_shown)
            table.add_row(
                f"{depth}, all edges shown" if all_shown else str(depth),
                f"{edges:,}",
                f"{path.stat().st_size / 2**20:.1f}",
                f"{seconds:.1f}",
                f"{statistics.median(opening):.0f}",
                f"{statistics.median(times):.0f}",
                f"{max(times):.0f}",
                f"{drawn:,}",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
