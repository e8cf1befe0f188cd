"""What README and docs print is what their results have; the runner that measures it can be stopped and repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import measure
import results
import sweep_tables
from attree.io.files import FolderLock
from measurements import MEASUREMENTS, Block, Measurement, Output, end_of_fit, paragraphs, section, table, table_below
from results import Repository, age, differences, file_hash, names_of, result_of

REPO = Path(__file__).parents[1]
PAGE = "# Page\n\n<!-- numbers: size -->\n\n| old |\n\n<!-- end -->\n\ntext after it\n"
SCRIPT = r"""'Prints a table.'
from pathlib import Path
print("| size |\n|---|\n| 3 |")
Path("picture.png").write_text("drawn")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with one page, one script and one measurement of a table and a picture."""
    for folder in ("docs/images", "benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README.md").write_text("# Project\n")
    (tmp_path / "docs/page.md").write_text(PAGE)
    (tmp_path / "benchmarks/size.py").write_text(SCRIPT)
    measurement = Measurement(
        "sizes",
        ("python benchmarks/size.py",),
        1,
        {"size": Block(("page",), table())},
        {"docs/images/picture.png": "picture.png"},
        quick=("python benchmarks/size.py",),
    )
    return Repository(tmp_path, tmp_path / "work", (measurement,))


def run(repository: Repository, *arguments: str) -> int:
    return measure.main(list(arguments), repository)


def with_measurement(repository: Repository, **changes: Any) -> Repository:
    return repository._replace(measurements=(replace(repository.measurements[0], **changes),))


def page(repository: Repository) -> str:
    return (repository.root / "docs/page.md").read_text()


# This repository.


def test_pages_and_pictures_are_those_of_their_results() -> None:
    assert list(differences(Repository())) == [], (
        "python benchmarks/measure.py --write writes the results into the pages"
    )


def test_recorded_texts_are_of_this_version() -> None:
    undated = [(one, name) for one in MEASUREMENTS for name, block in one.blocks.items() if not block.dated]
    assert {name for _, name in undated} == {"demo", "explain_142", "tutorial"}
    assert [(name, age(Repository(), one, name)) for one, name in undated if age(Repository(), one, name)] == []


def test_each_name_is_the_result_of_one_measurement() -> None:
    names = [name for one in MEASUREMENTS for name in names_of(one)]
    assert len(names) == len(set(names))
    assert len({one.name for one in MEASUREMENTS}) == len(MEASUREMENTS)


def test_scripts_and_configs_of_all_commands_exist() -> None:
    missing = [name for one in MEASUREMENTS for name in results.inputs_of(one) if not (REPO / name).is_file()]
    assert missing == []
    assert all(results.inputs_of(one) for one in MEASUREMENTS if not one.name.startswith("paper_"))


# Results and pages.


def test_a_missing_result_is_measured_and_written(repository: Repository) -> None:
    assert len(list(differences(repository))) == 2
    assert run(repository) == 0
    assert "\n| size |\n|---|\n| 3 |\n" in page(repository)
    assert "| old |" not in page(repository)
    assert page(repository).startswith("# Page\n\n<!-- numbers: size -->\n")
    assert page(repository).endswith("<!-- end -->\n\ntext after it\n")
    assert (repository.root / "docs/images/picture.png").read_text() == "drawn"
    assert list(differences(repository)) == []
    result = result_of(repository, "size")
    assert result is not None
    assert f"*Measured on {result.date} with attree {measure.attree.__version__}.*" in page(repository)
    assert result.machine is not None
    assert result.machine["cores"] == os.cpu_count()
    assert {"attree", "python", "torch", "torch_geometric"} == set(result.versions)


@pytest.mark.parametrize(
    ("old", "new"),
    [("| 3 |", "| 4 |"), ("| size |", "| length |"), ("with attree ", "with attree 9."), ("<!-- end -->", "")],
    ids=["number", "wording", "version", "end"],
)
def test_a_page_that_differs_from_its_result_is_found(repository: Repository, old: str, new: str) -> None:
    assert run(repository) == 0
    (repository.root / "docs/page.md").write_text(page(repository).replace(old, new))
    assert any("page" in sentence for sentence in differences(repository))
    assert run(repository, "--check") == 1


def test_another_picture_is_found_and_can_be_taken(repository: Repository) -> None:
    assert run(repository) == 0
    (repository.root / "docs/images/picture.png").write_text("drawn again")
    assert any("picture.png" in sentence for sentence in differences(repository))
    assert run(repository, "--take", "picture.png") == 0
    assert list(differences(repository)) == []


def test_blocks_that_are_not_listed_are_found(repository: Repository) -> None:
    assert run(repository) == 0
    (repository.root / "README.md").write_text("<!-- numbers: other -->\n\n1\n\n<!-- end -->\n")
    assert list(differences(repository)) == ["README has a block other that benchmarks/measurements.py does not list."]
    (repository.results / "gone.json").write_text("{}")
    assert "gone.json is the result of no measurement." in list(differences(repository))


def test_results_become_old_and_pages_say_so(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    (measurement,) = repository.measurements
    assert run(repository) == 0
    assert age(repository, measurement, "size") == ""
    script = repository.root / "benchmarks/size.py"
    script.write_text(SCRIPT.replace("Prints a table.", "Prints one table.") + "# a comment\n")
    assert age(repository, measurement, "size") == ""
    script.write_text(SCRIPT.replace("3", "5"))
    assert age(repository, measurement, "size") == "the command has changed"
    assert any("the command has changed since" in sentence for sentence in differences(repository))
    assert run(repository, "--write") == 0
    assert "the command has changed since.*" in page(repository)
    assert list(differences(repository)) == []
    assert run(repository, "--check") == 0
    assert run(repository, "--check", "--release") == 1
    assert run(repository) == 0
    assert "| 5 |" in page(repository)
    assert run(repository, "--check", "--release") == 0
    monkeypatch.setattr(measure.attree, "__version__", "9.9.9")
    assert age(repository, measurement, "size").startswith("measured with ")
    assert run(repository, "--check", "--release") == 1


def test_only_what_can_change_a_result_counts_as_a_change(repository: Repository) -> None:
    (measurement,) = repository.measurements
    script = repository.root / "benchmarks/size.py"

    def inputs(text: str) -> str:
        script.write_text(text)
        return results.inputs_hash(measurement, results.reader(repository.root))

    before = inputs("def sized(found):\n    known = found + 1\n    return [known for one in range(known)]\n")
    same = (
        'def sized(n: int) -> None:\n    "What."\n    size = n + 1  # more\n    return [size for row in range(size)]\n'
    )
    assert inputs(same) == before
    others = [("+ 1", "+ 2"), ("[size for", "[n for"), ("range(size)", "range(n)"), ("def sized", "def other")]
    assert len({before, *(inputs(same.replace(old, new)) for old, new in others)}) == 5
    script.unlink()
    assert results.inputs_hash(measurement, results.reader(repository.root)) != before


def test_what_is_not_old_is_not_run_again(repository: Repository) -> None:
    assert run(repository) == 0
    assert measure.to_measure(repository) == []
    before = (repository.results / "size.json").stat().st_mtime_ns
    assert run(repository) == 0
    assert (repository.results / "size.json").stat().st_mtime_ns == before


def test_words_of_a_block_by_hand_can_change_and_numbers_need_a_run(repository: Repository) -> None:
    assert run(repository) == 0
    by_hand = with_measurement(repository, blocks={"size": Block(("page",), None)})
    (repository.work / "sizes" / measure.STEPS).unlink()
    path = repository.root / "docs/page.md"
    path.write_text(page(repository).replace("| size |", "| length |"))
    assert run(by_hand, "--take", "size") == 0
    result = result_of(by_hand, "size")
    assert result is not None
    assert "| length |" in result.texts[0]
    assert "Measured" not in result.texts[0]
    assert list(differences(by_hand)) == []
    path.write_text(page(repository).replace("| 3 |", "| 4 |"))
    assert run(by_hand, "--take", "size") == 2
    assert run(by_hand, "--only", "size") == 0
    assert any("page" in sentence for sentence in differences(by_hand))
    assert run(by_hand, "--take", "size") == 0
    assert list(differences(by_hand)) == []


def test_measurements_of_time_wait_for_a_quiet_machine(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = with_measurement(repository, timed=True)
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 0.0, 0.0))
    assert run(timed) == 0
    assert result_of(timed, "size") is None
    assert run(timed, "--busy") == 0
    assert "cores (load 100.0)" in page(timed)


def test_unknown_names_get_a_suggestion(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, "--only", "sizs") == 2
    assert "sizes" in capsys.readouterr().out


# Stops and failures.


def test_a_failed_command_stores_nothing(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    (repository.root / "benchmarks/size.py").write_text("raise ValueError('no data')")
    assert run(repository) == 1
    assert "no data" in capsys.readouterr().out
    assert result_of(repository, "size") is None
    assert page(repository) == PAGE


COUNTS = r"""
import time
from pathlib import Path
with Path("begun").open("a") as file:
    file.write("{name}\n")
while not Path("go").exists() and "{name}" == "second":
    time.sleep(0.02)
print("| {name} |\n|---|\n| 1 |")
"""
RUNNER = """
import sys
from pathlib import Path
import measure
from measurements import Block, Measurement, table
from results import Repository
root = Path(sys.argv[1])
commands = ("python benchmarks/first.py", "python benchmarks/second.py")
one = Measurement("sizes", commands, 1, {"size": Block(("page",), table())})
sys.exit(measure.main([], Repository(root, root / "work", (one,))))
"""


@pytest.mark.long
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_stopped_run_goes_on_with_the_command_that_was_stopped(repository: Repository, stop: signal.Signals) -> None:
    for name in ("first", "second"):
        (repository.root / f"benchmarks/{name}.py").write_text(COUNTS.replace("{name}", name))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO / "src"), str(REPO / "benchmarks")])}
    command = [sys.executable, "-c", RUNNER, str(repository.root)]
    begun = repository.work / "sizes" / "begun"
    runner = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: begun.is_file() and begun.read_text() == "first\nsecond\n")
    runner.send_signal(stop)
    printed, _ = runner.communicate(timeout=60)
    assert runner.returncode in ((-9,) if stop == signal.SIGKILL else (130, 143))
    assert stop == signal.SIGKILL or "Stopped" in printed
    assert result_of(repository, "size") is None
    assert page(repository) == PAGE
    with FolderLock(repository.work, patience=30):  # nothing of the stopped run works there any more
        (repository.work / "sizes" / "go").touch()
    time.sleep(0.3)
    assert "second" not in (repository.work / "sizes" / "1.out").read_text()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert begun.read_text() == "first\nsecond\nsecond\n"
    assert "| second |" in page(repository)


def wait_until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_measurement_that_began_in_another_version_starts_from_the_beginning(repository: Repository) -> None:
    (measurement,) = repository.measurements
    assert run(repository) == 0
    left = repository.work / "sizes" / "left_by_an_older_version"
    left.touch()
    steps = repository.work / "sizes" / measure.STEPS
    content = json.loads(steps.read_text())
    steps.write_text(json.dumps({**content, "state": "0.0.1 0"}))
    measure.run(repository, measurement)
    assert not left.exists()


# The quick run.


def test_the_quick_run_compares_to_the_last_digit(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository) == 0
    before = file_hash(repository.results / "size.json")
    assert run(repository, "--quick") == 0
    (repository.root / "benchmarks/size.py").write_text(SCRIPT.replace("3", "3.01"))
    capsys.readouterr()
    assert run(repository, "--quick") == 1
    assert "+| 3.01 |" in capsys.readouterr().out
    assert file_hash(repository.results / "size.json") == before


def test_a_short_form_must_print_tables_of_the_same_form(repository: Repository) -> None:
    assert run(repository) == 0
    (repository.root / "benchmarks/short.py").write_text('print("| size |\\n|---|\\n| 1 |")')
    short = with_measurement(repository, quick=("python benchmarks/short.py",))
    assert run(short, "--quick") == 0
    (repository.root / "benchmarks/short.py").write_text('print("| size | more |\\n|---|---|\\n| 1 | 2 |")')
    assert run(short, "--quick") == 1


@pytest.mark.slow
@pytest.mark.needs("planetoid/Cora/raw", "webkb/texas", "tu/MUTAG")
@pytest.mark.parametrize("name", [one.name for one in MEASUREMENTS if one.is_exact])
def test_exact_results_come_again_to_the_last_digit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(Repository(work=tmp_path), "--quick", "--only", name)
    assert status == 0, capsys.readouterr().out


# Texts that are cut out of outputs.

PRINTED = """first

| a |
|---|
| 1 |

## Under `weight`

| b |
|---|
| 2 |

### Cora, GAT: test accuracy 0.8

```text
Use occlusion.
```

- A finding.

### Texas, GAT: test accuracy 0.3
"""


def test_texts_are_cut_out_of_what_is_printed() -> None:
    output = Output((PRINTED,), Path())
    assert table(1)(output) == ["\n| b |\n|---|\n| 2 |\n\n"]
    assert table_below("## Under `weight`")(output) == ["\n| b |\n|---|\n| 2 |\n\n"]
    assert section("Cora, GAT")(output) == ["\nTest accuracy 0.8\n\n```text\nUse occlusion.\n```\n\n- A finding.\n\n"]
    assert paragraphs("first\n", "\n## Under")(output) == ["\n| a |\n|---|\n| 1 |\n\n"]
    fit = "epoch 3\nUse occlusion. \nGAtt 0.5\ntrain/loss 0.1\nPage: x\n"
    assert end_of_fit(Output((fit,), Path())) == ["```\nUse occlusion.\nGAtt 0.5\ntrain/loss 0.1\n```\n"]


RUNS = """sweep,entropy,head_agreement,seed,run,val/acc,explain/gatt/weight/faithfulness,\
explain/uniform/weight/faithfulness,explain/gatt/removal/faithfulness,explain/uniform/removal/faithfulness
none,0,,0,a,0.5,0.7,0.6,0.3,0.3
none,0,,1,b,0.7,0.9,0.8,0.3,0.1
entropy,0.1,,0,c,0.5,0.5,0.5,0.5,0.5
entropy,0.1,,1,d,0.5,0.5,0.5,0.5,0.5
head_agreement,,0,0,e,0.5,0.5,0.75,0.5,0.5
head_agreement,,1,0,f,0.5,0.5,0.25,0.5,0.5
"""


def test_the_table_of_penalties_has_means_spreads_and_the_gain_over_uniform(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(RUNS)
    assert sweep_tables.penalties_table(tmp_path / "results.csv").splitlines() == [
        "| penalty | val/acc | GAtt `weight` | over uniform | GAtt `removal` | over uniform |",
        "|---|---|---|---|---|---|",
        "| none | 0.600 ± 0.141 | 0.800 ± 0.141 | +0.100 ± 0.000 | 0.300 ± 0.000 | +0.100 ± 0.141 |",
        "| `entropy` 0.1 | 0.500 ± 0.000 | 0.500 ± 0.000 | +0.000 ± 0.000 | 0.500 ± 0.000 | +0.000 ± 0.000 |",
        "| none, 4 heads | 0.500 ± nan | 0.500 ± nan | -0.250 ± nan | 0.500 ± nan | +0.000 ± nan |",
        "| `head_agreement` 1, 4 heads | 0.500 ± nan | 0.500 ± nan | +0.250 ± nan | 0.500 ± nan | +0.000 ± nan |",
    ]


def test_the_table_of_networks_has_student_intervals_and_marks_the_best(tmp_path: Path) -> None:
    names = [f"explain/{name}/within_pearson" for name in ("structure/removal", "message_gradient/removal")]
    names += [f"explain/{name}/within_pearson" for name in ("saliency/removal", "structure/weight", "saliency/weight")]
    rows = [
        {"network": f"attree.models.{network}", "seed": seed, "val/acc": 0.8, **dict.fromkeys(names, value)}
        for network, values in {"GAT": (0.1, 0.2, 0.3), "GCN": (0.4, 0.4, 0.4)}.items()
        for seed, value in enumerate(values)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    gat, gcn = sweep_tables.networks_table(tmp_path / "results.csv").splitlines()[2:]
    assert gat.startswith("| GAT | 0.80 ±0.00 | 0.20 ±0.25 |")  # Student's t with two degrees of freedom: 4.303
    assert gcn.startswith("| GCN | 0.80 ±0.00 | **0.40** ±0.00 |")
