"""The best trade-offs of a sweep: which settings no other beats, which parameters matter, and configs to run them."""

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
from attree.sweep.plan import RUN, SEED, SWEEP, Direction, Plan, value_text
from attree.sweep.record import FINGERPRINT
from attree.sweep.study import SweepStudy

FRONT, FIRST_RUN = "front", "first run"
BEST = "best"
"""Folder of the configs of the best settings."""

FEWEST_TRIALS = 6
"""With fewer trials the importance of parameters is not computed: it would be a guess."""


@dataclass(frozen=True)
class ParetoFront:
    """Settings of a sweep, judged by its objectives.

    Attributes:
        objectives: Metrics, and which way is better.
        settings: One row per setting: its block, name and values, the mean, standard deviation and number of each
            objective over the seeds, whether no other setting beats it (`front`), and the id of its first run.
        parameters: Names of the columns with the settings' values.
    """

    objectives: dict[str, Direction]
    settings: pd.DataFrame
    parameters: list[str]

    @property
    def best(self) -> pd.DataFrame:
        """The settings on the front, by the first objective, best first."""
        name, direction = next(iter(self.objectives.items()))
        front = self.settings[self.settings[FRONT]]
        return front.sort_values(f"{name} mean", ascending=direction == "minimize", kind="stable")


def find_frontier(results: pd.DataFrame, objectives: Mapping[str, Direction]) -> ParetoFront | None:
    """Judge every setting by the means of its objectives over the seeds; None if no setting has all of them.

    A setting is on the front if no other is as good in every objective and better in one. With a single objective, the
    best setting is.

    Args:
        results: One row per run, as `collect` makes it.
        objectives: Metrics, and which way is better.
    """
    known = [name for name in objectives if name in results and results[name].notna().any()]
    if not known or len(known) < len(objectives):
        return None
    parameters = [name for name in results.columns if "/" not in name and name not in (SWEEP, SETTING, SEED, RUN)]
    rows: list[dict[str, Any]] = []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        first = runs.iloc[0]
        row: dict[str, Any] = {SWEEP: sweep, SETTING: setting, **{name: first[name] for name in parameters}}
        for name in known:
            row |= {f"{name} mean": runs[name].mean(), f"{name} std": runs[name].std(), f"{name} n": runs[name].count()}
        rows.append({**row, FIRST_RUN: first[RUN]})
    settings = pd.DataFrame(rows)
    signs = np.array([1.0 if objectives[name] == "maximize" else -1.0 for name in known])
    points = settings[[f"{name} mean" for name in known]].to_numpy(dtype=np.float64) * signs
    settings[FRONT] = np.isin(np.arange(len(settings)), pareto_front(points))
    return ParetoFront(dict(objectives), settings, parameters) if settings[FRONT].any() else None


def importances(plan: Plan, study: SweepStudy) -> dict[str, dict[str, dict[str, float]]]:
    """How much each parameter of a block matters for each objective, by fANOVA (Hutter et al., ICML 2014).

    The numbers of a block and an objective add up to 1. Blocks with one parameter or few trials are left out, and so
    are trials without values, and parameters that not all trials of a block have.

    Returns:
        By block, then by objective, then by parameter, the most important first.
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
        judged = optuna.create_study(directions=list(plan.objectives.values()))
        judged.add_trials(own)
        for place, name in enumerate(plan.objectives):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    values = get_param_importances(
                        judged, evaluator=FanovaImportanceEvaluator(seed=0), target=_Value(place)
                    )
                except (ValueError, RuntimeError):  # all values alike: nothing is more important
                    continue
            found.setdefault(block, {})[name] = dict(values)
    return found


@dataclass(frozen=True)
class _Value:
    """Reads one objective of a trial."""

    place: int

    def __call__(self, trial: optuna.trial.FrozenTrial) -> float:
        return float(trial.values[self.place])


def write_best(plan: Plan, folder: Path, frontier: ParetoFront, most: int = 20) -> list[Path]:
    """Write a config for each setting on the front, which `attree fit` runs as it stands; returns the files.

    It is the config of the setting's first run, defaults included, but with a logger of its own. A setting whose runs
    are on another machine gets none.

    Args:
        plan: The plan.
        folder: Where the sweep's folder is.
        frontier: The settings.
        most: Configs to write at most.
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
    trainer = dict(config.get("trainer") or {})
    kept = [one for one in trainer.get("callbacks") or [] if "ReportMetric" not in str(one.get("class_path"))]
    trainer["callbacks"] = kept or None
    arguments = {"save_dir": "logs", "name": f"{plan.name}_best", "default_hp_metric": False}
    trainer["logger"] = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": arguments}
    values = ", ".join(f"{name} {row[f'{name} mean']:.4f}" for name in frontier.objectives)
    said = [f"attree fit --config {path}", "", f"Of the sweep {plan.name}, setting {row[SETTING]}: {values}."]
    said.append(f"Values: {setting_text(row, frontier.parameters)}")
    head = "\n".join(f"# {line}".rstrip() for line in said)
    body = yaml.safe_dump({**config, "trainer": trainer, "ckpt_path": None}, sort_keys=False)
    return f"{head}\n{body}"


def setting_text(row: pd.Series, parameters: Sequence[str]) -> str:
    """The values of a setting, with four digits of those that were drawn."""
    known = {name: _plain(row[name]) for name in parameters if not _is_missing(row[name])}
    texts = {name: f"{value:.4g}" if isinstance(value, float) else value_text(value) for name, value in known.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _plain(value: Any) -> Any:
    """A value of a table's cell as Python has it."""
    return value.item() if isinstance(value, np.generic) else value


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))
