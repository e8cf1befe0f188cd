"""The workers of a sweep: threads of this process that claim tasks and do their runs until all tasks are done."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, Queue
from time import monotonic

from attree.callbacks.tensorboard import RUNS_BESIDE
from attree.errors import did_you_mean
from attree.sweep.open_study import BEATS_PER_GRACE
from attree.sweep.single_run import (
    REPORT_FILE,
    Launch,
    Outcome,
    do_run,
    folder_of_run,
    metrics_of_run,
    read_reported,
    threads_per_worker,
)
from attree.sweep.study import Claim, SweepStudy

IDLE = 1.0
"""Seconds between two looks for a task if none waits."""


@dataclass(frozen=True)
class Event:
    """An event of a sweep: a run ended, tasks of dead workers were queued again, or a worker ended. May be empty.

    Attributes:
        outcome: The run that ended; None if no run ended.
        given_back: Keys of the tasks of dead workers that were queued again.
        error: The exception that ended a worker; None if there is none.
        is_last: Whether a worker has nothing more to do.
    """

    outcome: Outcome | None = None
    given_back: tuple[str, ...] = ()
    error: BaseException | None = None
    is_last: bool = False


class Workers:
    """Threads that claim tasks of a study, each with at most one fit at a time.

    Args:
        study: The study.
        folder: Folder that holds the sweep's folder.
        number: Number of threads.
        launch: Runs `attree`.
        key: Key of the only task to do; None does all tasks. A task that another process has is waited for, in case the
            process dies: all of them as long as they run, a single one for the grace period.
    """

    def __init__(self, study: SweepStudy, folder: Path, number: int, launch: Launch, key: str | None = None) -> None:
        self.study = study
        self.folder = folder
        self.launch = launch
        self.key = key
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads_per_worker(number)),
            RUNS_BESIDE: str(study.plan.num_runs + 1),  # one more for the summary's figures
        }
        self._events: Queue[Event] = Queue()
        self._stop = threading.Event()
        self._began = monotonic()
        self._claims: dict[int, Claim] = {}
        self._threads = [threading.Thread(target=self._work, name="worker", daemon=True) for _ in range(number)]
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def events(self, patience: float = IDLE) -> Iterator[Event]:
        """Start the threads, and yield events until all tasks are done.

        Args:
            patience: Seconds after which an empty event is yielded.
        """
        self._heart.start()
        for thread in self._threads:
            thread.start()
        while True:
            try:
                event = self._events.get(timeout=patience)
            except Empty:
                if self._is_over():
                    return
                yield Event()
                continue
            if event.error is not None:
                raise event.error
            yield event
            if event.is_last and self._is_over():
                return

    def _is_over(self) -> bool:
        return self._events.empty() and not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Claim no more tasks, and stop every run early."""
        self._stop.set()

    def join(self, seconds: float = 30.0) -> None:
        """Wait until all claimed tasks are finished or given back."""
        end = monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - monotonic()))

    def _work(self) -> None:
        """Claim tasks and do their runs in this thread until none are left; put errors into the event queue."""
        try:
            while not self._stop.is_set():
                claim = self.study.claim(self.key)
                if claim is not None:
                    self._do(claim)
                elif not self._may_get_tasks():
                    return
        except BaseException as error:
            self._events.put(Event(error=error))
        finally:
            self._events.put(Event(is_last=True))

    def _may_get_tasks(self) -> bool:
        """Whether more tasks may be queued: tasks of other workers are queued again if these workers die."""
        given_back = self.study.give_back_abandoned()
        if given_back:
            self._events.put(Event(given_back=tuple(given_back)))
            return True
        states = {record.status for key, record in self.study.records().items() if self.key in (None, key)}
        if "missing" in states:
            self.study.enqueue()
            return True
        if self.key is not None and monotonic() - self._began > self.study.grace + IDLE:
            return False
        if states & {"waiting", "running"}:
            self._stop.wait(IDLE)
            return True
        return False

    def _beat(self) -> None:
        while not self._stop.wait(self.study.grace / BEATS_PER_GRACE):
            for claim in list(self._claims.values()):
                if not claim.lost:
                    self.study.beat(claim)

    def _do(self, claim: Claim) -> None:
        """Do the runs of a task one after the other, and record their outcome in the study."""
        self._claims[id(claim)] = claim
        try:
            metrics: dict[str, Mapping[str, float]] = {}
            for place, point in enumerate(claim.points):
                watch = _Watch(self, claim, point.run.id, is_first=place == 0)
                outcome = do_run(
                    self.study.plan, point.run, self.folder, self.environment, self.launch, watch.is_over, watch.metric
                )
                if outcome.status == "stopped" and watch.is_pruned:
                    self.study.prune(claim)
                    self._events.put(Event(outcome))
                    return
                if outcome.status == "stopped" or (outcome.status == "failed" and self._gone(claim)):
                    self.study.give_back(claim)
                    return
                if outcome.status == "failed":
                    self._events.put(Event(outcome))
                    self.study.fail(claim, outcome.reason)
                    return
                metrics[point.run.id] = metrics_of_run(folder_of_run(self.study.plan, point.run, self.folder)) or {}
                missing = self._missing_objective(metrics[point.run.id])
                if missing:
                    self._events.put(Event(replace(outcome, status="failed", reason=missing)))
                    self.study.fail(claim, missing)
                    return
                self._events.put(Event(outcome))
            self.study.finish(claim, metrics)
        except BaseException:
            self.study.give_back(claim)
            raise
        finally:
            del self._claims[id(claim)]

    def _missing_objective(self, metrics: Mapping[str, float]) -> str:
        """Return an error message if a run did not log an objective, as when its name is misspelled; else empty."""
        plan = self.study.plan
        missing = [name for name in plan.objectives if name not in metrics] if plan.has_objectives else []
        if not missing:
            return ""
        hint = did_you_mean(missing[0], metrics)
        return f"Expected every run to log the objective {missing[0]!r}, but this run did not.{hint}"

    def _gone(self, claim: Claim) -> bool:
        """Whether a run's result no longer counts: this process must stop, or another worker has the task."""
        return self._stop.is_set() or claim.lost


class _Watch:
    """Reports a run's metric to the pruner, and decides whether the run stops early.

    Only the first run of a trial is reported, because the runs of other seeds would give an epoch a second value.
    """

    def __init__(self, workers: Workers, claim: Claim, run_id: str, is_first: bool) -> None:
        self._workers = workers
        self._claim = claim
        search, plan = claim.task.search, workers.study.plan
        is_reported = is_first and search is not None and search.pruner != "none"
        self.metric = next(iter(plan.objectives)) if is_reported else None
        self._file = workers.folder / plan.name / run_id / REPORT_FILE
        self._reported: set[int] = set(claim.trial.storage.get_trial(claim.trial._trial_id).intermediate_values)
        self.is_pruned = False

    def is_over(self) -> bool:
        """Report the run's new metric values to the pruner, and return whether the run stops early."""
        if self._workers._gone(self._claim):
            return True
        if self.metric is not None and not self.is_pruned:
            new = {epoch: value for epoch, value in read_reported(self._file).items() if epoch not in self._reported}
            for epoch, value in new.items():
                self._claim.trial.report(value, epoch)
                self._reported.add(epoch)
            self.is_pruned = bool(new) and self._claim.trial.should_prune()
        return self.is_pruned
