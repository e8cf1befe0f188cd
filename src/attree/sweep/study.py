"""The Optuna study behind a sweep: which tasks there are, who has claimed them, and how they ended.

Any number of processes on any number of machines share one study, in a journal file or in a database. A task is a trial
of the study, and waits in it until a worker claims it: that is one step in the storage, so that no two get the same
one. A worker gives a sign of life every few seconds. Where the signs end, others give the trial back: it counts as
failed, and a new one with the same parameters waits in its place. Signs are counted, not dated, so that the clocks of
machines need not agree.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.errors import ArgumentError
from attree.io.workers import Worker
from attree.sweep.plan import Plan, Point, Settings, Task
from attree.sweep.sampling import NUMBER, draw_settings, given_parameters, make_pruner, make_sampler
from attree.sweep.storage import open_storage

TASK, FINGERPRINT, AFTER = "attree:task", "attree:fingerprint", "attree:after"
WORKER, BEAT = "attree:worker", "attree:beat"
SETTINGS, RUNS, REASON, ENDED = "attree:settings", "attree:runs", "attree:reason", "attree:ended"
SEARCHES, OBJECTIVES = "attree:searches", "attree:objectives"

Status = Literal["missing", "waiting", "running", "done", "failed"]
Metrics = Mapping[str, float]


@dataclass
class Claim:
    """A task that this worker has.

    Attributes:
        task: The task.
        points: Its runs, one a seed; a single one for a grid or list.
        trial: The study's trial.
        beats: Signs of life that were given.
        lost: Whether others have taken the task for abandoned: nothing that comes of it counts.
    """

    task: Task
    points: list[Point]
    trial: Trial
    beats: int = 0
    lost: bool = False


@dataclass(frozen=True)
class Record:
    """How far a task is.

    Attributes:
        status: Whether it waits, runs, is done or has failed.
        trial: The newest trial of it; None if there is none.
    """

    status: Status
    trial: FrozenTrial | None

    @property
    def settings(self) -> Settings | None:
        """The settings that were drawn for a trial of a search; None before."""
        return None if self.trial is None else self.trial.user_attrs.get(SETTINGS)

    @property
    def runs(self) -> dict[str, dict[str, float]]:
        """The metrics of its runs by id, as the study keeps them."""
        stored = {} if self.trial is None else self.trial.user_attrs.get(RUNS, {})
        return {run: {name: _number(value) for name, value in metrics.items()} for run, metrics in stored.items()}


@dataclass
class SweepStudy:
    """A plan's study, as one worker sees it.

    Args:
        plan: The plan.
        study: Optuna's study.
        worker: Who claims tasks.
        grace: Seconds without a sign of life after which a worker counts as dead.
    """

    plan: Plan
    study: Study
    worker: Worker
    grace: float = 60.0
    _seen: dict[int, tuple[Any, float]] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        plan: Plan,
        own: Path,
        url: str | None,
        worker: Worker | None = None,
        create: bool = True,
        grace: float = 60.0,
    ) -> SweepStudy | None:
        """Open the study of a sweep, or begin it; None if there is none and it is not to be begun.

        Args:
            plan: The plan.
            own: The sweep's folder.
            url: The database; None for a journal in the folder.
            worker: Who claims tasks; None for someone who only looks.
            create: Whether to begin a study where there is none.
            grace: Seconds without a sign of life after which a worker counts as dead.
        """
        storage = open_storage(own, url, create)
        if storage is None:
            return None
        if create:
            study = optuna.create_study(
                storage=storage,
                study_name=plan.name,
                directions=list(plan.objectives.values()),
                load_if_exists=True,
            )
        else:
            try:
                study = optuna.load_study(storage=storage, study_name=plan.name)
            except KeyError:
                return None
        opened = cls(plan, study, worker or Worker(own), grace)
        opened._check_same(create)
        return opened

    def _check_same(self, create: bool) -> None:
        """Refuse a study of other objectives, or whose search had another config: its trials cannot be compared."""
        known = self.study.user_attrs
        objectives = [[name, direction] for name, direction in self.plan.objectives.items()]
        searches = {search.name: search.fingerprint for search in self.plan.searches}
        how = "Give the sweep another `name`, or remove its study."
        if known.get(OBJECTIVES, objectives) != objectives:
            before = ", ".join(f"{name}: {direction}" for name, direction in known[OBJECTIVES])
            raise ArgumentError(
                f"Expected the sweep {self.plan.name!r} to have the objectives that its study began with ({before}), "
                f"but got {', '.join(f'{name}: {direction}' for name, direction in objectives)}. {how}"
            )
        changed = [name for name, mark in searches.items() if known.get(SEARCHES, {}).get(name, mark) != mark]
        if changed:
            raise ArgumentError(
                f"Expected the search {changed[0]!r} of {self.plan.name!r} to have the config, `set`, `keys` and "
                f"`seeds` that its study began with, as its trials are compared, but they have changed. {how}"
            )
        if create and OBJECTIVES not in known:
            self.study.set_user_attr(OBJECTIVES, objectives)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                self.study.set_metric_names(list(self.plan.objectives))
        if create and {**known.get(SEARCHES, {}), **searches} != known.get(SEARCHES, {}):
            self.study.set_user_attr(SEARCHES, {**known.get(SEARCHES, {}), **searches})

    def records(self) -> dict[str, Record]:
        """How far each task of the plan is, by key."""
        newest: dict[str, FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.user_attrs.get(ENDED) != "duplicate":
                newest[trial.user_attrs.get(FINGERPRINT, "")] = trial
        return {task.key: _record(newest.get(task.fingerprint)) for task in self.plan.tasks}

    def enqueue(self, again: Iterable[str] = ()) -> None:
        """Let every task wait that nobody has begun, and those that are to be done again, by key."""
        records, wanted = self.records(), set(again)
        for task in self.plan.tasks:
            record = records[task.key]
            if record.status == "missing" or (task.key in wanted and record.status in ("done", "failed")):
                self._enqueue(task, given_parameters(self.plan, task), record.trial)

    def _enqueue(self, task: Task, parameters: Mapping[str, Any], after: FrozenTrial | None) -> None:
        attributes = {
            TASK: task.key,
            FINGERPRINT: task.fingerprint,
            NUMBER: task.number,
            AFTER: -1 if after is None else after.number,
        }
        self.study.enqueue_trial(dict(parameters), user_attrs=attributes)

    def adopt(self, task: Task, metrics: Metrics) -> None:
        """Note a run of a grid or list that was finished before there was a study."""
        self._enqueue(task, given_parameters(self.plan, task), None)
        claim = self.claim(task.key)
        if claim is not None:
            self.finish(claim, {claim.points[0].run.id: metrics})

    def claim(self, key: str | None = None) -> Claim | None:
        """Take the first task that waits, or the one of this key; None if none waits."""
        tasks = {task.fingerprint: task for task in self.plan.tasks}
        for waiting in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            task = tasks.get(waiting.user_attrs.get(FINGERPRINT, ""))
            if task is None or (key is not None and task.key != key) or not self._take(waiting):
                continue
            if self._is_duplicate(waiting):
                self._end(waiting, "duplicate")
                continue
            return self._claimed(task, waiting)
        return None

    def _take(self, waiting: FrozenTrial) -> bool:
        """Change a trial from waiting to running; False if another worker has."""
        try:
            return self.storage.set_trial_state_values(waiting._trial_id, state=TrialState.RUNNING)
        except UpdateFinishedTrialError:
            return False

    @property
    def storage(self) -> Any:
        """Optuna's storage. What `Study.ask` does is done with it, as `ask` makes a new trial where none waits."""
        return self.study._storage

    def _is_duplicate(self, own: FrozenTrial) -> bool:
        """Whether another process let the same task wait at the same moment, and its trial comes before this one."""
        mark, after = own.user_attrs[FINGERPRINT], own.user_attrs[AFTER]
        return any(
            after < other.number < own.number
            and other.user_attrs.get(FINGERPRINT) == mark
            and other.user_attrs.get(ENDED) != "duplicate"
            for other in self.study.get_trials(deepcopy=False)
        )

    def _claimed(self, task: Task, waiting: FrozenTrial) -> Claim:
        study = optuna.load_study(
            study_name=self.plan.name,
            storage=self.storage,
            sampler=make_sampler(task.search),
            pruner=make_pruner(task.search),
        )
        trial = Trial(study, waiting._trial_id)
        trial.set_user_attr(WORKER, self.worker.as_dict())
        settings = draw_settings(self.plan, task, trial)
        trial.set_user_attr(SETTINGS, settings)
        return Claim(task, _points(task, settings), trial)

    def beat(self, claim: Claim) -> None:
        """Give a sign of life for a task; notice if others have given it back."""
        claim.beats += 1
        try:
            self.storage.set_trial_user_attr(claim.trial._trial_id, BEAT, claim.beats)
        except UpdateFinishedTrialError:
            claim.lost = True

    def finish(self, claim: Claim, runs: Mapping[str, Metrics]) -> None:
        """Note what came of a task: its metrics, and the mean of each objective over its runs where one is defined."""
        stored = {run: {name: _plain(value) for name, value in own.items()} for run, own in runs.items()}
        values = [_mean(own.get(name, math.nan) for own in runs.values()) for name in self.plan.objectives]
        undefined = [name for name, value in zip(self.plan.objectives, values, strict=True) if not math.isfinite(value)]
        self._note(claim, RUNS, stored)
        if undefined:
            self._note(claim, REASON, f"undefined: {', '.join(undefined)}")
            self._end(claim.trial, "done")
        else:
            self._end(claim.trial, "done", values)

    def fail(self, claim: Claim, reason: str) -> None:
        """Note that a task failed, and why."""
        self._note(claim, REASON, reason)
        self._end(claim.trial, "failed")

    def prune(self, claim: Claim) -> None:
        """Note that a trial was ended early because others did better."""
        self._end(claim.trial, "done", state=TrialState.PRUNED)

    def give_back(self, claim: Claim) -> None:
        """Let a task that this worker will not finish wait for another."""
        if not claim.lost:
            self._release(claim.task, self.storage.get_trial(claim.trial._trial_id))

    def give_back_abandoned(self) -> list[str]:
        """Let tasks wait again whose workers are dead; returns their keys."""
        tasks = {task.fingerprint: task for task in self.plan.tasks}
        given_back = []
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            task = tasks.get(trial.user_attrs.get(FINGERPRINT, ""))
            if task is not None and self._is_abandoned(trial) and self._release(task, trial):
                given_back.append(task.key)
        return given_back

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        holder = trial.user_attrs.get(WORKER)
        if holder is not None:
            alive = self.worker.knows_alive(holder)
            if alive is not None:
                return not alive
        sign, now = (trial.user_attrs.get(BEAT), holder is None), time.monotonic()
        if trial.number not in self._seen or self._seen[trial.number][0] != sign:
            self._seen[trial.number] = (sign, now)
        return now - self._seen[trial.number][1] > self.grace

    def _release(self, task: Task, trial: FrozenTrial) -> bool:
        """End a trial as lost, and let a new one with its parameters wait; False if another worker was first."""
        if not self._end(trial, "lost"):
            return False
        self._enqueue(task, trial.params or given_parameters(self.plan, task), trial)
        return True

    def _note(self, claim: Claim, name: str, value: Any) -> None:
        try:
            claim.trial.set_user_attr(name, value)
        except UpdateFinishedTrialError:
            claim.lost = True

    def _end(
        self,
        trial: FrozenTrial | Trial,
        how: str,
        values: list[float] | None = None,
        state: TrialState = TrialState.FAIL,
    ) -> bool:
        """End a trial; False if it has ended already. Without values Optuna has no other state than a failure."""
        try:
            self.storage.set_trial_user_attr(trial._trial_id, ENDED, how)
            ended = TrialState.COMPLETE if values is not None else state
            return bool(self.storage.set_trial_state_values(trial._trial_id, state=ended, values=values))
        except UpdateFinishedTrialError:
            return False


def _points(task: Task, settings: Settings) -> list[Point]:
    if task.search is not None:
        return task.search.points(task.number, settings)
    assert task.point is not None
    return [task.point]


def _record(trial: FrozenTrial | None) -> Record:
    if trial is None:
        return Record("missing", None)
    if not trial.state.is_finished():
        return Record("running" if trial.state == TrialState.RUNNING else "waiting", trial)
    ended = trial.user_attrs.get(ENDED)
    if ended == "done" or trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
        return Record("done", trial)
    return Record("missing" if ended == "lost" else "failed", trial)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
