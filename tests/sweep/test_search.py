"""Searches: what is drawn, how it is judged, and what a study keeps."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import yaml

from attree.errors import ArgumentError
from attree.sweep import load_plan
from attree.sweep.results import importances
from helpers.cli import command
from helpers.sweeps import QUALITY, SEARCH, SearchedFit, given, only_numbers, write_sweep

FOLDER = Path("logs/sweeps/study")
URL = f"sqlite:///{FOLDER}/study.db"
BLOCK: dict[str, Any] = SEARCH["runs"][0]  # type: ignore[index]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    only_numbers(monkeypatch)
    return write_sweep(tmp_path, SEARCH)


def study(name: str = "study") -> optuna.Study:
    return optuna.load_study(study_name=name, storage="sqlite:///logs/sweeps/study/study.db")


def test_a_search_draws_settings_runs_every_seed_and_tells_optuna_the_means(file: Path) -> None:
    fit = SearchedFit()
    assert command("sweep", str(file), "--workers", "2", launch=fit) == 0
    assert len(set(fit.runs())) == len(fit.runs()) == 16
    trials = study().trials
    assert [trial.state for trial in trials] == [optuna.trial.TrialState.COMPLETE] * 8
    for trial in trials:
        dropout, heads, rate = (trial.params[name] for name in ("dropout", "heads", "lr"))
        assert 0 <= dropout <= 0.6
        assert heads in (1, 2, 4)
        assert 1e-4 <= rate <= 1e-1
        assert trial.values == pytest.approx([0.9 - dropout + 0.005, dropout + 0.01])
    assert [direction.name for direction in study().directions] == ["MAXIMIZE", "MAXIMIZE"]
    assert study().metric_names == ["val/acc", QUALITY]
    results = pd.read_csv(FOLDER / "results.csv", float_precision="round_trip")
    assert len(results) == 16
    by_run = {options["trainer.logger.init_args.version"]: options for options in fit.seen}
    for _, row in results.iterrows():
        assert float(by_run[row["run"]]["model.dropout"]) == row["dropout"]  # to the last digit
        assert row["run"].startswith(f"{row['run'][:3]}-dropout={row['dropout']:.4g}-heads={row['heads']}-")


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_seed_draws_the_same_settings_again(file: Path, sampler: str) -> None:
    drawn: list[list[float]] = []
    for seed, workers in ((3, "1"), (3, "3"), (4, "1")):
        content = {**SEARCH, "name": f"study{len(drawn)}", "runs": [{**BLOCK, "sampler": sampler, "seed": seed}]}
        write_sweep(file.parent, content)
        # Only a random search draws without looking at what came before, which depends on who is first.
        command("sweep", str(file), "--workers", workers if sampler == "random" else "1", launch=SearchedFit())
        drawn.append(pd.read_csv(f"logs/sweeps/study{len(drawn)}/results.csv")["dropout"].tolist())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert len(set(drawn[0])) == 8 or sampler == "nsga2"  # which hands values on from parents to children


def test_more_trials_go_on_and_fewer_run_nothing(file: Path) -> None:
    command("sweep", str(file), launch=SearchedFit())
    first = pd.read_csv(FOLDER / "results.csv", float_precision="round_trip")
    more = SearchedFit()
    write_sweep(file.parent, {**SEARCH, "runs": [{**BLOCK, "trials": 10}]})
    assert command("sweep", str(file), launch=more) == 0
    assert {run[:3] for run in more.runs()} == {"008", "009"}
    assert pd.read_csv(FOLDER / "results.csv", float_precision="round_trip").iloc[:16].equals(first)
    fewer = SearchedFit()
    write_sweep(file.parent, SEARCH)
    assert command("sweep", str(file), launch=fewer) == 0
    assert fewer.seen == []


def test_the_front_is_that_of_the_means_and_has_configs_that_name_their_command(file: Path) -> None:
    command("sweep", str(file), launch=SearchedFit())
    near = pd.read_csv(FOLDER / "frontier.csv", float_precision="round_trip")
    assert near["front"].tolist() == (near["dropout"] <= near["dropout"].min() + 0.05).tolist()  # less accurate
    assert 0 < near["front"].sum() < 8
    assert len(list((FOLDER / "best").glob("*.yaml"))) == near["front"].sum()

    write_sweep(file.parent, {**SEARCH, "accuracy_within": 1})
    command("sweep", str(file), "--collect")
    table = pd.read_csv(FOLDER / "frontier.csv", float_precision="round_trip")
    assert len(table) == 8
    assert table["front"].all()  # what accuracy loses, explanations gain
    best = sorted((FOLDER / "best").glob("*.yaml"))
    assert [path.name for path in best] == [f"{place:02d}.yaml" for place in range(1, 9)]
    dropouts = [yaml.safe_load(path.read_text())["model"]["dropout"] for path in best]
    assert dropouts == sorted(table["dropout"])  # the first objective, best first
    assert best[0].read_text().startswith(f"# attree fit --config {best[0]}\n")


def test_dominated_settings_are_not_on_the_front(file: Path) -> None:
    content = {**SEARCH, "objectives": {"val/acc": "maximize", QUALITY: "minimize"}}
    write_sweep(file.parent, content)
    command("sweep", str(file), launch=SearchedFit())
    table = pd.read_csv(FOLDER / "frontier.csv", float_precision="round_trip")
    assert table["front"].tolist() == (table["dropout"] == table["dropout"].min()).tolist()


def test_importance_is_that_of_the_parameter_that_decides(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attree.sweep.summary.importances", importances)
    write_sweep(file.parent, {**SEARCH, "seeds": [0], "runs": [{**BLOCK, "trials": 30}]})
    command("sweep", str(file), launch=SearchedFit())
    shown = capsys.readouterr().out.split("what matters")[1]
    cells = [line.split() for line in shown.splitlines()]
    rows = {words[0]: float(words[1]) for words in cells if words[:1] and words[0] in ("dropout", "heads", "lr")}
    assert rows["dropout"] > 0.9
    assert sum(rows.values()) == pytest.approx(1.0, abs=0.02)


def test_a_failed_trial_is_tried_again_with_the_same_settings(file: Path) -> None:
    fails = SearchedFit(lambda run: run.startswith("004") and run.endswith("seed=1"))
    assert command("sweep", str(file), launch=fails) == 1
    assert len(pd.read_csv(FOLDER / "results.csv", float_precision="round_trip")) == 14
    again = SearchedFit()
    assert command("sweep", str(file), launch=again) == 0
    before = [run for run in fails.runs() if run.startswith("004")]
    assert again.runs() == before[1:]  # the first seed is finished


class ReportingFit(SearchedFit):
    """Reports a metric epoch by epoch, as a fit does, and ends when it is told to."""

    def __call__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], is_over: Callable[[], bool]
    ) -> int:
        options = given([argument.replace("+=", "=") for argument in arguments])
        quality = 0.9 - float(options["model.dropout"])
        file = options.get("trainer.callbacks.file")
        for epoch in range(30 if file else 0):
            with Path(str(file)).open("a") as stream:
                stream.write(f"{epoch},{quality}\n")
            if is_over():
                self.seen.append(options)
                return -9
        return super().__call__([argument.replace("+=", "=") for argument in arguments], log, environment, is_over)


def test_a_pruner_ends_what_does_badly(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = {**BLOCK, "trials": 12}
    write_sweep(file.parent, {**SEARCH, "runs": [block], "objectives": {"val/acc": "maximize"}})
    assert command("sweep", str(file), launch=ReportingFit()) == 0
    trials = study().trials
    dropouts = [trial.params["dropout"] for trial in trials]
    # A trial is pruned if its value is below the median of those that were not; the first five are not judged.
    kept: list[float] = []
    expected = []
    for dropout in dropouts:
        expected.append(len(kept) >= 5 and dropout > float(np.median(kept)))
        kept += [] if expected[-1] else [dropout]
    pruned = [trial.state == optuna.trial.TrialState.PRUNED for trial in trials]
    assert pruned == expected
    assert any(pruned)
    assert capsys.readouterr().out.count("pruned  ") == sum(pruned)
    assert len(pd.read_csv(FOLDER / "results.csv", float_precision="round_trip")) == 2 * (12 - sum(pruned))
    again = ReportingFit()
    assert command("sweep", str(file), launch=again) == 0
    assert again.seen == []


def test_another_config_or_other_objectives_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("sweep", str(file), launch=SearchedFit())
    (file.parent / "base.yaml").write_text("model: {x: 1}\n")
    assert command("sweep", str(file), launch=SearchedFit()) == 2
    assert "to have the config, `set`, `keys` and `seeds`" in capsys.readouterr().err
    write_sweep(file.parent, {**SEARCH, "objectives": {"val/acc": "maximize"}})
    assert command("sweep", str(file), launch=SearchedFit()) == 2
    assert "to have the objectives that its study began with" in capsys.readouterr().err
    write_sweep(
        file.parent,
        {**SEARCH, "runs": [{**BLOCK, "trials": 9, "search": {**BLOCK["search"], "model.heads": {"choices": [1, 8]}}}]},
    )
    assert command("sweep", str(file), launch=SearchedFit()) == 2
    assert "`search.model.heads` of the sweep 'study' to have the choices" in capsys.readouterr().err


def test_dry_run_has_a_line_for_each_trial(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("sweep", str(file), "--dry_run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [f"search-{number:03d}" for number in range(8)]
    fit = SearchedFit()
    assert command(*lines[5].split()[1:], launch=fit) == 0
    assert {run[:3] for run in fit.runs()} == {"005"}
    capsys.readouterr()
    command("sweep", str(file), "--dry_run")
    assert capsys.readouterr().out.splitlines() == [*lines[:5], *lines[6:]]


def test_a_database_serves_machines_that_share_no_folder(file: Path) -> None:
    storage = f"sqlite:///{file.parent / 'study.db'}"
    first, second = SearchedFit(), SearchedFit()
    assert command("sweep", str(file), "--storage", storage, "--folder", "a", launch=first) == 0
    assert command("sweep", str(file), "--storage", storage, "--folder", "b", launch=second) == 0
    assert len(first.seen) == 16
    assert second.seen == []
    pd.testing.assert_frame_equal(pd.read_csv("a/study/results.csv"), pd.read_csv("b/study/results.csv"))


def test_a_single_objective_prunes_by_default(tmp_path: Path) -> None:
    one = {**SEARCH, "objectives": {"val/acc": "maximize"}}
    no = {**one, "runs": [{**BLOCK, "pruner": "none"}]}
    inside = {key: value for key, value in SEARCH.items() if key != "objectives"}
    inside["runs"] = [{**BLOCK, "objectives": {"val/acc": "maximize"}}]
    found = [load_plan(write_sweep(tmp_path, content)).searches[0].pruner for content in (one, inside, no, SEARCH)]
    assert found == ["median", "median", "none", "none"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"trials": 0}, "`trials` of a search to be a positive integer"),
        ({"sampler": "grid"}, "`sampler` to be one of tpe, nsga2, random"),
        ({"seed": -1}, "a search's `seed` to be an integer >= 0"),
        ({"pruner": "median"}, "a single objective if there is a `pruner`"),
        ({"search": {}}, "`search` to name at least one key"),
        ({"search": {"a": [1, 2]}}, "`search.a` to be a mapping"),
        ({"search": {"a": {"low": 1}}}, r"`search.a` to be {choices: \[...\]} or"),
        ({"search": {"a": {"low": 2, "high": 1}}}, "`low` below its `high`"),
        ({"search": {"a": {"low": 0, "high": 1, "log": True}}}, "with `log` to have a `low` above 0"),
        ({"search": {"a": {"low": 1, "high": 2, "log": "yes"}}}, "`log` of `search.a` to be true or false"),
        ({"search": {"a": {"low": 1, "high": 2, "log": True, "step": 1}}}, "to have `log` or `step`, not both"),
        ({"search": {"a": {"low": 0.0, "high": 0.5, "step": 1.0}}}, "at most `high` - `low`"),
        ({"search": {"a": {"choices": [4]}}}, r"to have several choices \(see `set` for fixed values\), but got \[4\]"),
        ({"search": {"a": {"choices": []}}}, "to have several choices"),
        ({"search": {"a": {"choices": [4, 2, 4]}}}, "to have no choice twice"),
        ({"search": {"a": {"low": 1, "high": 2, "steps": 1}}}, r"Did you mean `step`\?"),
        ({"search": {"seed": {"low": 1, "high": 2}}}, "seeds to be given by `seeds`"),
        ({"objectives": {"val/*": "maximize"}}, "names of metrics, not patterns"),
        ({"objectives": {"explain/gatt/removal/faithfulnes": "maximize"}}, "Did you mean `faithfulness`?"),
        ({"objectives": {"val/acc": "up"}}, "to be maximize or minimize"),
    ],
)
def test_what_is_wrong_with_a_search_is_said(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = write_sweep(tmp_path, {**SEARCH, "runs": [{**BLOCK, **change}]})
    with pytest.raises(ArgumentError, match=complaint) as raised:
        load_plan(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("choices", [[1, True, 2], [0.5, None, {"a": 1}]])
def test_choices_that_python_takes_for_the_same_are_told_apart(file: Path, choices: list[Any]) -> None:
    space = {"model.dropout": {"low": 0.0, "high": 0.6}, "model.x": {"choices": choices}}
    write_sweep(file.parent, {**SEARCH, "seeds": [0], "runs": [{**BLOCK, "search": space, "trials": 20}]})
    fit = SearchedFit()
    assert command("sweep", str(file), launch=fit) == 0
    assert {options["model.x"] for options in fit.seen} == {json.dumps(value) for value in choices}
    assert {trial.params["x"] for trial in study().trials} == {json.dumps(value) for value in choices}


class BlindFit(SearchedFit):
    """A fit whose explanations are undefined, or not measured at all."""

    def __init__(self, logs: bool) -> None:
        super().__init__()
        self.logs = logs

    def __call__(self, arguments: Sequence[str], log: Path, *others: Any) -> int:
        status = super().__call__(arguments, log, *others)
        metrics = {"val/acc": 0.5, **({QUALITY: math.nan} if self.logs else {})}
        time.sleep(0.0 if self.logs else 0.05)
        (log.parent / "metrics.json").write_text(json.dumps(metrics))
        return status


def test_undefined_objectives_are_said_and_nothing_is_done_again(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sweep", str(file), launch=BlindFit(logs=True)) == 0
    assert f"no setting has defined values of all objectives (val/acc, {QUALITY})" in capsys.readouterr().out
    assert {trial.user_attrs["attree:reason"] for trial in study().trials} == {f"undefined: {QUALITY}"}
    again = SearchedFit()
    assert command("sweep", str(file), launch=again) == 0
    assert again.seen == []


def test_an_objective_that_no_run_logs_stops_the_sweep(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = BlindFit(logs=False)
    assert command("sweep", str(file), launch=fit) == 1
    assert 3 <= len(fit.seen) < 8  # a fit may have begun before the third was judged
    printed = capsys.readouterr().out
    assert f"Expected every run to log the objective '{QUALITY}', but this run did not." in printed
    assert "Stopped: the first 3 runs failed for the same reason" in printed


def test_a_storage_that_stops_answering_is_one_sentence_and_the_sweep_goes_on(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unplugged(SearchedFit):
        def __call__(self, *arguments: Any) -> int:
            if len(self.seen) == 3:
                raise optuna.exceptions.StorageInternalError("the server closed the connection")
            return super().__call__(*arguments)

    assert command("sweep", str(file), launch=Unplugged()) == 2
    assert "storage of the study to answer, but it failed: the server closed" in capsys.readouterr().err
    rest = SearchedFit()
    assert command("sweep", str(file), launch=rest) == 0
    assert len(rest.seen) == 13


def write_journal() -> Path:
    """What version 0.2 left: the study in a journal, whose last trials were waiting, with half a line at the end."""
    journal = FOLDER / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(journal.absolute()))
    storage = optuna.storages.JournalStorage(backend)
    optuna.copy_study(from_study_name="study", from_storage=URL, to_storage=storage)
    optuna.load_study(study_name="study", storage=storage).enqueue_trial({"dropout": 0.5})
    (FOLDER / "study.db").unlink()
    with journal.open("ab") as stream:
        stream.write(b'{"op_code": 8, "worker')
    return journal


def test_the_journal_of_an_older_version_is_read_and_taken_over(file: Path) -> None:
    assert command("sweep", str(file), launch=SearchedFit()) == 0
    trials, frontier = study().trials, (FOLDER / "frontier.csv").read_bytes()
    journal = write_journal()
    left = journal.read_bytes()
    assert command("sweep", str(file), "--collect") == 0
    assert (FOLDER / "frontier.csv").read_bytes() == frontier
    assert not (FOLDER / "study.db").exists()
    write_sweep(file.parent, {**SEARCH, "runs": [{**BLOCK, "trials": 9}]})
    more = SearchedFit()
    assert command("sweep", str(file), launch=more) == 0
    assert {run[:3] for run in more.runs()} == {"008"}
    assert journal.read_bytes() == left
    for before, after in zip(trials, study().trials[:8], strict=True):
        assert (before.params, before.values, before.user_attrs) == (after.params, after.values, after.user_attrs)
    assert len(study().trials) == 9


def test_a_damaged_study_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("sweep", str(file), launch=SearchedFit())
    journal = write_journal()
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:4], b"damaged\n", *lines[5:]]))
    for options in ([], ["--collect"], ["--dry_run"]):
        assert command("sweep", str(file), *options, launch=SearchedFit()) == 2
        said = capsys.readouterr().err
        assert "journal.log to be the journal of a study, but its line 5 cannot be read. Remove the file" in said
        assert not (FOLDER / "study.db").exists()
    (FOLDER / "study.db").write_bytes(b"damaged" * 1000)
    for options in ([], ["--collect"], ["--dry_run"]):
        assert command("sweep", str(file), *options, launch=SearchedFit()) == 2
        assert "study.db to be the study of a sweep, but it cannot be read" in capsys.readouterr().err


def test_half_a_study_can_be_summed_up(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted(SearchedFit):
        def __call__(self, *arguments: Any) -> int:
            if len(self.seen) == 5:
                raise KeyboardInterrupt
            return super().__call__(*arguments)

    assert command("sweep", str(file), launch=Interrupted()) == 130
    assert command("sweep", str(file), "--collect") == 0
    # Two trials are whole. Of the third, one seed of two is done: it is not judged yet.
    assert len(pd.read_csv(FOLDER / "frontier.csv")) == 2
    rest = SearchedFit()
    assert command("sweep", str(file), launch=rest) == 0
    assert len(rest.seen) == 11
    assert len(pd.read_csv(FOLDER / "frontier.csv")) == 8


def test_a_search_may_stand_at_the_top_of_the_file(tmp_path: Path) -> None:
    inside = load_plan(write_sweep(tmp_path, SEARCH))
    at_top = load_plan(write_sweep(tmp_path, {key: SEARCH[key] for key in SEARCH if key != "runs"} | BLOCK))
    assert [task.fingerprint for task in at_top.tasks] == [task.fingerprint for task in inside.tasks]
    assert at_top.objectives == inside.objectives
    with pytest.raises(ArgumentError, match="`objectives` for the search"):
        load_plan(write_sweep(tmp_path, {key: SEARCH[key] for key in SEARCH if key != "objectives"}))


def test_integers_are_drawn_between_integers(file: Path) -> None:
    search = {"model.dropout": {"low": 0, "high": 3}, "x": {"choices": [[1, 2], None]}}
    write_sweep(file.parent, {**SEARCH, "runs": [{**BLOCK, "search": search}]})
    fit = SearchedFit()
    assert command("sweep", str(file), launch=fit) == 0
    assert {options["model.dropout"] for options in fit.seen} <= {"0", "1", "2", "3"}
    assert {options["x"] for options in fit.seen} == {"[1, 2]", "null"}
