"""Pictures of every page in light and dark, 1280 and 390 pixels wide, in full length, to be looked at.

    python benchmarks/screenshots.py [--out screenshots] [--only pages,extremes,sweep,tab,readme] [--data data]

`pages` are those of page_screenshots.py; `extremes` pages of graphs that are hard to show: one node, no edges, more
than 5,000 edges, 40 classes, long names, names with markup; `sweep` the page of a sweep over three settings with
invented numbers; `tab` TensorBoard's tab with 1, 12 and 200 runs; `readme` the README. A grey line in a picture ends
the first screen: 720 pixels, or 844 where the page is 390 wide.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import markdown
import pandas as pd
import torch
from selenium.webdriver import Chrome
from torch_geometric.data import Data

import attree
from attree.models import GAT
from attree.sweep.page import sweep_page
from attree.sweep.results import find_frontier
from browser import chromium, set_screen, tensorboard_command, wait_until_read
from page_screenshots import hub_page, make_page, molecule_page, types_page
from tab import write_runs
from tensorboard_screenshots import wait_for_tab

REPO = Path(__file__).parents[1]
SCREENS = {1280: 720, 390: 844}
"""Width and height of a first screen."""
FOLD = """
const line = document.createElement("div");
line.style.cssText = `position:absolute;left:0;right:0;top:${arguments[0]}px;height:1px;background:#888;z-index:99`;
document.body.append(line);
return document.documentElement.scrollHeight;
"""
QUALITY = "explain/gatt/removal/within_pearson"
README_STYLE = """body {max-width: 55rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 sans-serif; color: #1f2328}
pre {background: #f6f8fa; padding: 1rem; overflow: auto; font-size: 85%} table {border-collapse: collapse}
td, th {border: 1px solid #d1d9e0; padding: 0.3rem 0.8rem} img {max-width: 100%}"""


def take(driver: Chrome, address: str, out: Path, name: str, ready: Callable[[Chrome], None] = lambda _: None) -> None:
    """Pictures of one page in each width and theme."""
    for width, theme in itertools.product(SCREENS, ("light", "dark")):
        height = SCREENS[width]
        set_screen(driver, width, height, theme)
        driver.get("about:blank")
        driver.get(address)
        ready(driver)
        length = min(int(driver.execute_script(FOLD, height)), 6000)
        clip = {"x": 0, "y": 0, "width": width, "height": max(length, height), "scale": 1}
        taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        path = out / f"{name}_{width}_{theme}.png"
        path.write_bytes(base64.b64decode(taken["data"]))
        print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def extremes() -> Iterator[tuple[str, Data]]:
    """Graphs that are hard to show."""
    generator = torch.Generator().manual_seed(0)

    def graph(nodes: int, edges: int, classes: int, names: list[str] | None = None) -> Data:
        edge_index = torch.randint(0, nodes, (2, edges), generator=generator)
        edge_index = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)
        data = Data(x=torch.randn(nodes, 6, generator=generator), edge_index=edge_index)
        data.y = torch.arange(nodes) % classes
        if names is not None:
            data.node_names = [f"{names[node % len(names)]} {node}" for node in range(nodes)]
        return data

    yield "one_node", graph(1, 0, 1)
    yield "no_edges", graph(30, 0, 3)
    yield "many_edges", graph(150, 6000, 3)
    many = graph(200, 700, 40)
    many.class_names = [f"class number {number}" for number in range(40)]
    yield "many_classes", many
    long = graph(40, 120, 3, ["A paper whose title goes on and on until it has reached eighty characters or so, in"])
    long.class_names = [
        f"{name} learning of representations in graphs that are large" for name in ("Deep", "Fast", "Few")
    ]
    yield "long_names", long
    markup = graph(40, 120, 3, ["<b>bold</b> & <script>alert(1)</script>", '"quoted" <img src=x onerror=alert(2)>'])
    markup.class_names = ["<i>one</i>", "two & three", "</script>"]
    yield "markup", markup


def extreme_page(graph: Data, path: Path) -> Path:
    """The page of an untrained network on a graph."""
    torch.manual_seed(0)
    net = GAT(6, max(2, int(graph.y.max()) + 1), num_layers=2)
    return attree.evaluate(net, graph, num_targets=12).page(path)


def three_settings(folder: Path) -> Path:
    """The page of a sweep: networks, weight decays, dropouts and two seeds."""
    draw, rows = random.Random(0), []
    for network, decay, dropout, seed in itertools.product(
        ("GAT", "GATv2", "SuperGAT"), (0.0, 1e-4, 1e-3, 1e-2), (0.0, 0.3, 0.6), (0, 1)
    ):
        settings = {"network": f"attree.models.{network}", "weight_decay": decay, "dropout": dropout}
        name = f"grid-network={network}-weight_decay={decay:g}-dropout={dropout:g}-seed={seed}"
        accuracy = 0.8 - 6 * decay + 0.05 * dropout + draw.gauss(0, 0.01) - (0.05 if network == "SuperGAT" else 0)
        quality = 0.3 + 20 * decay + 0.1 * dropout + draw.gauss(0, 0.02)
        setting = f"{network} {decay:g} {dropout:g}"
        rows.append(
            {
                "sweep": "grid",
                "setting": setting,
                **settings,
                "seed": seed,
                "run": name,
                "val/acc": accuracy,
                QUALITY: quality,
            }
        )
    results = pd.DataFrame(rows)
    frontier = find_frontier(results, {"val/acc": "maximize", QUALITY: "maximize"})
    path = folder / "sweep.html"
    path.write_text(sweep_page("grid", results, ["val/acc", QUALITY], frontier, {}, [], folder), encoding="utf-8")
    return path


def readme(folder: Path) -> Path:
    """The README as a page, with pictures from the repository."""
    text = (REPO / "README.md").read_text(encoding="utf-8").replace("docs/images/", f"{REPO.as_uri()}/docs/images/")
    body = markdown.markdown(text, extensions=["fenced_code", "tables"])
    path = folder / "readme.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><style>{README_STYLE}</style>{body}", encoding="utf-8")
    return path


@contextmanager
def tab_of(runs: int) -> Iterator[str]:
    """TensorBoard on the event files of so many runs; gives its address."""
    with tempfile.TemporaryDirectory() as logs:
        write_runs(Path(logs), runs)
        with tensorboard_command(Path(logs)) as address:
            wait_until_read(address, runs, seconds=600)
            yield address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="where the pictures go")
    parser.add_argument("--only", default="pages,extremes,sweep,tab,readme", help="which pages")
    parser.add_argument("--data", default="data", help="data folder")
    arguments = parser.parse_args()
    out, parts = arguments.out, arguments.only.split(",")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, chromium() as driver:
        folder = Path(place)
        if "extremes" in parts:
            for name, graph in extremes():
                take(driver, extreme_page(graph, folder / f"{name}.html").as_uri(), out, name)
        if "sweep" in parts:
            take(driver, three_settings(folder).as_uri(), out, "sweep")
        if "readme" in parts:
            take(driver, readme(folder).as_uri(), out, "readme")
        if "pages" in parts:
            infection = make_page(folder / "infection.html").as_uri()
            take(driver, infection, out, "infection")
            take(driver, f"{infection}#view=tree&edge=0", out, "tree")
            take(driver, hub_page(folder / "hub.html").as_uri(), out, "hub")
            take(driver, molecule_page(folder / "molecule.html", arguments.data).as_uri(), out, "molecule")
            take(driver, types_page(folder / "types.html").as_uri(), out, "types")
        if "tab" in parts:
            for runs in (1, 12, 200):
                with tab_of(runs) as address:
                    take(driver, f"{address}/data/plugin_entry.html?name=attree", out, f"tab_{runs}", wait_for_tab)


if __name__ == "__main__":
    main()
