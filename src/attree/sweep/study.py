"""The Optuna study of a sweep: its tasks and their settings, the workers that have claimed them, how they ended.

Any number of processes on any number of machines share one study, in a database. Each task is a trial of the study. The
trial waits until a worker claims it. Claiming is atomic in the storage, so no two workers get the same task. A worker
sends a heartbeat of Optuna every few seconds, by the clock of the database. When a worker's heartbeats stop, another
worker lets Optuna end its trial, and queues a new one with the same parameters.
"""

from __future__ import annotations

import math
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.errors import ArgumentError
from attree.io.files import FolderLock
from attree.sweep.open_study import BUSY_SECONDS, open_study
from attree.sweep.plan import Plan, Point, Range, Search, Settings, Task, value_text

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


TASK, AFTER = "attree:task", "attree:after"
"""Attributes of a trial: the key of its task, and the number of the task's previous trial (-1 if there is none)."""

FINGERPRINT = "attree:fingerprint"
"""Attribute of a trial: the fingerprint of its task. A task that was lost or repeated has several trials."""

SETTINGS, RUNS = "attree:settings", "attree:runs"
"""Attributes of a trial: its settings, and the metrics of its runs by id."""

ENDED = "attree:ended"
"""Attribute of a trial: `done`, `failed`, `lost` or `duplicate`. Optuna's states do not distinguish these."""

WORKER = "attree:worker"
"""Attribute of a trial: the machine and process that claimed it, for people."""

REASON = "attree:reason"
"""Attribute of a trial: the reason of a failure, or the undefined objectives."""

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Record:
    """The status of a task.

    Attributes:
        status: Whether the task waits, runs, is done or has failed; `missing` if it must be queued.
        trial: The newest trial of the task; None if there is none.
    """

    status: Literal["missing", "waiting", "running", "done", "failed"]
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
        """The metrics of the task's runs by run id. Undefined metrics, which JSON stores as null, are NaN."""
        stored = {} if self.trial is None else self.trial.user_attrs.get(RUNS, {})
        return {
            run: {name: math.nan if value is None else value for name, value in metrics.items()}
            for run, metrics in stored.items()
        }


@dataclass
class Claim:
    """A task that this worker has claimed.

    Attributes:
        task: The task.
        points: The points to run: one per seed for a search, a single one for a grid or list.
        trial: The trial in the study.
        lost: Whether another worker has ended the trial. The result of this claim is then discarded.
    """

    task: Task
    points: list[Point]
    trial: Trial
    lost: bool = False


@dataclass
class SweepStudy:
    """The study of a plan, for one process.

    Args:
        plan: The plan.
        study: Optuna's study.
        grace: Seconds without a heartbeat after which a worker counts as dead.
        claim_lock: Folder to lock while a task is claimed; None if the storage does this itself.
    """

    plan: Plan
    study: Study
    grace: float = 60.0
    claim_lock: Path | None = None

    @classmethod
    def open(
        cls, plan: Plan, folder: Path, url: str | None, create: bool = True, grace: float = 60.0
    ) -> SweepStudy | None:
        """Open a sweep's study. Raise if its trials cannot be compared with those of the plan.

        Args:
            plan: The plan.
            folder: The sweep's own folder.
            url: URL of the study's database; None for SQLite in the folder.
            create: Create the study if it does not exist.
            grace: Seconds without a heartbeat after which a worker counts as dead.

        Returns:
            The study; None if it does not exist and `create` is False.
        """
        study = open_study(plan, folder, url, create, grace)
        lock = folder / "claim" if url is None or url.startswith("sqlite") else None
        return None if study is None else cls(plan, study, grace, lock)

    @property
    def storage(self) -> Any:
        """Optuna's storage. Trials are claimed through it, because `Study.ask` creates a trial if none is queued."""
        return self.study._storage

    def records(self) -> dict[str, Record]:
        """Return the status of each task of the plan, by key."""
        newest: dict[str, FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.user_attrs.get(ENDED) != "duplicate":
                newest[trial.user_attrs.get(FINGERPRINT, "")] = trial
        return {task.key: Record.of(newest.get(task.fingerprint)) for task in self.plan.tasks}

    def enqueue(self, again: Iterable[str] = ()) -> None:
        """Queue every task that has no trial, or whose trial was lost. A lost trial's parameters are kept.

        Args:
            again: Keys of finished or failed tasks to repeat.
        """
        records, repeated = self.records(), set(again)
        for task in self.plan.tasks:
            record = records[task.key]
            if record.status == "missing" or (task.key in repeated and record.status in ("done", "failed")):
                drawn = record.trial.params if record.status == "missing" and record.trial is not None else {}
                self._enqueue(task, drawn or given_parameters(self.plan, task), record.trial)

    def _enqueue(self, task: Task, parameters: Mapping[str, Any], after: FrozenTrial | None) -> None:
        attributes = {
            TASK: task.key,
            FINGERPRINT: task.fingerprint,
            NUMBER: task.number,
            AFTER: -1 if after is None else after.number,
        }
        self.study.enqueue_trial(dict(parameters), user_attrs=attributes)

    def adopt(self, task: Task, metrics: Metrics) -> None:
        """Record a run of a grid or list as done that was finished before the study existed."""
        self._enqueue(task, given_parameters(self.plan, task), None)
        claim = self.claim(task.key)
        if claim is not None:
            self.finish(claim, {claim.points[0].run.id: metrics})

    def claim(self, key: str | None = None) -> Claim | None:
        """Claim the first waiting task, with settings drawn by Optuna and stored in the trial; None if no task waits.

        Args:
            key: Key of the task to claim; None claims any.
        """
        tasks = {task.fingerprint: task for task in self.plan.tasks if key in (None, task.key)}
        # SQLite locks no rows: two workers could claim one trial. Other databases need no lock here.
        with nullcontext() if self.claim_lock is None else FolderLock(self.claim_lock, patience=BUSY_SECONDS):
            for waiting in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                task = tasks.get(waiting.user_attrs.get(FINGERPRINT, ""))
                if task is None or not self._take(waiting):
                    continue
                if self._is_duplicate(waiting):
                    self._end(waiting, "duplicate")
                    continue
                sampler, pruner = make_sampler(task.search), make_pruner(task.search)
                study = optuna.load_study(
                    study_name=self.plan.name, storage=self.storage, sampler=sampler, pruner=pruner
                )
                trial = Trial(study, waiting._trial_id)
                settings = draw_settings(self.plan, task, trial)
                trial.set_user_attr(SETTINGS, settings)
                trial.set_user_attr(WORKER, f"process {os.getpid()} on {socket.gethostname()}")
                return Claim(task, task.points(settings), trial)
        return None

    def _take(self, trial: FrozenTrial) -> bool:
        """Change a trial from waiting to running. Return False if another worker was first."""
        # The heartbeat comes first: Optuna never ends a running trial that has none.
        self.storage.record_heartbeat(trial._trial_id)
        try:
            return bool(self.storage.set_trial_state_values(trial._trial_id, state=TrialState.RUNNING))
        except UpdateFinishedTrialError:
            return False

    def _is_duplicate(self, trial: FrozenTrial) -> bool:
        """Whether another process queued the same task at the same time, with an earlier trial."""
        mark, after = trial.user_attrs[FINGERPRINT], trial.user_attrs[AFTER]
        return any(
            after < other.number < trial.number
            and other.user_attrs.get(FINGERPRINT) == mark
            and other.user_attrs.get(ENDED) != "duplicate"
            for other in self.study.get_trials(deepcopy=False)
        )

    def beat(self, claim: Claim) -> None:
        """Send a heartbeat for a task, and notice if another worker has ended its trial."""
        self.storage.record_heartbeat(claim.trial._trial_id)
        claim.lost = claim.lost or self.storage.get_trial(claim.trial._trial_id).state.is_finished()

    def finish(self, claim: Claim, runs: Mapping[str, Metrics]) -> None:
        """Record the metrics of a task's runs. An objective's value is its mean over the runs where it is defined."""
        values = [_mean(metrics.get(name, math.nan) for metrics in runs.values()) for name in self.plan.objectives]
        undefined = [name for name, value in zip(self.plan.objectives, values, strict=True) if not math.isfinite(value)]
        storable = {  # JSON has no NaN
            run: {name: value if math.isfinite(value) else None for name, value in metrics.items()}
            for run, metrics in runs.items()
        }
        self._store(claim, RUNS, storable)
        if undefined:
            self._store(claim, REASON, f"undefined: {', '.join(undefined)}")
        self._end(claim.trial, "done", None if undefined else values)

    def fail(self, claim: Claim, reason: str) -> None:
        """Record that a task failed, with the reason."""
        self._store(claim, REASON, reason)
        self._end(claim.trial, "failed")

    def prune(self, claim: Claim) -> None:
        """Record that the pruner stopped a trial."""
        self._end(claim.trial, "done", state=TrialState.PRUNED)

    def give_back(self, claim: Claim) -> None:
        """Queue a claimed task again that this worker will not finish."""
        if not claim.lost and self._end(claim.trial, "lost"):
            self.enqueue()

    def give_back_abandoned(self) -> list[str]:
        """Queue the tasks again whose workers' heartbeats have stopped, and return their keys."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)
        records = self.records().items()
        lost = [key for key, record in records if record.status == "missing" and record.trial is not None]
        if lost:
            self.enqueue()
        return lost

    def _store(self, claim: Claim, name: str, value: Any) -> None:
        """Set an attribute of a claimed trial, and notice if another worker has ended it."""
        try:
            self.storage.set_trial_user_attr(claim.trial._trial_id, name, value)
        except UpdateFinishedTrialError:
            claim.lost = True

    def _end(
        self,
        trial: FrozenTrial | Trial,
        how: str,
        values: list[float] | None = None,
        state: TrialState = TrialState.FAIL,
    ) -> bool:
        """End a trial. Return False if it has already ended.

        Args:
            trial: The trial.
            how: Value of the attribute `ENDED`.
            values: Values of the objectives; None if some are undefined. Optuna stores such a trial only as a failure.
            state: Optuna's state of a trial without values.
        """
        try:
            self.storage.set_trial_user_attr(trial._trial_id, ENDED, how)
            ended = TrialState.COMPLETE if values is not None else state
            return bool(self.storage.set_trial_state_values(trial._trial_id, state=ended, values=values))
        except UpdateFinishedTrialError:
            return False


def _mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
