"""The live page: its answers are the model's own, and it answers nobody else and nothing else."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from attree.errors import ArgumentError, AttreeError
from attree.evaluation import Evaluation, evaluate
from attree.models import GAT
from attree.report.page.content import page_content
from attree.report.page.live import LiveModel, reply
from attree.report.page.write import page_html
from attree.serve.page_server import PageServer, run_server
from attree.subject import Subject
from browser import chromium, missing, set_screen
from helpers.cli import fit
from helpers.explained import IMAGE
from helpers.graphs import randomize

NODES = 24
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


class Explained:
    """A small net on a random graph, the page of some of its nodes, and a server of it."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        edge_index = torch.randint(0, NODES, (2, 70), generator=generator)
        edge_index = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)
        names = [f"n{node}" for node in range(NODES)]
        names[0] = IMAGE
        self.graph = Data(
            x=torch.randn(NODES, 5, generator=generator), edge_index=edge_index, y=torch.zeros(NODES, dtype=torch.int64)
        )
        self.graph.node_names, self.graph.class_names = names, ["red", IMAGE, "blue"]
        self.net = randomize(GAT(5, 3, num_layers=2), seed=2, scale=0.8).eval()
        self.evaluation: Evaluation = evaluate(self.net, self.graph, [3, 8, 12], ["gatt"], ["removal", "weight"])
        self.subject = Subject.of_data(self.net, self.graph)
        self.live = LiveModel(self.subject, self.evaluation)
        self.content = page_content(self.evaluation, is_live=True)

    def without(self, target: int, edges: list[int]) -> torch.Tensor:
        """The model's probabilities of a target on a graph that has no such edges."""
        kept = torch.ones(self.graph.num_edges, dtype=torch.bool)
        proper = self.subject.graph.edge_index[:, edges].T.tolist()
        for place, ends in enumerate(self.graph.edge_index.T.tolist()):
            kept[place] = ends not in proper
        with torch.no_grad():
            shares: torch.Tensor = self.net(self.graph.x, self.graph.edge_index[:, kept])[target].softmax(-1)
        return shares


@pytest.fixture(scope="module")
def explained() -> Explained:
    return Explained()


@pytest.fixture(scope="module")
def server(explained: Explained) -> Iterator[PageServer]:
    with PageServer(page_html(explained.content), explained.live.answer) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def proper_edges(explained: Explained, position: int, count: int) -> list[int]:
    """Some edges around a target, none of them a self-loop."""
    pairs = explained.evaluation.pairs
    own = pairs.edges[int(pairs.ptr[position]) : int(pairs.ptr[position + 1])]
    ends = explained.subject.graph.edge_index[:, own]
    return [int(edge) for edge in own[ends[0] != ends[1]][:count]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_answers_are_those_of_the_model_on_the_graph_without_the_edges(explained: Explained, count: int) -> None:
    for position, node in enumerate([3, 8, 12]):
        edges = proper_edges(explained, position, count)
        told = explained.live.what_if(position, edges, "removal")
        torch.testing.assert_close(torch.tensor(told["now"]).float(), explained.without(node, []), atol=1e-5, rtol=0)
        torch.testing.assert_close(
            torch.tensor(told["then"]).float(), explained.without(node, edges), atol=1e-5, rtol=0
        )


def test_one_edge_has_the_effect_that_the_evaluation_measured(explained: Explained) -> None:
    pairs = explained.evaluation.pairs
    for protocol, reduction in explained.evaluation.reductions.items():
        for place in range(0, int(pairs.ptr[1]), 4):
            told = explained.live.what_if(0, [int(pairs.edges[place])], protocol)
            best = max(range(3), key=lambda own: told["now"][own])
            assert told["now"][best] - told["then"][best] == pytest.approx(float(reduction.delta_pc[place]), abs=1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        {"target": 3, "edges": [0], "protocol": "removal"},
        {"target": -1, "edges": [0], "protocol": "removal"},
        {"target": True, "edges": [0], "protocol": "removal"},
        {"target": 0, "edges": [10**9], "protocol": "removal"},
        {"target": 0, "edges": "0", "protocol": "removal"},
        {"target": 0, "edges": [0.5], "protocol": "removal"},
        {"target": 0, "edges": [0], "protocol": "coefficient"},
        {"target": 0, "edges": [0], "protocol": ["removal"]},
        {"target": 0, "edges": [0] * 10_001, "protocol": "removal"},
        {},
        [],
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(explained: Explained, asked: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected argument `"):
        explained.live.answer(asked)
    assert "Expected argument" in reply(explained.live, asked)["error"]


def ask(
    server: PageServer, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


JSON = {"Content-Type": "application/json"}
QUESTION = json.dumps({"target": 0, "edges": [0], "protocol": "removal"})


def test_the_page_and_the_question_are_served(server: PageServer, explained: Explained) -> None:
    status, headers, text = ask(server, "GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "connect-src 'self'" in text
    assert "Access-Control-Allow-Origin" not in headers
    status, _, text = ask(server, "POST", "/what_if", QUESTION, JSON)
    assert status == 200
    assert json.loads(text) == explained.live.what_if(0, [0], "removal")
    status, _, text = ask(server, "POST", "/what_if", '{"target": 7}', JSON)
    assert status == 400
    assert "Expected argument `target`" in json.loads(text)["error"]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/../../etc/passwd", "/page.html", "/what_if", "/%2e%2e/config.yaml", "/static/explorer.js"],
)
def test_no_other_route_exists(server: PageServer, path: str) -> None:
    assert ask(server, "GET", path)[0] == 404
    if path != "/what_if":
        assert ask(server, "POST", path, QUESTION, JSON)[0] == 404
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert ask(server, method, path)[0] == 501


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_pages_from_elsewhere_are_refused(server: PageServer, headers: dict[str, str]) -> None:
    assert ask(server, "GET", "/", headers=headers)[0] == 403
    assert ask(server, "POST", "/what_if", QUESTION, JSON | headers)[0] == 403


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (QUESTION, {"Content-Type": "text/plain"}),  # what a form of another page could send
        ("{", JSON),
        ("[" * 100_000, JSON),
        ("x" * (1 << 20) + "x", JSON),
    ],
)
def test_what_is_no_question_is_refused_and_the_server_goes_on(
    server: PageServer, body: str, headers: dict[str, str]
) -> None:
    try:
        assert ask(server, "POST", "/what_if", body, headers)[0] == 400
    except (BrokenPipeError, ConnectionResetError):  # it hung up before all was sent
        assert len(body) > 1 << 20
    assert ask(server, "GET", "/")[0] == 200


def test_a_run_is_served_from_its_folder(tmp_path: Path) -> None:
    run = fit(tmp_path, "--trainer.max_epochs=2")
    with run_server(run, "2,5", ["gatt"], ["removal"]) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        status, _, page = ask(server, "GET", "/")
        assert status == 200
        assert '"serves":true' in page
        status, _, text = ask(server, "POST", "/what_if", QUESTION, JSON)
        assert status == 200
        assert sum(json.loads(text)["then"]) == pytest.approx(1.0)
        for checkpoint in run.rglob("*.ckpt"):
            checkpoint.unlink()
        assert ask(server, "POST", "/what_if", QUESTION, JSON)[0] == 200  # the model is in memory
        server.shutdown()
        thread.join(10)
    with pytest.raises(AttreeError, match="checkpoint"):
        run_server(run, "2,5", ["gatt"], ["removal"])


def test_a_port_that_is_taken_is_named(server: PageServer) -> None:
    with pytest.raises(ArgumentError, match=f"`port` to be a free port, or 0, but got {server.server_port}"):
        PageServer("", dict, server.server_port)


def test_only_this_computer_is_listened_to(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_edges_are_taken_out_in_the_browser_and_the_model_answers(server: PageServer, explained: Explained) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    names = explained.graph.node_names
    with chromium() as driver:
        set_screen(driver, 1400, 1000)
        driver.get(f"{server.address}#target=8&protocol=removal&loops=false")
        stage = driver.find_element(By.CLASS_NAME, "stage")
        cut: list[int] = []
        for count in (1, 2, 3):
            stage.send_keys(Keys.ARROW_DOWN)
            source, destination = driver.find_element(By.CSS_SELECTOR, ".docked h3").text.split(" → ")
            ends = [[names.index(source)], [names.index(destination)]]
            (edge,) = (explained.subject.graph.edge_index == torch.tensor(ends)).all(0).nonzero().view(-1).tolist()
            cut.append(edge)
            driver.find_element(By.XPATH, "//button[text()='Take this edge out']").click()
            WebDriverWait(driver, 20).until(lambda _: driver.find_elements(By.CSS_SELECTOR, ".what-if .classes"))
            assert len(driver.find_elements(By.CSS_SELECTOR, ".chip")) == count
            expected = explained.without(8, cut)
            for row in driver.find_elements(By.CSS_SELECTOR, ".what-if .classes tbody tr"):
                told = row.find_element(By.CSS_SELECTOR, ".then").text.rstrip(" %").lstrip("<>")
                number = int(row.get_attribute("data-class") or -1)
                assert float(told) / 100 == pytest.approx(float(expected[number]), abs=0.006)
                assert row.find_element(By.TAG_NAME, "th").text == explained.graph.class_names[number]
            sentence = driver.find_element(By.CSS_SELECTOR, ".what-if .sentence").text
            wanted = explained.graph.class_names[int(expected.argmax())]
            assert f"predict {wanted} (" in sentence or "still predict the same" in sentence
        driver.find_element(By.XPATH, "//button[text()='Put all back']").click()
        assert driver.find_elements(By.CSS_SELECTOR, ".chip") == []
        assert driver.find_elements(By.TAG_NAME, "img") == []
        assert driver.get_log("browser") == []
        if not AXE.exists():
            pytest.skip(f"{AXE} not found: npm ci in web/")
        driver.execute_script(AXE.read_text(encoding="utf-8"))
        found: dict[str, Any] = driver.execute_async_script("axe.run().then(arguments[0])")
        bad = [rule["id"] for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
        assert bad == []
