"""How a search draws its settings: Optuna's samplers and pruners, and the parameters of a trial."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.errors import ArgumentError
from attree.sweep.plan import Plan, Range, Search, Settings, Task, value_text

NUMBER = "attree:number"
"""Attribute of a study's trial: which trial of its search it is."""

WARM_UP = 10
"""Epochs in which the median pruner lets every trial go on."""

FIRST_TRIALS = 5
"""Trials that the median pruner needs before it judges any."""


class SeededByTrial(BaseSampler):
    """A sampler whose random numbers depend on a seed and on the trial alone, not on which worker asks.

    Workers that share one seed would all draw the same settings; workers with different ones would draw others each
    time. With this one a random search is the same for any number of workers.

    Args:
        make: Makes the sampler of a seed.
        seed: The search's seed.
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
    """The sampler of a search. For grids and lists it is never asked, as their settings are given."""
    if search is None or search.sampler == "random":
        return SeededByTrial(lambda seed: RandomSampler(seed=seed), 0 if search is None else search.seed)
    if search.sampler == "tpe":
        return SeededByTrial(lambda seed: TPESampler(seed=seed), search.seed)
    population = max(4, min(50, search.trials // 4))  # at least four generations; Optuna's own default is 50
    return SeededByTrial(lambda seed: NSGAIISampler(seed=seed, population_size=population), search.seed)


def make_pruner(search: Search | None) -> BasePruner:
    """The pruner of a search: when a trial that does badly is ended early."""
    if search is None or search.pruner == "none":
        return NopPruner()
    if search.pruner == "median":
        return MedianPruner(n_startup_trials=FIRST_TRIALS, n_warmup_steps=WARM_UP)
    return SuccessiveHalvingPruner()


def draw_settings(plan: Plan, task: Task, trial: Trial) -> Settings:
    """The settings of a task, noted in the study as the trial's parameters.

    A search draws them. Those of a grid or list are given: they are noted so that Optuna can show them.
    """
    if task.search is None:
        assert task.point is not None
        _note_given(plan, task, trial)
        return task.point.settings
    settings = {}
    for key in task.search.space:
        try:
            settings[key] = _draw(task.search, key, plan.parameter_names[task.block, key], trial)
        except ValueError as error:  # Optuna lets the ends of a range change, but nothing else
            raise ArgumentError(
                f"Expected `search.{key}` of the sweep {plan.name!r} to have the choices, or the kind of range, that "
                "its study began with, but they have changed. Give the sweep another `name`, or remove its folder."
            ) from error
    return settings


def _draw(search: Search, key: str, name: str, trial: Trial) -> Any:
    space = search.space[key]
    if isinstance(space, Range):
        if space.is_integer:
            return trial.suggest_int(name, int(space.low), int(space.high), log=space.log, step=int(space.step or 1))
        return trial.suggest_float(name, float(space.low), float(space.high), log=space.log, step=space.step)
    if all(isinstance(value, str | int | float) for value in space.values) and len(set(space.values)) == len(
        space.values
    ):
        return trial.suggest_categorical(name, list(space.values))
    by_text = {value_text(value): value for value in space.values}  # as Optuna takes 1 and true for the same choice
    return by_text[trial.suggest_categorical(name, list(by_text))]


def _note_given(plan: Plan, task: Task, trial: Trial) -> None:
    """Note the settings of a grid or list as parameters, as far as Optuna has a kind of parameter for them."""
    assert task.point is not None
    (block,) = (block for block in plan.blocks if block.name == task.block)
    for key, value in task.point.settings.items():
        name = plan.parameter_names[task.block, key]
        values = [point.settings[key] for point in block.points if key in point.settings]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
                    trial.suggest_float(name, float(min(values)), float(max(values)))
                else:
                    trial.suggest_categorical(name, list(dict.fromkeys(value_text(one) for one in values)))
            except ValueError:  # a study keeps the choices that it began with, a file may be changed
                trial.set_user_attr(name, value_text(value))


def given_parameters(plan: Plan, task: Task) -> dict[str, Any]:
    """The parameters of a task of a grid or list, as `draw_settings` will ask for them; none for a search."""
    if task.point is None:
        return {}
    (block,) = (block for block in plan.blocks if block.name == task.block)
    given = {}
    for key, value in task.point.settings.items():
        values = [point.settings[key] for point in block.points if key in point.settings]
        numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
        given[plan.parameter_names[task.block, key]] = float(value) if numeric else value_text(value)
    return given


def quiet_optuna() -> None:
    """Keep Optuna's own log lines from the terminal: attree says what happens."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
