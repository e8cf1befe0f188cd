"""What a sweep leaves to look at: figures as files and in TensorBoard, whatever its runs came to."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attree.io.terminal import plain_console, print_whole
from attree.report.pareto_figures import frontier_figure
from attree.report.score_figures import over_uniform_figure, over_uniform_pairs
from attree.report.sweep_figures import grid_curves_figure, heat_map_figure
from attree.sweep import Direction
from attree.sweep.page import sweep_page
from attree.sweep.results import find_frontier, traded_metrics
from attree.sweep.tables import frontier_table, summary_tables
from helpers.cli import command

METHODS = ("gatt", "avgatt", "random")
QUALITY = "explain/gatt/weight/faithfulness"


def fit(arguments: Sequence[str], log: Path, environment: Mapping[str, str], *_: Any) -> int:
    """A fit that diverges where the rate is high, and has no explanation metrics where it is negative."""
    given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments[1:])
    rate = float(given["lr"])
    metrics = {"train/loss": 0.3, "val/acc": 0.9 - rate} | ({QUALITY: 0.5 + rate} if rate >= 0 else {})
    if rate > 10:
        metrics = {"train/loss": float("nan"), "val/acc": 0.1, QUALITY: float("nan")}
    (log.parent / "metrics.json").write_text(json.dumps(metrics))
    return 0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("model: {}\n")


def sweep(rates: list[float], *options: str) -> dict[str, list[int]]:
    """Run a sweep; the pictures of its own TensorBoard run, with the steps of each."""
    content = {"name": "study", "config": "base.yaml", "runs": [{"grid": {"lr": rates}}]}
    Path("sweep.yaml").write_text(yaml.safe_dump(content))
    assert command("sweep", "sweep.yaml", *options, launch=fit) == 0
    board = Path("logs/sweeps/study/results")
    if not board.is_dir():
        return {}
    events = EventAccumulator(str(board)).Reload()
    return {tag: [event.step for event in events.Images(tag)] for tag in events.Tags()["images"]}


def files() -> set[str]:
    return {path.name for path in Path("logs/sweeps/study").iterdir() if path.is_file()}


TABLES = {"study.db", "page.html", "results.csv", "means.csv"}
FIGURES = {"results.png", "results.svg", "pareto.png", "pareto.svg"}


@pytest.mark.parametrize("rates", [[0.1], [0.0, 0.1, 0.2], [0.1, 1e30]], ids=["one run", "three", "one diverged"])
def test_figures_are_files_and_pictures(rates: list[float]) -> None:
    assert sweep(rates) == {"sweep/results": [len(rates)], "sweep/pareto": [len(rates)]}
    assert files() == {*TABLES, "frontier.csv", *FIGURES}
    for name in FIGURES:
        content = Path("logs/sweeps/study", name).read_bytes()
        assert content.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in content


def test_collecting_again_replaces_the_pictures() -> None:
    sweep([0.0, 0.1])
    Path("logs/sweeps/study/pareto.png").unlink()
    assert sweep([0.0, 0.1], "--collect") == {"sweep/results": [2], "sweep/pareto": [2]}
    assert len(list(Path("logs/sweeps/study/results").iterdir())) == 1
    assert files() == {*TABLES, "frontier.csv", *FIGURES}


def test_what_went_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    sweep([0.1])
    assert "Diverged" not in capsys.readouterr().out
    sweep([0.1, 1e30])
    assert "Diverged: lr=1e+30-seed=0 ended with a loss that is not a number." in capsys.readouterr().out
    sweep([1e30])
    assert "No pareto.png" in capsys.readouterr().out


def test_a_table_for_each_protocol_with_every_number_whole() -> None:
    """Three methods under two protocols do not fit 80 columns as one table: numbers were cut to `0.68…`."""
    names = [f"explain/{method}/{protocol}/faithfulness" for method in METHODS for protocol in ("weight", "removal")]
    results = pd.DataFrame({"sweep": "weight_decay", "setting": [0.0005] * 2, "val/acc": [0.6, 0.8]})
    for place, name in enumerate(names):
        results[name] = [0.1 * place, 0.1 * place + 0.02]
    console = plain_console(file=io.StringIO(), width=80)
    for table in summary_tables(results, ["val/acc", *names], "study"):
        print_whole(console, table)
    printed = console.file.getvalue()
    weight, removal = printed.split("weight: the edge's weight becomes 0", 1)
    assert "removal: the edge is deleted" in removal
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    for table, places in ((weight, (0, 2, 4)), (removal, (1, 3, 5))):
        row = next(line for line in table.splitlines() if "weight_decay=0.0005" in line).split()
        assert row[1:] == ["2", "0.700±0.141", *(f"{0.1 * place + 0.01:.3f}±0.014" for place in places)]


@pytest.mark.parametrize("rates", [[-0.1], [1e30]], ids=["no explanations", "all diverged"])
def test_what_has_nothing_to_show_is_left_out(rates: list[float]) -> None:
    assert sweep(rates) == {"sweep/results": [1]}
    assert files() == {*TABLES, "results.png", "results.svg"}


def test_what_is_traded() -> None:
    columns = {
        "setting": [0],
        "val/acc": [0.5],
        "test/acc": [0.4],
        QUALITY: [0.1],
        "explain/gatt/weight/p_auroc": [0.2],
    }
    results = pd.DataFrame(columns)
    shown = list(columns)[1:]
    assert traded_metrics(results, shown) == ("val/acc", [QUALITY])
    assert traded_metrics(results, ["test/acc", "explain/gatt/weight/p_auroc"]) == (
        "test/acc",
        ["explain/gatt/weight/p_auroc"],
    )
    assert traded_metrics(results, [QUALITY]) == ("val/acc", [QUALITY])
    assert traded_metrics(results[["setting", QUALITY]], [QUALITY]) == (None, [QUALITY])


def test_the_page_is_one_file_and_escapes_what_users_wrote() -> None:
    odd = "<script>alert('&')</script>"
    results = pd.DataFrame(
        {
            "sweep": odd,
            "setting": ["000", "001"],
            odd: ["<b>", "c"],
            "seed": 0,
            "run": ["a b#/1", "r2"],
            "val/acc": [0.9, 0.5],
            QUALITY: [0.1, 0.7],
        }
    )
    frontier = find_frontier(results, {"val/acc": "maximize", QUALITY: "maximize"})
    Path("own/r2/explain").mkdir(parents=True)
    Path("own/r2/explain/page.html").touch()
    Path("own/front.svg").write_text("<svg></svg>")
    importance = {odd: {"val/acc": {odd: 1.0}}}
    page = sweep_page(odd, results, ["val/acc", QUALITY], frontier, importance, [Path("own/front.png")], Path("own"))
    assert "<script>" not in page
    assert page.count("<script") == 2  # the runs, and what draws them
    assert "default-src 'none'" in page
    assert "<b>" not in page
    assert ">GAtt faithfulness (mean), weight</th>" in page
    assert page.count("&lt;script&gt;") >= 3
    assert 'href="r2/explain/page.html"' in page  # the other run is elsewhere
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in page
    assert f"base64,{base64.b64encode(b'<svg></svg>').decode()}" in page
    assert page.count('<tr class="front">') == 2


OBJECTIVES: dict[str, Direction] = {"val/acc": "maximize", QUALITY: "maximize"}


def of_settings(accuracies: list[float], qualities: list[float]) -> pd.DataFrame:
    """The results of a sweep with one run per setting."""
    names = [f"{number:03d}" for number in range(len(accuracies))]
    columns = {"sweep": "search", "setting": names, "rate": names, "seed": 0, "run": names}
    return pd.DataFrame({**columns, "val/acc": accuracies, QUALITY: qualities})


@pytest.mark.parametrize(
    ("within", "best"),
    [(None, ["000", "001"]), (0.2, ["000", "001", "002"]), (1.0, ["000", "001", "002", "003"]), (0.0, ["000"])],
)
def test_a_network_that_predicts_nothing_is_no_trade_off(within: float | None, best: list[str]) -> None:
    results = of_settings([0.8, 0.75, 0.6, 0.04, float("nan")], [0.1, 0.2, 0.3, 0.9, 0.95])
    frontier = find_frontier(results, OBJECTIVES, "val/acc", within)
    assert frontier is not None
    assert frontier.best["setting"].tolist() == best
    percent = find_frontier(
        results.assign(**{"val/acc": 100 * results["val/acc"]}), OBJECTIVES, "val/acc", within and 100 * within
    )
    assert percent is not None
    assert percent.best["setting"].tolist() == best
    # Explanations alone are optimised: an inaccurate network does not push an accurate one off the front.
    alone = find_frontier(results, {QUALITY: "maximize"}, "val/acc", within)
    assert alone is not None
    assert alone.best["setting"].tolist() == best[-1:]


def test_the_best_trade_offs_say_what_was_left_out() -> None:
    frontier = find_frontier(of_settings([0.8, 0.75, 0.04], [0.1, 0.2, 0.9]), OBJECTIVES, "val/acc")
    assert frontier is not None
    sentence = "Without 1 setting of val/acc below 0.750 (see `accuracy_within`)."
    console = Console(file=StringIO(), width=200)
    console.print(frontier_table(frontier, "study"))
    assert sentence in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    page = sweep_page("study", frontier.settings.assign(seed=0, run="r"), [], frontier, {}, [], Path())
    assert sentence in page
    every = find_frontier(of_settings([0.8, 0.75], [0.1, 0.2]), OBJECTIVES, "val/acc")
    assert every is not None
    assert every.left_out == ""


def test_the_page_says_how_many_runs_define_a_mean_as_the_terminal_does() -> None:
    results = pd.concat([of_settings([0.8], [0.5]).assign(seed=seed, run=f"r{seed}") for seed in range(5)])
    results[QUALITY] = [0.25, *[float("nan")] * 4]
    frontier = find_frontier(results, OBJECTIVES, "val/acc")
    page = sweep_page("study", results, ["val/acc", QUALITY], frontier, {}, [], Path())
    assert page.count("<td>0.250 (1 of 5)</td>") == 2  # among the best, and among all
    (table,) = summary_tables(results, ["val/acc", QUALITY], "study")
    console = Console(file=StringIO(), width=200)
    console.print(table)
    assert "0.250 (1 of 5)" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_grid_of_two_keys_has_a_heat_map_of_means() -> None:
    table = pd.DataFrame({"a": [0, 0, 1, 1], "b": ["x", "y", "x", "y"], "val/acc": [0.1, 0.2, 0.3, float("nan")]})
    axes = heat_map_figure(pd.concat([table, table]), ("a", "b"), ["val/acc"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["0.100", "0.200", "0.300", "undefined"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y"]


def test_a_grid_of_two_keys_has_a_curve_for_each_value_of_the_first() -> None:
    nets = ["attree.models.GAT", "attree.models.GATv2"]
    columns = {"network": [net for net in nets for _ in range(4)], "decay": [0.0, 0.0, 0.1, 0.1] * 2}
    values = [0.1, 0.3, 0.4, 0.6, 0.7, 0.9, float("nan"), 0.8]
    figure = grid_curves_figure(pd.DataFrame({**columns, "val/acc": values}), ("network", "decay"), ["val/acc"])
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [
        pytest.approx([0.2, 0.5]),
        pytest.approx([0.8, 0.8]),
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GAT", "GATv2"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "0.1"]
    assert figure.axes[0].get_title(loc="right") == "1 undefined"


def test_a_grid_of_three_keys_has_a_column_of_panels_for_each_value_of_the_third() -> None:
    keys: dict[str, list[Any]] = {"network": ["GAT", "GCN"], "decay": [0.0, 0.1], "dropout": [0.0, 0.5, 0.6]}
    table = pd.DataFrame(list(itertools.product(*keys.values())), columns=list(keys))
    table["val/acc"] = table["decay"] + table["dropout"] + (table["network"] == "GCN")
    table[QUALITY] = -table["val/acc"]
    figure = grid_curves_figure(pd.concat([table, table]), list(keys), ["val/acc", QUALITY])
    axes = [panel for panel in figure.axes if panel.get_visible()]
    assert len(axes) == 6
    titles = [panel.get_title() for panel in axes]
    assert titles[:3] == ["val accuracy, dropout 0", "val accuracy, dropout 0.5", "val accuracy, dropout 0.6"]
    for place, dropout in enumerate(keys["dropout"]):
        lines = [line.get_ydata().tolist() for line in axes[place].lines]
        assert lines == [pytest.approx([dropout, dropout + 0.1]), pytest.approx([dropout + 1, dropout + 1.1])]
    assert len({panel.get_ylim() for panel in axes[:3]}) == 1


def test_the_frontier_figure_joins_the_best() -> None:
    means = {"val/acc mean": [0.9, 0.5, 0.4], "val/acc std": [0.1, 0.1, float("nan")]}
    settings = pd.DataFrame({**means, f"{QUALITY} mean": [0.1, 0.7, 0.3], f"{QUALITY} std": [0.0] * 3})
    settings["front"] = [True, True, False]
    figure = frontier_figure(settings, {"val/acc": "maximize", QUALITY: "maximize"})
    line = max(figure.axes[0].lines, key=lambda one: len(one.get_xdata()) == 2 and one.get_linestyle() == "-")
    assert line.get_xydata().tolist() == [[0.5, 0.7], [0.9, 0.1]]
    alone = frontier_figure(settings, {"val/acc": "minimize"})
    steps = max(alone.axes[0].lines, key=lambda one: one.get_drawstyle() == "steps-post")
    assert steps.get_ydata().tolist() == [0.9, 0.5, 0.4]


def test_what_attention_adds_is_the_mean_of_differences_seed_by_seed() -> None:
    gatt, uniform = "explain/gatt/weight/faithfulness", "explain/uniform/weight/faithfulness"
    pairs = over_uniform_pairs(["val/acc", gatt, uniform, "explain/gatt/removal/faithfulness"])
    assert pairs == {"weight/faithfulness": (gatt, uniform)}
    first = pd.DataFrame({"val/acc": [0.7, 0.9], gatt: [0.5, 0.9], uniform: [0.4, 0.6]})
    second = pd.DataFrame({"val/acc": [0.5, 0.6], gatt: [0.5, float("nan")], uniform: [0.6, 0.1]})
    third = second.assign(**{gatt: float("nan")})
    axes = over_uniform_figure({"none": first, "entropy=1": second, "entropy=9": third}, "val/acc", pairs).axes[0]
    containers: Any = axes.containers
    points = [(*bars.lines[0].get_xdata(), *bars.lines[0].get_ydata()) for bars in containers]
    assert points == [pytest.approx((0.8, 0.2)), pytest.approx((0.5, -0.1))]  # a seed without both counts for neither
    across, up = (bars.get_segments()[0] for bars in containers[0].lines[2])
    assert up[:, 1].tolist() + across[:, 0].tolist() == pytest.approx(
        [0.2 - 0.02**0.5, 0.2 + 0.02**0.5, 0.8 - 0.02**0.5, 0.8 + 0.02**0.5]
    )
    assert axes.get_title(loc="right") == "1 undefined"
