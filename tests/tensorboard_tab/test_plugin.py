"""What the tab's routes answer, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter
from werkzeug.test import Client

from attree.report.page import write_page
from attree.tensorboard_tab.plugin import MAX_BYTES, RunFiles
from helpers.explained import IMAGE, explained_model
from helpers.logdirs import application, write_run

PREFIX = "/data/plugin/attree"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with explanations and without, names that would be markup, a page, steps, and links that lead outside."""
    root = tmp_path_factory.mktemp("logs")
    for number, decay in enumerate((0.0, 0.001, 0.01)):
        write_run(root / f"version_{number}", decay, seed=number)
    write_run(root / "version_10", 0.01, seed=10, settings=False)
    model = explained_model()
    write_page(root / "version_0" / "page.html", model.evaluation, **model.options)
    steps = root / "version_0" / "explanations" / "steps"
    steps.mkdir(parents=True)
    for step in (100, 20):
        (steps / f"{step}.json").write_text(json.dumps({"step": step}))
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.html").write_text('<script type="application/json" id="attree-data">{"secret": 1}</script>')
    (root / "version_1" / "page.html").symlink_to(outside / "secret.html")
    (root / "version_2" / "page.html").write_text("<p>a page of something else</p>")
    return root


@pytest.fixture(scope="module")
def client(logdir: Path) -> Client:
    return Client(application(logdir))


def ask(client: Client, path: str, **query: str) -> Any:
    answer = client.get(f"{PREFIX}/{path}", query_string=query)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text)


def test_runs_are_told_with_their_last_numbers_settings_and_pages(client: Client, logdir: Path) -> None:
    told = ask(client, "runs")
    runs = {run["name"]: run for run in told["runs"]}
    assert list(runs) == ["version_0", "version_1", "version_2", "version_10"]  # by number, not by letter
    assert told["logdir"] == str(logdir)
    assert [method["name"] for method in told["methods"]] == ["gatt", "avgatt"]
    assert [method["label"] for method in told["methods"]] == ["GAtt", "AvgAtt"]
    metrics = runs["version_2"]["metrics"]
    assert metrics["val/acc"] == pytest.approx(0.9 - 0.1 + 0.02)
    assert metrics["explain/gatt/truth_auroc"] == pytest.approx(1.0)
    assert metrics["explain/avgatt/removal/faithfulness"] is None  # undefined, and still JSON
    assert runs["version_1"]["settings"] == {"weight_decay": pytest.approx(0.001), "seed": 1.0, "conv": "GAT"}
    assert runs["version_10"]["settings"] == {}
    steps = ["explanations/steps/20.json", "explanations/steps/100.json"]
    assert runs["version_0"]["pages"] == [*steps, "page.html"]
    assert runs["version_1"]["pages"] == []  # a link that leads out of the log folder


def test_curves_of_one_run(client: Client) -> None:
    curves = {curve["name"]: curve["points"] for curve in ask(client, "curves", run="version_1")}
    assert [step for step, _ in curves["val/acc"]] == [0, 10, 20]
    assert curves["val/acc"][-1][1] == pytest.approx(0.9 - 0.01 + 0.01)


def test_a_saved_page_is_the_explorers_content(client: Client) -> None:
    content = ask(client, "page", run="version_0", page="page.html")
    assert content["title"] == f"A page {IMAGE}"
    assert ask(client, "page", run="version_0", page="explanations/steps/20.json") == {"step": 20}


@pytest.mark.parametrize(
    ("run", "page"),
    [
        ("version_1", "page.html"),  # a link to a file outside
        ("version_2", "page.html"),  # not a page of ours
        ("version_0", "../version_0/page.html"),
        ("version_0", "explanations/steps/../../page.html"),
        ("version_0", "/etc/passwd"),
        ("version_0", "config.yaml"),
        ("..", "page.html"),
        ("version_0/../version_0", "page.html"),
        ("nothing", "page.html"),
    ],
)
def test_nothing_else_is_read(client: Client, run: str, page: str) -> None:
    answer = client.get(f"{PREFIX}/page", query_string={"run": run, "page": page})
    assert answer.status_code == 404
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["static/../plugin.py", "static/tab.html", "static/", "plugin.py"])
def test_only_the_tabs_own_files_are_served(client: Client, path: str) -> None:
    assert client.get(f"{PREFIX}/{path}").status_code == 404
    for name in ("tab.js", "explorer.js", "explorer.css"):
        assert client.get(f"{PREFIX}/static/{name}").status_code == 200


def test_torn_and_foreign_event_files_leave_the_other_runs_alone(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", 0.01, seed=1)
    write_run(tmp_path / "torn", 0.01, seed=1, steps=200)
    (torn,) = (tmp_path / "torn").glob("events*")
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])  # a machine that lost power
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "events.out.tfevents.1.somewhere").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "events.out.tfevents.1.somewhere").touch()
    with SummaryWriter(str(tmp_path / "other")) as writer:
        writer.add_scalar("loss/explain", 1.0, 0)
    runs = {run["name"]: run for run in ask(Client(application(tmp_path)), "runs")["runs"]}
    assert set(runs) == {"whole", "torn"}
    assert runs["whole"]["metrics"]["val/acc"] == pytest.approx(whole["val/acc"], rel=1e-6)
    assert 0 < runs["torn"]["step"] < 1990  # as far as it was written


def test_an_empty_log_folder_has_no_runs_and_the_tab_is_not_active(tmp_path: Path) -> None:
    client = Client(application(tmp_path))
    assert ask(client, "runs") == {"runs": [], "methods": [], "logdir": str(tmp_path)}
    assert listed(client)["enabled"] is False
    assert listed(client)["tab_name"] == "Explanations"


def listed(client: Client) -> dict[str, Any]:
    """What TensorBoard's front page is told of the tab."""
    told: dict[str, Any] = json.loads(client.get("/data/plugins_listing").text)["attree"]
    return told


def test_the_tab_is_active_where_some_run_has_explanations(client: Client) -> None:
    assert listed(client)["enabled"] is True


def test_tensorboard_need_not_wait_for_pytorch() -> None:
    heavy = "{'torch', 'lightning', 'matplotlib', 'pandas'}"
    code = f"import attree.tensorboard_tab.plugin, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def damaged(tmp_path: Path) -> Client:
    """A run whose saved pages are not what attree writes."""
    write_run(tmp_path / "run", 0.0, seed=0)
    steps = tmp_path / "run" / "explanations" / "steps"
    steps.mkdir(parents=True)
    start = '<script type="application/json" id="attree-data">'
    (tmp_path / "run" / "page.html").write_text(start * 200_000)  # it never ends
    for step, content in enumerate(DAMAGED_STEPS):
        (steps / f"{step}.json").write_bytes(content)
    return Client(application(tmp_path))


DAMAGED_STEPS = (
    b"[" * 200_000 + b"]" * 200_000,
    b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    b"9" * 10_000,
    b"\xff\xfe{}",
    b"",
    b"{}" + b" " * MAX_BYTES,
)


@pytest.mark.parametrize("page", [*(f"explanations/steps/{step}.json" for step in range(6)), "page.html"])
def test_damaged_nested_and_huge_files_are_not_found(damaged: Client, page: str) -> None:
    answer = damaged.get(f"{PREFIX}/page", query_string={"run": "run", "page": page})
    assert answer.status_code == 404
    assert f"{MAX_BYTES >> 20} MiB" in answer.text


def test_files_that_are_too_large_are_not_offered(damaged: Client) -> None:
    (run,) = ask(damaged, "runs")["runs"]
    assert run["pages"] == [*(f"explanations/steps/{step}.json" for step in range(5)), "page.html"]


def test_what_json_has_not_is_not_passed_on(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 0.0, seed=0)
    steps = tmp_path / "run" / "explanations" / "steps"
    steps.mkdir(parents=True)
    (steps / "1.json").write_text('{"values": [NaN, Infinity, -Infinity, 1], "text": "NaN"}')
    client = Client(application(tmp_path))
    answer = client.get(f"{PREFIX}/page", query_string={"run": "run", "page": "explanations/steps/1.json"})
    content = json.loads(answer.text, parse_constant=lambda name: pytest.fail(name))
    assert content == {"values": [None, None, None, 1], "text": "NaN"}


def test_with_several_log_folders_the_folder_of_a_run_is_the_boundary(tmp_path: Path) -> None:
    class Multiplexer:
        def RunPaths(self) -> dict[str, str]:
            return {"run": str(tmp_path / "run")}

    steps = tmp_path / "run" / "explanations" / "steps"
    steps.mkdir(parents=True)
    (steps / "1.json").write_text("{}")
    (tmp_path / "secret.json").write_text("{}")
    (steps / "2.json").symlink_to(tmp_path / "secret.json")
    saved = RunFiles(None, Multiplexer())
    assert saved.pages("run") == ["explanations/steps/1.json"]
    assert saved.read("run", "explanations/steps/1.json") == "{}"
    assert saved.read("run", "explanations/steps/2.json") is None
    assert saved.pages("another") == []
