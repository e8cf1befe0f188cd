"""The Pareto front of a sweep's settings, the importance of its parameters, and configs of the best settings."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import yaml
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState

from attree.io.files import write_text
from attree.io.yaml_files import read_yaml
from attree.report.pareto_figure import pareto_front
from attree.report.sweep_figure import SETTING
from attree.sweep.plan import RUN, SWEEP, Direction, Plan, value_text
from attree.sweep.results import over_runs, parameter_columns
from attree.sweep.study import SweepStudy
from attree.sweep.trial import FINGERPRINT

FRONT, FIRST_RUN = "front", "first run"
BEST = "best"
"""Folder of the configs of the best settings."""

FEWEST_TRIALS = 6
"""Minimum number of trials to compute the importance of parameters."""


@dataclass(frozen=True)
class ParetoFront:
    """Settings of a sweep, compared by the objectives.

    Attributes:
        objectives: Names of metrics, each with its direction.
        settings: One row per setting: its block, label and values; the mean, standard deviation and count of each
            objective over the seeds; whether it is on the Pareto front (`front`); and the id of its first run.
        parameters: Names of the columns with the settings' values.
    """

    objectives: dict[str, Direction]
    settings: pd.DataFrame
    parameters: list[str]

    @property
    def best(self) -> pd.DataFrame:
        """The settings on the front, with the best value of the first objective first."""
        name, direction = next(iter(self.objectives.items()))
        front = self.settings[self.settings[FRONT]]
        return front.sort_values(f"{name} mean", ascending=direction == "minimize", kind="stable")


def find_frontier(results: pd.DataFrame, objectives: Mapping[str, Direction]) -> ParetoFront | None:
    """Find the settings on the Pareto front, by the means of the objectives over the seeds.

    A setting is on the front if no other setting is as good in every objective and better in one. With a single
    objective, the best setting is on the front.

    Args:
        results: One row per run, as `collect` returns them.
        objectives: Names of metrics, each with its direction.

    Returns:
        The front; None if no setting has all objectives.
    """
    known = [name for name in objectives if name in results and results[name].notna().any()]
    if not known or len(known) < len(objectives):
        return None
    parameters = parameter_columns(results)
    rows: list[dict[str, Any]] = []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        first = runs.iloc[0]
        values = {name: first[name] for name in parameters}
        rows.append({SWEEP: sweep, SETTING: setting, **values, **over_runs(runs, known), FIRST_RUN: first[RUN]})
    settings = pd.DataFrame(rows)
    signs = np.array([1.0 if objectives[name] == "maximize" else -1.0 for name in known])
    points = settings[[f"{name} mean" for name in known]].to_numpy(dtype=np.float64) * signs
    settings[FRONT] = np.isin(np.arange(len(settings)), pareto_front(points))
    return ParetoFront(dict(objectives), settings, parameters) if settings[FRONT].any() else None


def importances(plan: Plan, study: SweepStudy) -> dict[str, dict[str, dict[str, float]]]:
    """Compute the importance of each parameter of a block for each objective, by fANOVA (Hutter et al., ICML 2014).

    The importances for a block and an objective add up to 1. Left out are blocks with one parameter or few trials,
    trials without values, and parameters that not all trials of a block have.

    Returns:
        The importance by block, objective and parameter, the most important parameter first.
    """
    of_block = {task.fingerprint: task.block for task in plan.tasks}
    trials: dict[str, list[optuna.trial.FrozenTrial]] = {}
    for trial in study.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        block = of_block.get(trial.user_attrs.get(FINGERPRINT, ""))
        if block is not None:
            trials.setdefault(block, []).append(trial)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for block, own in trials.items():
        if len(own) < FEWEST_TRIALS or len(own[0].params) < 2:
            continue
        alone = optuna.create_study(directions=list(plan.objectives.values()))
        alone.add_trials(own)
        for place, name in enumerate(plan.objectives):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    values = get_param_importances(
                        alone, evaluator=FanovaImportanceEvaluator(seed=0), target=_Objective(place)
                    )
                except (ValueError, RuntimeError):  # all values are equal: no parameter has an effect
                    continue
            found.setdefault(block, {})[name] = dict(values)
    return found


@dataclass(frozen=True)
class _Objective:
    """Returns one objective of a trial."""

    place: int

    def __call__(self, trial: optuna.trial.FrozenTrial) -> float:
        return float(trial.values[self.place])


def write_best(plan: Plan, folder: Path, frontier: ParetoFront, most: int = 20) -> list[Path]:
    """Write a config for each setting on the front, ready for `attree fit --config`, and return the files.

    Each is the config of the setting's first run, with all defaults, but with another logger. A setting whose runs are
    on another machine gets no config.

    Args:
        plan: The plan.
        folder: Folder that holds the sweep's folder.
        frontier: The settings.
        most: Maximum number of configs.
    """
    own = folder / plan.name
    shutil.rmtree(own / BEST, ignore_errors=True)
    files = []
    for place, (_, row) in enumerate(frontier.best.head(most).iterrows(), start=1):
        source = own / str(row[FIRST_RUN]) / "config.yaml"
        if source.is_file():
            path = own / BEST / f"{place:02d}.yaml"
            files.append(write_text(path, _config_text(plan, read_yaml(source), path, row, frontier)))
    return files


def _config_text(plan: Plan, config: dict[str, Any], path: Path, row: pd.Series, frontier: ParetoFront) -> str:
    """Return the YAML text of a best setting's config for `attree fit`, with the sweep and the values in comments."""
    trainer = dict(config.get("trainer") or {})
    kept = [one for one in trainer.get("callbacks") or [] if "ReportMetric" not in str(one.get("class_path"))]
    trainer["callbacks"] = kept or None
    arguments = {"save_dir": "logs", "name": f"{plan.name}_best", "default_hp_metric": False}
    trainer["logger"] = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": arguments}
    values = ", ".join(f"{name} {row[f'{name} mean']:.4f}" for name in frontier.objectives)
    lines = [f"attree fit --config {path}", "", f"Of the sweep {plan.name}, setting {row[SETTING]}: {values}."]
    lines.append(f"Values: {setting_text(row, frontier.parameters)}")
    head = "\n".join(f"# {line}".rstrip() for line in lines)
    body = yaml.safe_dump({**config, "trainer": trainer, "ckpt_path": None}, sort_keys=False)
    return f"{head}\n{body}"


def setting_text(row: pd.Series, parameters: Sequence[str]) -> str:
    """Return the values of a setting as text, with four digits of floating-point numbers."""
    known = {name: _python_value(row[name]) for name in parameters if not _is_missing(row[name])}
    texts = {name: f"{value:.4g}" if isinstance(value, float) else value_text(value) for name, value in known.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _python_value(value: Any) -> Any:
    """Return a NumPy scalar as a Python value."""
    return value.item() if isinstance(value, np.generic) else value


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))
