"""The Optuna study of a sweep: its tasks, the workers that have claimed them, and how they ended.

Any number of processes on any number of machines share one study, in a journal file or in a database. Each task is a
trial of the study. The trial waits until a worker claims it. Claiming is atomic in the storage, so no two workers get
the same task. A worker sends a heartbeat every few seconds. When a worker's heartbeats stop, another worker ends its
trial as lost and queues a new one with the same parameters. Heartbeats are numbered, not dated, so the clocks of the
machines need not agree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.io.workers import Worker
from attree.sweep.open_study import open_study
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

WORKER, BEAT = "attree:worker", "attree:beat"
"""Attributes of a trial: the worker that has claimed it, and the number of its heartbeats."""

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
        beats: Number of heartbeats that this worker has sent for the task.
        lost: Whether another worker has ended the trial. The result of this claim is then discarded.
    """

    task: Task
    points: list[Point]
    trial: Trial
    beats: int = 0
    lost: bool = False


@dataclass
class SweepStudy:
    """The study of a plan, for one worker.

    Args:
        plan: The plan.
        study: Optuna's study.
        worker: The worker that claims tasks.
        grace: Seconds without a heartbeat after which a worker counts as dead.
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
        """Open a sweep's study; None if it does not exist and `create` is False.

        Args:
            plan: The plan.
            own: The sweep's own folder.
            url: URL of the study's database; None for a journal in the folder.
            worker: The worker that claims tasks; None if the study is only read.
            create: Create the study if it does not exist.
            grace: Seconds without a heartbeat after which a worker counts as dead.
        """
        study = open_study(plan, own, url, create)
        return None if study is None else cls(plan, study, worker or Worker(own), grace)

    def records(self) -> dict[str, Record]:
        """Return the status of each task of the plan, by key."""
        newest: dict[str, FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.user_attrs.get(ENDED) != "duplicate":
                newest[trial.user_attrs.get(FINGERPRINT, "")] = trial
        return {task.key: Record.of(newest.get(task.fingerprint)) for task in self.plan.tasks}

    def enqueue(self, again: Iterable[str] = ()) -> None:
        """Queue every task that has no trial.

        Args:
            again: Keys of finished or failed tasks to repeat.
        """
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
        for waiting in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            task = tasks.get(waiting.user_attrs.get(FINGERPRINT, ""))
            if task is None or (key is not None and task.key != key) or not take_trial(self.storage, waiting):
                continue
            if self._is_duplicate(waiting):
                end_trial(self.storage, waiting, "duplicate")
                continue
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
        claim.beats += 1
        self._store(claim, BEAT, claim.beats)

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
        if not claim.lost:
            self._release(claim.task, self.storage.get_trial(claim.trial._trial_id))

    def give_back_abandoned(self) -> list[str]:
        """Queue the tasks of dead workers again, and return their keys."""
        tasks = {task.fingerprint: task for task in self.plan.tasks}
        given_back = []
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            task = tasks.get(trial.user_attrs.get(FINGERPRINT, ""))
            if task is not None and self._is_abandoned(trial) and self._release(task, trial):
                given_back.append(task.key)
        return given_back

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        """Whether the worker of a running trial is dead: its lock is free, or its heartbeats have stopped."""
        holder = trial.user_attrs.get(WORKER)
        if holder is not None:
            alive = self.worker.is_alive(holder)
            if alive is not None:
                return not alive
        beat, now = (trial.user_attrs.get(BEAT), holder is None), time.monotonic()
        if trial.number not in self._seen or self._seen[trial.number][0] != beat:
            self._seen[trial.number] = (beat, now)
        return now - self._seen[trial.number][1] > self.grace

    def _release(self, task: Task, trial: FrozenTrial) -> bool:
        """End a trial as lost, and queue a new one with its parameters. Return False if another worker was first."""
        if not end_trial(self.storage, trial, "lost"):
            return False
        self._enqueue(task, trial.params or given_parameters(self.plan, task), trial)
        return True

    def _store(self, claim: Claim, name: str, value: Any) -> None:
        """Set an attribute of a claimed trial, and notice if another worker has ended it."""
        try:
            self.storage.set_trial_user_attr(claim.trial._trial_id, name, value)
        except UpdateFinishedTrialError:
            claim.lost = True


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
