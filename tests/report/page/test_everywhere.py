"""Nodes by their score, and attention over all nodes, on the page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import attree
from attree.attribution import attribute_nodes, global_pairs
from attree.report.page import write_page
from attree.report.page.content import page_content
from helpers.graph_transformers import GPS, molecules, seeded

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.filterwarnings("ignore:Edges of the graph of")
KINDS = {"f4": "<f4", "u2": "<u2", "i4": "<i4"}


def unpacked(value: dict[str, str]) -> np.ndarray:
    ((kind, text),) = value.items()
    return np.frombuffer(base64.b64decode(text), KINDS[kind])


def evaluated() -> attree.evaluation.Evaluation:
    return attree.evaluate(seeded(GPS("gine")), molecules(6, 7, 5), methods=["gatt", "random"], protocols=["weight"])


def test_targets_have_node_scores_and_the_strongest_pairs_beyond_the_edges() -> None:
    result = evaluated()
    assert result.subject is not None
    content = page_content(result)
    assert content["nodeMethod"] == "GAtt"
    for target in content["targets"]:
        first = int((result.subject.batch == target["id"]).nonzero()[0])
        nodes = unpacked(target["nodes"]).astype(int) + first
        scores = attribute_nodes(result.subject, target["id"]).dense(target["id"])[torch.as_tensor(nodes)]
        np.testing.assert_allclose(unpacked(target["nodeScores"]), scores.numpy(), rtol=1e-5)
        pairs = global_pairs(result.subject, target["id"], 30)
        assert pairs is not None
        arcs = {name: unpacked(values) for name, values in target["arcs"].items()}
        assert nodes[arcs["from"]].tolist() == pairs.key.tolist()
        assert nodes[arcs["to"]].tolist() == pairs.query.tolist()
        np.testing.assert_allclose(arcs["score"], pairs.score.numpy(), rtol=1e-5)


@pytest.mark.long
def test_arcs_and_sizes_are_switched_on(driver: Chrome, tmp_path: Path) -> None:
    driver.get(write_page(tmp_path / "page.html", evaluated()).as_uri())

    def found(selector: str) -> list[WebElement]:
        return driver.find_elements("css selector", f".picture:first-child {selector}")

    def radii() -> set[str | None]:
        return {disc.get_attribute("r") for disc in found("circle")}

    assert len(radii()) == 1
    assert not found(".arcs path")
    driver.find_element("xpath", "//label[contains(.,'attention over all nodes')]/input").click()
    assert found(".arcs path")
    driver.find_element("xpath", "//label[contains(.,'nodes by GAtt')]/input").click()
    assert len(radii()) > 1
