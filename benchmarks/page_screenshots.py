"""Pictures of the page for the docs: wide and light, dark with the computation tree, and on a phone.

    python benchmarks/page_screenshots.py [--out docs/images]

The page is of a GAT that is trained here on a generated Infection graph, so the pictures need no data.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.data import Infection
from attree.evaluation import EvaluationConfig, Evaluator, TargetLabels
from attree.faithfulness import reduce_attention
from attree.models import GAT
from attree.report.page import write_page
from attree.report.page.content import Curves
from attree.subject import Subject
from browser import chromium, set_screen

NUM_LAYERS = 3
EPOCHS, EVERY = 200, 10


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
    methods = ("gatt", "gatt_sim", "avgatt", "random")
    subject = Subject.of_data(net, graph)
    steps = ["1 step away", *(f"{count} steps away" for count in range(2, NUM_LAYERS + 1))]
    labels = TargetLabels.of(graph, subject, ["infected", *steps, "farther"], dataset=data.name)
    evaluator = Evaluator(subject, targets, EvaluationConfig(methods), truth, labels=labels)
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


def save(driver: Chrome, path: Path) -> None:
    driver.save_screenshot(str(path))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def choose(driver: Chrome, label: str, text: str) -> None:
    """Pick an option of a select by the words that are seen."""
    field = driver.find_element(By.XPATH, f"//label[span[text()='{label}']]/select")
    next(one for one in field.find_elements(By.TAG_NAME, "option") if one.text == text).click()


def show(driver: Chrome, place: str) -> None:
    """Scroll to the part of the page that a selector names."""
    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView()", place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the pictures go")
    parser.add_argument("--target", type=int, default=2, help="which of the targets, counted from 0")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        page = make_page(Path(folder, "page.html"))
        print(f"page: {page.stat().st_size / 2**20:.2f} MB")
        set_screen(driver, 1440, 1190)
        driver.get(page.as_uri())
        driver.find_element(By.CSS_SELECTOR, f'[data-target="{arguments.target}"]').click()
        stage = driver.find_element(By.CLASS_NAME, "stage")
        choose(driver, "Compare with", "AvgAtt")
        stage.send_keys(Keys.ARROW_DOWN)
        show(driver, "header")
        save(driver, arguments.out / "page_light.png")

        set_screen(driver, 1440, 760, "dark")
        driver.find_element(By.XPATH, "//button[text()='Computation tree']").click()
        stage.send_keys(Keys.ARROW_DOWN)
        show(driver, ".explorer")
        save(driver, arguments.out / "page_dark.png")

        set_screen(driver, 400, 1180)
        driver.find_element(By.XPATH, "//button[text()='Neighbourhood']").click()
        choose(driver, "Compare with", "nothing")
        show(driver, ".heading")
        save(driver, arguments.out / "page_narrow.png")


if __name__ == "__main__":
    main()
