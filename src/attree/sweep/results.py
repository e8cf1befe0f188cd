"""The results of a sweep as data frames: runs, means over seeds, the Pareto front of the settings, and what matters."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import yaml
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from attree.attribution import METHODS
from attree.evaluation.metric_names import FAITHFULNESS, TRUTH, charted_accuracies
from attree.io.files import write_text
from attree.io.yaml_files import read_yaml
from attree.report.pareto_figures import pareto_front
from attree.report.style import count
from attree.report.sweep_figures import SETTING, method_of
from attree.sweep.plan import COLUMNS, RUN, SEED, SWEEP, Direction, Plan, Point, Run, Settings, short_names, value_text
from attree.sweep.single_run import folder_of_run, is_marked, metrics_of_run
from attree.sweep.study import FINGERPRINT, SweepStudy

FRONT, FIRST_RUN, NUM_RUNS = "front", "first run", "n"
BEST = "best"
"""Folder of the configs of the best settings."""

ACCURATE = "accurate"
"""Column that says whether a setting is accurate enough to be among the best."""

ACCURACY_WITHIN = 0.05
"""How far below the best accuracy a setting may be, by default: five points."""

FEWEST_TRIALS = 6
"""Minimum number of trials to compute the importance of parameters."""


def collect(plan: Plan, folder: Path, study: SweepStudy | None = None) -> pd.DataFrame:
    """Return one row per finished run of each block, with its settings, seed, id and all its metrics.

    Metrics are read from the run directories. If a run directory is on another machine, they are read from the study.

    Args:
        plan: The plan.
        folder: Folder that holds the sweep's folder.
        study: The study, which has the settings that searches have drawn; None if there is none.
    """
    records = {} if study is None else study.records()
    elsewhere = {run: metrics for record in records.values() for run, metrics in record.runs.items()}
    rows = []
    for block, setting, labels, point in _points(plan, study):
        run_directory = folder_of_run(plan, point.run, folder)
        metrics = metrics_of_run(run_directory) if is_marked(point.run, run_directory) else None
        if metrics is None and not run_directory.exists():
            metrics = elsewhere.get(point.run.id)
        if metrics is not None:
            settings = {labels[key]: value for key, value in point.settings.items()}
            columns = {SWEEP: block, SETTING: setting, **settings, SEED: point.seed, RUN: point.run.id}
            rows.append({**columns, **metrics})
    return pd.DataFrame(rows)


def _points(plan: Plan, study: SweepStudy | None) -> Iterator[tuple[str, object, dict[str, str], Point]]:
    """Yield each point with known settings, after its block, the setting's label and the names of its keys."""
    for block in plan.blocks:
        for point in block.points:
            settings = {block.labels[key]: value for key, value in point.settings.items()}
            yield block.name, _setting_label(settings), block.labels, point
    if study is None or not plan.searches:
        return
    records = study.records()
    for task in plan.tasks:
        record = records[task.key]
        if task.search is not None and record.settings is not None and record.status == "done":
            for point in task.search.points(task.number, record.settings):
                yield task.block, f"{task.number:03d}", short_names(task.search.space), point


def _setting_label(settings: Settings) -> object:
    """Return the label of a setting on its block's axis: its value, or all values with their names."""
    if len(settings) == 1:
        (value,) = settings.values()
        return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)
    return ", ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def damaged_runs(plan: Plan, folder: Path) -> list[Run]:
    """Return the runs that once succeeded, but whose metrics can no longer be read."""
    folders = {run.id: folder_of_run(plan, run, folder) for run in plan.runs}
    return [run for run in plan.runs if is_marked(run, folders[run.id]) and metrics_of_run(folders[run.id]) is None]


def matching_metrics(patterns: Sequence[str], results: pd.DataFrame) -> list[str]:
    """Return the metrics that match a name or a pattern with `*`, in the order of the patterns, then of the methods."""
    rank = {method: position for position, method in enumerate(METHODS)}
    logged = [name for name in results.columns if "/" in name]
    logged.sort(key=lambda name: rank.get(name.split("/")[1], len(rank)))
    return list(dict.fromkeys(name for pattern in patterns for name in logged if fnmatchcase(name, pattern)))


def traded_metrics(results: pd.DataFrame, metrics: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the accuracy and the explanation metrics to plot against each other, if some run has them.

    They are taken from the metrics to show. If these have no accuracy, another logged accuracy is taken. Faithfulness
    and agreement with ground truth are preferred to single statistics.

    Args:
        results: One row per run, as `collect` returns them.
        metrics: Names of the metrics to show.
    """
    logged = [name for name in results.columns if "acc" in name and results[name].notna().any()]
    accuracies = charted_accuracies([name for name in metrics if name in logged]) or charted_accuracies(logged)
    of_methods = [name for name in metrics if method_of(name) is not None and results[name].notna().any()]
    headlines = [name for name in of_methods if name.rpartition("/")[2] in (FAITHFULNESS, TRUTH)]
    return accuracies[0] if accuracies else None, headlines or of_methods


def means(results: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: the number of runs, and of each metric the mean, standard deviation and count."""
    logged = [name for name in results.columns if "/" in name]
    rows = []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        rows.append({SWEEP: sweep, SETTING: setting, "n": len(runs), **over_runs(runs, logged)})
    return pd.DataFrame(rows)


def over_runs(runs: pd.DataFrame, metrics: Sequence[str]) -> dict[str, object]:
    """Return the mean, standard deviation and count of metrics over runs, by column name."""
    row: dict[str, object] = {}
    for name in metrics:
        row |= {f"{name} mean": runs[name].mean(), f"{name} std": runs[name].std(), f"{name} n": runs[name].count()}
    return row


def parameter_columns(results: pd.DataFrame) -> list[str]:
    """Return the columns of results that hold values of settings."""
    return [name for name in results.columns if "/" not in name and name not in COLUMNS]


@dataclass(frozen=True)
class ParetoFront:
    """Settings of a sweep, compared by the objectives.

    Attributes:
        objectives: Names of metrics, each with its direction.
        settings: One row per setting: its block, label, values and number of runs (`n`); the mean, standard deviation
            and count of each objective over the seeds; whether it is accurate enough (`accurate`); whether it is on the
            Pareto front of the accurate settings (`front`); and the id of its first run.
        parameters: Names of the columns with the settings' values.
        accuracy: Name of the accuracy; None if runs log none.
        lowest: The lowest mean accuracy of an accurate setting.
    """

    objectives: dict[str, Direction]
    settings: pd.DataFrame
    parameters: list[str]
    accuracy: str | None = None
    lowest: float = -math.inf

    @property
    def left_out(self) -> str:
        """A sentence about the settings that are too inaccurate to be among the best; empty if there are none."""
        number = int((~self.settings[ACCURATE]).sum())
        if number == 0:
            return ""
        return f"Without {count(number, 'setting')} of {self.accuracy} below {self.lowest:.3f} (see `accuracy_within`)."

    @property
    def best(self) -> pd.DataFrame:
        """The settings on the front, with the best value of the first objective first."""
        name, direction = next(iter(self.objectives.items()))
        front = self.settings[self.settings[FRONT]]
        return front.sort_values(f"{name} mean", ascending=direction == "minimize", kind="stable")


def find_frontier(
    results: pd.DataFrame,
    objectives: Mapping[str, Direction],
    accuracy: str | None = None,
    within: float | None = None,
) -> ParetoFront | None:
    """Find the settings on the Pareto front, by the means of the objectives over the seeds.

    A setting is on the front if no other setting is as good in every objective and better in one. With a single
    objective, the best setting is on the front. The explanations of a network that predicts nothing are of no use,
    however faithful they are, so only settings near the best accuracy count.

    Args:
        results: One row per run, as `collect` returns them.
        objectives: Names of metrics, each with its direction.
        accuracy: Name of the accuracy; None compares all settings.
        within: How far below the best mean accuracy a setting may be; None takes 0.05 (5 for percentages).

    Returns:
        The front; None if no setting has all objectives.
    """
    defined = [name for name in objectives if name in results and results[name].notna().any()]
    if not defined or len(defined) < len(objectives):
        return None
    parameters = parameter_columns(results)
    rows: list[dict[str, Any]] = []
    accuracies: list[float] = []
    for (sweep, setting), runs in results.groupby([SWEEP, SETTING], sort=False):
        first = runs.iloc[0]
        values = {name: first[name] for name in parameters}
        about = {SWEEP: sweep, SETTING: setting, **values, NUM_RUNS: len(runs)}
        rows.append({**about, **over_runs(runs, defined), FIRST_RUN: first[RUN]})
        accuracies.append(math.nan if accuracy is None else float(runs[accuracy].mean()))
    settings = pd.DataFrame(rows)
    lowest = _lowest_accuracy(accuracies, within)
    settings[ACCURATE] = np.isinf(lowest) | (np.array(accuracies) >= lowest)  # an undefined accuracy is not enough
    signs = np.array([1.0 if objectives[name] == "maximize" else -1.0 for name in defined])
    points = settings[[f"{name} mean" for name in defined]].to_numpy(dtype=np.float64) * signs
    points[~settings[ACCURATE].to_numpy()] = np.nan
    settings[FRONT] = np.isin(np.arange(len(settings)), pareto_front(points))
    if not settings[FRONT].any():
        return None
    return ParetoFront(dict(objectives), settings, parameters, accuracy, lowest)


def _lowest_accuracy(accuracies: Sequence[float], within: float | None) -> float:
    """Return the lowest accuracy to accept, with room for rounding; -inf if no accuracy is defined."""
    best = np.fmax.reduce(accuracies)
    if np.isnan(best):
        return -math.inf
    points = (ACCURACY_WITHIN if best <= 1 else 100 * ACCURACY_WITHIN) if within is None else within
    return float(best - points - 1e-9)


def importances(plan: Plan, study: SweepStudy) -> dict[str, dict[str, dict[str, float]]]:
    """Compute the importance of each parameter of a block for each objective, by fANOVA (Hutter et al., ICML 2014).

    The importances for a block and an objective add up to 1. Left out are blocks with one parameter or few trials,
    trials without values, and parameters that not all trials of a block have.

    Returns:
        The importance by block, objective and parameter, the most important parameter first.
    """
    of_block = {task.fingerprint: task.block for task in plan.tasks}
    trials: dict[str, list[FrozenTrial]] = {}
    for trial in study.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        block = of_block.get(trial.user_attrs.get(FINGERPRINT, ""))
        if block is not None:
            trials.setdefault(block, []).append(trial)
    by_block: dict[str, dict[str, dict[str, float]]] = {}
    for block, completed in trials.items():
        if len(completed) < FEWEST_TRIALS or len(completed[0].params) < 2:
            continue
        alone = optuna.create_study(directions=list(plan.objectives.values()))
        alone.add_trials(completed)
        for place, name in enumerate(plan.objectives):

            def objective(trial: FrozenTrial, place: int = place) -> float:
                return float(trial.values[place])

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    values = get_param_importances(alone, evaluator=FanovaImportanceEvaluator(seed=0), target=objective)
                except (ValueError, RuntimeError):  # all values are equal: no parameter has an effect
                    continue
            by_block.setdefault(block, {})[name] = dict(values)
    return by_block


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
    sweep_folder = folder / plan.name
    shutil.rmtree(sweep_folder / BEST, ignore_errors=True)
    files = []
    for place, (_, row) in enumerate(frontier.best.head(most).iterrows(), start=1):
        source = sweep_folder / str(row[FIRST_RUN]) / "config.yaml"
        if source.is_file():
            path = sweep_folder / BEST / f"{place:02d}.yaml"
            files.append(write_text(path, _config_text(plan, read_yaml(source), path, row, frontier)))
    return files


def _config_text(plan: Plan, config: dict[str, Any], path: Path, row: pd.Series, frontier: ParetoFront) -> str:
    """Return the YAML text of a best setting's config for `attree fit`, with the sweep and the values in comments."""
    trainer = dict(config.get("trainer") or {})
    callbacks = [entry for entry in trainer.get("callbacks") or [] if "ReportMetric" not in str(entry["class_path"])]
    trainer["callbacks"] = callbacks or None
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
    values = {name: row[name].item() if isinstance(row[name], np.generic) else row[name] for name in parameters}
    texts = {
        name: f"{value:.4g}" if isinstance(value, float) else value_text(value)
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }
    return ", ".join(f"{name}={text}" for name, text in texts.items())
