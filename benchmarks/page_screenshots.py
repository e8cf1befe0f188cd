"""Pictures of the page for the docs: light, dark with the computation tree, on a phone, a hub, a molecule, types.

    python benchmarks/page_screenshots.py [--out docs/images] [--only infection,hub,molecule,types] [--data data]
    python benchmarks/page_screenshots.py --only gallery

The networks are trained here: on generated Infection and BA-Shapes graphs, on MUTAG, and on a generated graph of
papers, authors and terms. The second command draws the thumbnails of the gallery, from the pages in docs/gallery.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import HGTConv

from attree.data import MUTAG, BAShapes, Infection
from attree.evaluation import EvaluationConfig, Evaluator, TargetLabels
from attree.faithfulness import reduce_attention
from attree.models import GAT, GraphClassifier
from attree.report.page import write_page
from attree.report.page.content import Curves
from attree.report.page.write import page_html
from attree.subject import Subject
from browser import chromium, set_screen

NUM_LAYERS = 3
EPOCHS, EVERY = 150, 15
METHODS = ("gatt", "avgatt", "uniform", "occlusion", "random")


def train(net: nn.Module, graph: Data, evaluator: Evaluator) -> Curves:
    """Train, and note accuracy and explanation quality every few epochs."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    curves: dict[str, list[tuple[int, float]]] = {}
    for epoch in range(1, EPOCHS + 1):
        net.train()
        loss = nn.functional.cross_entropy(net(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % EVERY == 0 or epoch == 1:
            values = dict(evaluator.evaluate().metrics)
            values["val/acc"] = accuracy(net, graph, graph.val_mask)
            for name, value in values.items():
                if name.endswith(("/acc", "/faithfulness", "/truth_auroc")):
                    curves.setdefault(name, []).append((epoch, value))
    return curves


@torch.no_grad()
def accuracy(net: nn.Module, graph: Data, mask: Tensor) -> float:
    predicted = net.eval()(graph.x, graph.edge_index).argmax(-1)
    return float((predicted == graph.y)[mask].float().mean())


def make_page(path: Path) -> Path:
    data = Infection(num_layers=NUM_LAYERS, source="generated")
    data.setup("fit")
    graph, truth = data.graph, data.truth
    assert truth is not None
    torch.manual_seed(0)
    net = GAT(data.num_features, data.num_classes, num_layers=NUM_LAYERS)
    targets = truth.targets[:60]
    subject = Subject.of_data(net, graph)
    steps = ["1 step away", *(f"{count} steps away" for count in range(2, NUM_LAYERS + 1))]
    labels = TargetLabels.of(graph, subject, ["infected", *steps, "farther"], dataset=data.name)
    evaluator = Evaluator(subject, targets, EvaluationConfig(METHODS), truth, labels=labels)
    curves = train(net, graph, evaluator)
    result = evaluator.evaluate()
    inputs = (net, graph.x, graph.edge_index, result.pairs)
    reductions = {name: reduce_attention(*inputs, name, with_probability=True) for name in result.reductions}
    return write_page(
        path,
        replace(result, reductions=reductions),
        curves=curves,
        summary={
            "validation accuracy": f"{accuracy(net, graph, graph.val_mask):.4f}",
            "epochs": str(EPOCHS),
        },
    )


def fit(net: nn.Module, loss: Callable[[], Tensor], epochs: int) -> None:
    """Train a network with Adam."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(epochs):
        net.train()
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    net.eval()


def hub_page(path: Path) -> Path:
    """BA-Shapes: the node with the most edges, and some of the houses."""
    data = BAShapes()
    data.setup("fit")
    graph, truth = data.graph, data.truth
    assert truth is not None
    torch.manual_seed(0)
    net = GAT(data.num_features, data.num_classes, num_layers=2)
    train = graph.train_mask
    cross_entropy = nn.functional.cross_entropy
    fit(net, lambda: cross_entropy(net(graph.x, graph.edge_index)[train], graph.y[train]), 150)
    subject = Subject.of_data(net, graph)
    hub = torch.bincount(graph.edge_index[1]).argmax().view(1)
    config = EvaluationConfig(METHODS)
    labels = TargetLabels.of(graph, subject, dataset=data.name)
    return write_page(
        path, Evaluator(subject, torch.cat([hub, truth.targets[:8]]), config, truth, labels=labels).evaluate()
    )


def molecule_page(path: Path, root: str) -> Path:
    """MUTAG: some molecules, with atoms by their symbols."""
    data = MUTAG(root=root)
    data.setup("fit")
    torch.manual_seed(0)
    module = GraphClassifier(GAT(data.num_features, data.num_classes, num_layers=3, hidden_channels=16))
    batch = Batch.from_data_list(list(data.graphs))
    fit(
        module,
        lambda: nn.functional.cross_entropy(module(batch.x, batch.edge_index, batch.batch, batch.num_graphs), batch.y),
        60,
    )
    ids = torch.arange(20)
    batch = Batch.from_data_list([data.graphs[number] for number in ids.tolist()])
    subject = Subject.of(module, batch.x, batch.edge_index, batch=batch.batch, readout=module.readout)
    labels = TargetLabels.of(batch, subject, data.class_names, data.node_types, ids, data.name)
    config = EvaluationConfig(METHODS)
    return write_page(path, Evaluator(subject, ids, config, labels=labels).evaluate())


class Papers(nn.Module):
    """Two layers of HGT, and a class for each paper."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.convs = nn.ModuleList(HGTConv(8, 8, data.metadata(), heads=2) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        head: Tensor = self.head(x_dict["paper"])
        return head


def types_page(path: Path) -> Path:
    """Papers, authors and terms: a paper's class is that of most of its terms."""
    generator = torch.Generator().manual_seed(0)
    papers, authors, terms = 60, 40, 12
    data = HeteroData()
    for kind, count in (("paper", papers), ("author", authors), ("term", terms)):
        data[kind].x = torch.randn(count, 8, generator=generator)
    label = torch.randint(0, 3, (papers,), generator=generator)
    data["paper"].y = label
    term = (label.repeat(3) + 3 * torch.randint(0, 4, (3 * papers,), generator=generator)) % terms
    has = torch.stack([torch.arange(papers).repeat(3), term])
    writes = torch.stack(
        [torch.randint(0, authors, (2 * papers,), generator=generator), torch.arange(papers).repeat(2)]
    )
    data["term", "in", "paper"].edge_index, data["paper", "has", "term"].edge_index = has.flip(0), has
    data["author", "writes", "paper"].edge_index = writes
    data["paper", "written by", "author"].edge_index = writes.flip(0)
    torch.manual_seed(0)
    net = Papers(data)
    fit(net, lambda: nn.functional.cross_entropy(net(data.x_dict, data.edge_index_dict), label), 80)
    subject = Subject.of_data(net, data)
    labels = TargetLabels.of(data, subject, ["vision", "language", "graphs"], dataset="Papers")
    config = EvaluationConfig(METHODS)
    return write_page(path, Evaluator(subject, range(20), config, labels=labels, warn=False).evaluate())


def save(driver: Chrome, path: Path) -> None:
    driver.save_screenshot(str(path))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def choose(driver: Chrome, label: str, text: str) -> None:
    """Pick an option of a select by the words that are seen."""
    field = driver.find_element(By.XPATH, f"//label[span[text()='{label}']]/select")
    next(option for option in field.find_elements(By.TAG_NAME, "option") if option.text == text).click()


def show(driver: Chrome, place: str) -> None:
    """Scroll to the part of the page that a selector names."""
    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView()", place)


def take_infection(driver: Chrome, folder: Path, out: Path) -> None:
    page = make_page(folder / "page.html")
    print(f"page: {page.stat().st_size / 2**20:.2f} MB")
    set_screen(driver, 1440, 1720)
    driver.get(page.as_uri())
    stage = driver.find_element(By.CLASS_NAME, "stage")
    choose(driver, "Compare with", "GAtt")
    stage.send_keys(Keys.ARROW_DOWN)
    show(driver, "header")
    save(driver, out / "page_light.png")

    set_screen(driver, 1440, 880, "dark")
    driver.get(f"{page.as_uri()}#view=tree&edge=0&step=5")
    driver.refresh()
    show(driver, ".explorer")
    save(driver, out / "page_dark.png")

    set_screen(driver, 390, 1180)
    driver.get(f"{page.as_uri()}#view=graph")
    driver.refresh()
    show(driver, ".heading")
    save(driver, out / "page_narrow.png")


def take(driver: Chrome, page: Path, path: Path, asked: str = "") -> None:
    """One picture of a page's explorer."""
    set_screen(driver, 1440, 900)
    driver.get(f"{page.as_uri()}#{asked}")
    driver.find_element(By.CLASS_NAME, "stage").send_keys(Keys.ARROW_DOWN)
    show(driver, ".explorer")
    save(driver, path)


def take_gallery(driver: Chrome, folder: Path, out: Path) -> None:
    """The picture alone of each page of the gallery, smaller."""
    for stored in sorted((Path(__file__).parents[1] / "docs" / "gallery").glob("*.json")):
        page = folder / f"{stored.stem}.html"
        page.write_text(page_html(json.loads(stored.read_text(encoding="utf-8"))), encoding="utf-8")
        set_screen(driver, 1280, 720)
        driver.get("about:blank")
        driver.get(page.as_uri())
        driver.execute_script("document.querySelector('.zoom').style.display = 'none'")
        drawn = Image.open(BytesIO(driver.find_element(By.CLASS_NAME, "stage").screenshot_as_png)).convert("RGB")
        path = out / f"gallery_{stored.stem}.png"
        drawn.resize((drawn.width * 3 // 5, drawn.height * 3 // 5)).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the pictures go")
    parser.add_argument("--only", default="infection,hub,molecule,types", help="which pages")
    parser.add_argument("--data", default="data", help="data folder")
    arguments = parser.parse_args()
    out, picture_names = arguments.out, arguments.only.split(",")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, chromium() as driver:
        folder = Path(place)
        if "infection" in picture_names:
            take_infection(driver, folder, out)
        if "gallery" in picture_names:
            take_gallery(driver, folder, out)
        if "hub" in picture_names:
            take(driver, hub_page(folder / "hub.html"), out / "page_hub.png", "target=0")
        if "molecule" in picture_names:
            take(
                driver,
                molecule_page(folder / "molecule.html", arguments.data),
                out / "page_molecule.png",
                "loops=false",
            )
        if "types" in picture_names:
            take(driver, types_page(folder / "types.html"), out / "page_types.png")


if __name__ == "__main__":
    main()
