"""The trials of a sweep's study: their status, their settings, and how they begin and end."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.errors import ArgumentError
from attree.sweep.plan import Plan, Range, Search, Settings, Task, value_text

FINGERPRINT = "attree:fingerprint"
"""Attribute of a trial: the fingerprint of its task. A task that was lost or repeated has several trials."""

SETTINGS, RUNS = "attree:settings", "attree:runs"
"""Attributes of a trial: its settings, and the metrics of its runs by id."""

ENDED = "attree:ended"
"""Attribute of a trial: `done`, `failed`, `lost` or `duplicate`. Optuna's states do not distinguish these."""

Status = Literal["missing", "waiting", "running", "done", "failed"]

NUMBER = "attree:number"
"""Attribute of a trial: its number within its search."""

WARM_UP = 10
"""Number of epochs before the median pruner stops a trial."""

FIRST_TRIALS = 5
"""Number of finished trials before the median pruner stops a trial."""


@dataclass(frozen=True)
class Record:
    """The status of a task.

    Attributes:
        status: Whether the task waits, runs, is done or has failed; `missing` if it must be queued.
        trial: The newest trial of the task; None if there is none.
    """

    status: Status
    trial: FrozenTrial | None

    @classmethod
    def of(cls, trial: FrozenTrial | None) -> Record:
        """Return the record of a task from its newest trial."""
        if trial is None:
            return cls("missing", None)
        if not trial.state.is_finished():
            return cls("running" if trial.state == TrialState.RUNNING else "waiting", trial)
        ended = trial.user_attrs.get(ENDED)
        if ended == "done" or trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            return cls("done", trial)
        return cls("failed" if ended == "failed" else "missing", trial)  # lost, or ended by Optuna

    @property
    def settings(self) -> Settings | None:
        """The settings of the trial; None if they have not been drawn yet."""
        return None if self.trial is None else self.trial.user_attrs.get(SETTINGS)

    @property
    def runs(self) -> dict[str, dict[str, float]]:
        """The metrics of the task's runs by run id. Undefined metrics are NaN."""
        stored = {} if self.trial is None else self.trial.user_attrs.get(RUNS, {})
        return {
            run: {name: math.nan if value is None else value for name, value in metrics.items()}
            for run, metrics in stored.items()
        }


def storable(runs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Return metrics by run id as the study can store them: JSON has no NaN, so undefined metrics become None."""
    return {
        run: {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        for run, metrics in runs.items()
    }


def take_trial(storage: Any, trial: FrozenTrial) -> bool:
    """Change a trial from waiting to running. Return False if another worker was first."""
    try:
        return bool(storage.set_trial_state_values(trial._trial_id, state=TrialState.RUNNING))
    except UpdateFinishedTrialError:
        return False


def end_trial(
    storage: Any,
    trial: FrozenTrial | Trial,
    how: str,
    values: list[float] | None = None,
    state: TrialState = TrialState.FAIL,
) -> bool:
    """End a trial. Return False if it has already ended.

    Args:
        storage: Optuna's storage.
        trial: The trial.
        how: Value of the attribute `ENDED`.
        values: Values of the objectives; None if some are undefined. Optuna stores such a trial only as a failure.
        state: Optuna's state of a trial without values.
    """
    try:
        storage.set_trial_user_attr(trial._trial_id, ENDED, how)
        ended = TrialState.COMPLETE if values is not None else state
        return bool(storage.set_trial_state_values(trial._trial_id, state=ended, values=values))
    except UpdateFinishedTrialError:
        return False


class SeededByTrial(BaseSampler):
    """A sampler whose random numbers depend only on a seed and the trial, not on the worker.

    Workers with the same seed would all draw the same settings. Workers with different seeds would draw other settings
    in every call. With this sampler, a random search is the same for any number of workers.

    Args:
        make: Makes a sampler from a seed.
        seed: Seed of the search.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make = make
        self._seed = seed
        self._sampler = make(seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        number = int(trial.user_attrs.get(NUMBER, trial.number))
        self._sampler = self._make(int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0]))
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        self._sampler.after_trial(study, trial, state, values)


def make_sampler(search: Search | None) -> BaseSampler:
    """Return the sampler of a search. For grids and lists, whose settings are given, it is never used."""
    if search is None or search.sampler == "random":
        return SeededByTrial(lambda seed: RandomSampler(seed=seed), 0 if search is None else search.seed)
    if search.sampler == "tpe":
        return SeededByTrial(lambda seed: TPESampler(seed=seed), search.seed)
    population = max(4, min(50, search.trials // 4))  # at least four generations; Optuna's own default is 50
    return SeededByTrial(lambda seed: NSGAIISampler(seed=seed, population_size=population), search.seed)


def make_pruner(search: Search | None) -> BasePruner:
    """Return the pruner of a search, which decides when a bad trial is stopped early."""
    if search is None or search.pruner == "none":
        return NopPruner()
    if search.pruner == "median":
        return MedianPruner(n_startup_trials=FIRST_TRIALS, n_warmup_steps=WARM_UP)
    return SuccessiveHalvingPruner()


def draw_settings(plan: Plan, task: Task, trial: Trial) -> Settings:
    """Return the settings of a task, and store them in the study as the trial's parameters.

    A search draws the settings. The settings of a grid or list are stored only so that Optuna can show them.
    """
    if task.search is None:
        assert task.point is not None
        _store_settings(plan, task, trial)
        return task.point.settings
    settings = {}
    for key in task.search.space:
        try:
            settings[key] = _draw(task.search, key, plan.parameter_names[task.block, key], trial)
        except ValueError as error:  # Optuna accepts changed ends of a range, but no other change
            raise ArgumentError(
                f"Expected `search.{key}` of the sweep {plan.name!r} to have the choices, or the kind of range, that "
                "its study began with, but they have changed. Give the sweep another `name`, or remove its folder."
            ) from error
    return settings


def _draw(search: Search, key: str, name: str, trial: Trial) -> Any:
    """Return the value that Optuna's sampler suggests to a trial for one parameter of a search."""
    space = search.space[key]
    if isinstance(space, Range):
        if space.is_integer:
            return trial.suggest_int(name, int(space.low), int(space.high), log=space.log, step=int(space.step or 1))
        return trial.suggest_float(name, float(space.low), float(space.high), log=space.log, step=space.step)
    are_plain = all(isinstance(value, str | int | float) for value in space.values)
    if are_plain and len(set(space.values)) == len(space.values):
        return trial.suggest_categorical(name, list(space.values))
    by_text = {value_text(value): value for value in space.values}  # Optuna takes 1 and true for the same choice
    return by_text[trial.suggest_categorical(name, list(by_text))]


def _store_settings(plan: Plan, task: Task, trial: Trial) -> None:
    """Store the settings of a grid or list as parameters, or as attributes if the study cannot take them."""
    for name, value, values, are_numbers in _given_settings(plan, task):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if are_numbers:
                    trial.suggest_float(name, float(min(values)), float(max(values)))
                else:
                    trial.suggest_categorical(name, list(dict.fromkeys(value_text(one) for one in values)))
            except ValueError:  # the study keeps its first choices, but the file may have changed
                trial.set_user_attr(name, value_text(value))


def given_parameters(plan: Plan, task: Task) -> dict[str, Any]:
    """Return the parameters of a task of a grid or list, by the names that `draw_settings` uses; none for a search."""
    return {
        name: float(value) if are_numbers else value_text(value)
        for name, value, _, are_numbers in _given_settings(plan, task)
    }


def _given_settings(plan: Plan, task: Task) -> Iterator[tuple[str, Any, list[Any], bool]]:
    """Yield the name, value, and all values in the block of each given setting, and whether these are numbers."""
    if task.point is None:
        return
    (block,) = (block for block in plan.blocks if block.name == task.block)
    for key, value in task.point.settings.items():
        values = [point.settings[key] for point in block.points if key in point.settings]
        are_numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
        yield plan.parameter_names[task.block, key], value, values, are_numbers


def quiet_optuna() -> None:
    """Hide Optuna's log lines, because attree prints its own."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
