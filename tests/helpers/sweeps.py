"""Fits of sweeps without a process for each: in this one, or only pretended, with metrics from their arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import yaml

from attree.sweep import summary
from helpers.cli import command

QUALITY = "explain/gatt/removal/faithfulness"
SEARCH = {
    "name": "study",
    "config": "base.yaml",
    "seeds": [0, 1],
    "runs": [
        {
            "search": {
                "model.dropout": {"low": 0.0, "high": 0.6},
                "model.heads": {"choices": [1, 2, 4]},
                "lr": {"low": 1e-4, "high": 1e-1, "log": True},
            },
            "trials": 8,
            "sampler": "random",
            "seed": 3,
        }
    ],
    "objectives": {"val/acc": "maximize", QUALITY: "maximize"},
}
"""A search of eight trials with two seeds each."""


def given(arguments: Sequence[str]) -> dict[str, str]:
    """The options of a fit."""
    return dict(argument.removeprefix("--").split("=", 1) for argument in arguments[1:])


class FitHere:
    """A fit in this process, with what it prints in the log."""

    def __init__(self) -> None:
        self.seen: list[Sequence[str]] = []

    def __call__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], is_over: Callable[[], bool]
    ) -> int:
        self.seen.append(arguments)
        with log.open("a") as output, redirect_stdout(output), redirect_stderr(output):
            return command(*arguments)


class SearchedFit:
    """A fit whose accuracy falls and whose explanations gain with the dropout rate.

    Args:
        fails: Says of a run's id whether it fails.
    """

    def __init__(self, fails: Callable[[str], bool] = lambda run: False) -> None:
        self.fails = fails
        self.seen: list[dict[str, str]] = []
        self._lock = Lock()

    def __call__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], is_over: Callable[[], bool]
    ) -> int:
        options = given(arguments)
        with self._lock:
            self.seen.append(options)
        if self.fails(log.parent.name):
            log.write_text("attree: error: no luck.\n")
            return 2
        dropout, seed = float(options["model.dropout"]), int(options["seed_everything"])
        metrics = {"val/acc": 0.9 - dropout + 0.01 * seed, QUALITY: dropout + 0.02 * seed}
        (log.parent / "config.yaml").write_text(yaml.safe_dump({"model": {"dropout": dropout}, "trainer": {}}))
        (log.parent / "metrics.json").write_text(json.dumps(metrics))
        return 0

    def runs(self) -> list[str]:
        """Ids of the runs that were begun, in order."""
        return [options["trainer.logger.init_args.version"] for options in self.seen]


def write_sweep(folder: Path, content: Mapping[str, object]) -> Path:
    """Write a sweep file and the config that it starts from."""
    (folder / "base.yaml").write_text("model: {}\n")
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path


def only_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figures and grow no trees for importances: they take longer than all the rest."""
    monkeypatch.setattr(summary, "draw_figures", lambda *_: {})
    monkeypatch.setattr(summary, "importances", lambda *_: {})


GRID: dict[str, Any] = {
    "name": "study",
    "config": "base.yaml",
    "seeds": [0, 1],
    "runs": [{"grid": {"model.decay": [0, 0.01]}}, {"grid": {"dropout": [0.5]}}],
    "metrics": ["val/acc", "explain/*/*/faithfulness"],
}
"""A sweep of three settings with two seeds each."""

ALL = [f"{setting}-seed={seed}" for setting in ("decay=0", "decay=0.01", "dropout=0.5") for seed in (0, 1)]
"""Its runs."""


class FakeFit:
    """Writes what a fit would: metrics computed from its arguments."""

    def __init__(self, fail: str = "", crash_after_metrics: bool = False) -> None:
        self.fail = fail
        self.crash_after_metrics = crash_after_metrics
        self.seen: list[dict[str, str]] = []
        self.environments: list[Mapping[str, str]] = []
        self._lock = Lock()

    def __call__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], *_: Any) -> int:
        given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments[1:])
        version = given["trainer.logger.init_args.version"]
        with self._lock:
            self.seen.append(given)
            self.environments.append(environment)
        log.write_text("output\n")
        fails = bool(self.fail) and self.fail in version
        if not fails or self.crash_after_metrics:
            seed = int(given["seed_everything"])
            metrics = {
                "val/acc": 0.5 + 0.2 * seed - float(given.get("model.decay", 0)),
                "explain/gatt/weight/faithfulness": float("nan") if seed else 0.25,
            }
            (log.parent / "metrics.json").write_text(json.dumps(metrics))
        return 1 if fails else 0

    def versions(self) -> list[str]:
        return sorted(given["trainer.logger.init_args.version"] for given in self.seen)
