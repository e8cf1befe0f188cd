"""Settings of trials: drawn by Optuna for a search, stored as parameters for a grid or list."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.errors import ArgumentError
from attree.sweep.plan import Plan, Range, Search, Settings, Task, value_text

NUMBER = "attree:number"
"""Attribute of a trial: its number within its search."""

WARM_UP = 10
"""Number of epochs before the median pruner stops a trial."""

FIRST_TRIALS = 5
"""Number of finished trials before the median pruner stops a trial."""


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
                    trial.suggest_categorical(name, list(dict.fromkeys(value_text(choice) for choice in values)))
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
        are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in values)
        yield plan.parameter_names[task.block, key], value, values, are_numbers
