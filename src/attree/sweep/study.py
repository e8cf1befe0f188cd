"""The Optuna study of a sweep: its tasks, the workers that have claimed them, and how they ended.

Any number of processes on any number of machines share one study, in a database. Each task is a trial of the study. The
trial waits until a worker claims it. Claiming is atomic in the storage, so no two workers get the same task. A worker
sends a heartbeat of Optuna every few seconds, by the clock of the database. When a worker's heartbeats stop, another
worker lets Optuna end its trial, and queues a new one with the same parameters.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.io.lock import FolderLock
from attree.io.workers import Worker
from attree.sweep.open_study import BUSY_SECONDS, open_study
from attree.sweep.plan import Plan, Point, Task
from attree.sweep.trial import (
    ENDED,
    FINGERPRINT,
    NUMBER,
    RUNS,
    SETTINGS,
    Record,
    draw_settings,
    end_trial,
    given_parameters,
    make_pruner,
    make_sampler,
    storable,
    take_trial,
)

TASK, AFTER = "attree:task", "attree:after"
"""Attributes of a trial: the key of its task, and the number of the task's previous trial (-1 if there is none)."""

WORKER = "attree:worker"
"""Attribute of a trial: the worker that has claimed it."""

REASON = "attree:reason"
"""Attribute of a trial: the reason of a failure, or the undefined objectives."""

Metrics = Mapping[str, float]


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
    """The study of a plan, for one worker.

    Args:
        plan: The plan.
        study: Optuna's study.
        worker: The worker that claims tasks.
        grace: Seconds without a heartbeat after which a worker counts as dead.
        claim_lock: Folder to lock while a task is claimed; None if the storage does this itself.
    """

    plan: Plan
    study: Study
    worker: Worker
    grace: float = 60.0
    claim_lock: Path | None = None

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
        """Open a sweep's study; None if it does not exist and `create` is False.

        Args:
            plan: The plan.
            own: The sweep's own folder.
            url: URL of the study's database; None for SQLite in the folder.
            worker: The worker that claims tasks; None if the study is only read.
            create: Create the study if it does not exist.
            grace: Seconds without a heartbeat after which a worker counts as dead.
        """
        study = open_study(plan, own, url, create, grace)
        claim_lock = own / "claim" if url is None or url.startswith("sqlite") else None
        return None if study is None else cls(plan, study, worker or Worker(own), grace, claim_lock)

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
        """Claim the first waiting task; None if no task waits.

        Args:
            key: Key of the task to claim; None claims any.
        """
        tasks = {task.fingerprint: task for task in self.plan.tasks}
        # SQLite locks no rows: two workers could claim one trial. Other databases need no lock here.
        with nullcontext() if self.claim_lock is None else FolderLock(self.claim_lock, patience=BUSY_SECONDS):
            for waiting in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                task = tasks.get(waiting.user_attrs.get(FINGERPRINT, ""))
                if task is None or (key is not None and task.key != key) or not take_trial(self.storage, waiting):
                    continue
                if self._is_duplicate(waiting):
                    end_trial(self.storage, waiting, "duplicate")
                    continue
                self.storage.record_heartbeat(waiting._trial_id)
                return self._claimed(task, waiting)
        return None

    @property
    def storage(self) -> Any:
        """Optuna's storage. Trials are claimed through it, because `Study.ask` creates a trial if none is queued."""
        return self.study._storage

    def _is_duplicate(self, own: FrozenTrial) -> bool:
        """Whether another process queued the same task at the same time, with an earlier trial."""
        mark, after = own.user_attrs[FINGERPRINT], own.user_attrs[AFTER]
        return any(
            after < other.number < own.number
            and other.user_attrs.get(FINGERPRINT) == mark
            and other.user_attrs.get(ENDED) != "duplicate"
            for other in self.study.get_trials(deepcopy=False)
        )

    def _claimed(self, task: Task, waiting: FrozenTrial) -> Claim:
        """Return the claim on a task for this worker, with settings drawn by Optuna and stored in the trial."""
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
        return Claim(task, task.points(settings), trial)

    def beat(self, claim: Claim) -> None:
        """Send a heartbeat for a task, and notice if another worker has ended its trial."""
        self.storage.record_heartbeat(claim.trial._trial_id)
        claim.lost = claim.lost or self.storage.get_trial(claim.trial._trial_id).state.is_finished()

    def finish(self, claim: Claim, runs: Mapping[str, Metrics]) -> None:
        """Record the metrics of a task's runs. An objective's value is its mean over the runs where it is defined."""
        values = [_mean(own.get(name, math.nan) for own in runs.values()) for name in self.plan.objectives]
        undefined = [name for name, value in zip(self.plan.objectives, values, strict=True) if not math.isfinite(value)]
        self._store(claim, RUNS, storable(runs))
        if undefined:
            self._store(claim, REASON, f"undefined: {', '.join(undefined)}")
        end_trial(self.storage, claim.trial, "done", None if undefined else values)

    def fail(self, claim: Claim, reason: str) -> None:
        """Record that a task failed, with the reason."""
        self._store(claim, REASON, reason)
        end_trial(self.storage, claim.trial, "failed")

    def prune(self, claim: Claim) -> None:
        """Record that the pruner stopped a trial."""
        end_trial(self.storage, claim.trial, "done", state=TrialState.PRUNED)

    def give_back(self, claim: Claim) -> None:
        """Queue a claimed task again that this worker will not finish."""
        if not claim.lost and end_trial(self.storage, claim.trial, "lost"):
            self.enqueue()

    def give_back_abandoned(self) -> list[str]:
        """Queue the tasks of dead workers again, and return their keys.

        Optuna ends trials whose heartbeats have stopped. A dead worker on this machine is noticed at once, by its lock.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            holder, began = trial.user_attrs.get(WORKER), trial.datetime_start
            # A worker that was killed while it claimed a trial has left neither its name nor a heartbeat.
            is_unnamed = holder is None and began is not None and datetime.now() - began > timedelta(seconds=self.grace)
            if is_unnamed or (holder is not None and self.worker.is_alive(holder) is False):
                end_trial(self.storage, trial, "lost")
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


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
