"""Work on a sweep until nothing is left: several workers in this process claim tasks and do their runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, Queue
from time import monotonic

from attree.errors import did_you_mean
from attree.io.workers import BEATS_PER_GRACE
from attree.sweep.launch import Launch, threads_per_worker
from attree.sweep.report_metric import read_reported
from attree.sweep.run import (
    REPORT_FILE,
    Outcome,
    do_run,
    folder_of_run,
    metrics_of_run,
)
from attree.sweep.study import Claim, SweepStudy

IDLE = 1.0
"""Seconds between two looks for a task where none waits."""


@dataclass(frozen=True)
class News:
    """Something that happened: a run ended, or tasks of dead workers were queued again; empty if nothing did.

    Attributes:
        outcome: The run that ended; None if none did.
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
        folder: Where the sweep's folder is.
        number: How many.
        launch: What runs `attree`.
        key: The only task to do; None does all, and waits for those of other processes, in case these die.
    """

    def __init__(self, study: SweepStudy, folder: Path, number: int, launch: Launch, key: str | None = None) -> None:
        self.study = study
        self.folder = folder
        self.launch = launch
        self.key = key
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads_per_worker(number))}
        self._news: Queue[News] = Queue()
        self._stop = threading.Event()
        self._held: dict[int, Claim] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"worker {one}", daemon=True) for one in range(number)
        ]
        self._heart = threading.Thread(target=self._beat, name="signs of life", daemon=True)

    def news(self, patience: float = IDLE) -> Iterator[News]:
        """Start, and tell what happens until all is done; an empty piece of news every few moments.

        Args:
            patience: Seconds between two pieces of news at most.
        """
        self._heart.start()
        for thread in self._threads:
            thread.start()
        while True:
            try:
                news = self._news.get(timeout=patience)
            except Empty:
                if self._is_over():
                    return
                yield News()
                continue
            if news.error is not None:
                raise news.error
            yield news
            if news.is_last and self._is_over():
                return

    def _is_over(self) -> bool:
        return self._news.empty() and not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Claim no more tasks, and let every run end early."""
        self._stop.set()

    def join(self, seconds: float = 30.0) -> None:
        """Wait until what was claimed is finished or given back."""
        end = monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - monotonic()))

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                claim = self.study.claim(self.key)
                if claim is not None:
                    self._do(claim)
                elif self.key is not None or not self._others_may_need_help():
                    return
        except BaseException as error:
            self._news.put(News(error=error))
        finally:
            self._news.put(News(is_last=True))

    def _others_may_need_help(self) -> bool:
        """Whether to look for tasks again: others are at work, and if they die, their tasks are queued again."""
        given_back = self.study.give_back_abandoned()
        if given_back:
            self._news.put(News(given_back=tuple(given_back)))
            return True
        states = {record.status for record in self.study.records().values()}
        if "missing" in states:
            self.study.enqueue()
            return True
        if states & {"waiting", "running"}:
            self._stop.wait(IDLE)
            return True
        return False

    def _beat(self) -> None:
        while not self._stop.wait(self.study.grace / BEATS_PER_GRACE):
            for claim in list(self._held.values()):
                if not claim.lost:
                    self.study.beat(claim)

    def _do(self, claim: Claim) -> None:
        """Do the runs of a task one after the other, and note in the study what came of them."""
        self._held[id(claim)] = claim
        try:
            metrics: dict[str, Mapping[str, float]] = {}
            for place, point in enumerate(claim.points):
                watch = _Watch(self, claim, point.run.id, is_first=place == 0)
                outcome = do_run(
                    self.study.plan, point.run, self.folder, self.environment, self.launch, watch.is_over, watch.metric
                )
                if outcome.status == "stopped" and watch.is_pruned:
                    self.study.prune(claim)
                    self._news.put(News(outcome))
                    return
                if outcome.status == "stopped" or (outcome.status == "failed" and self._gone(claim)):
                    self.study.give_back(claim)
                    return
                if outcome.status == "failed":
                    self._news.put(News(outcome))
                    self.study.fail(claim, outcome.reason)
                    return
                metrics[point.run.id] = metrics_of_run(folder_of_run(self.study.plan, point.run, self.folder)) or {}
                missing = self._missing_objective(metrics[point.run.id])
                if missing:
                    self._news.put(News(replace(outcome, status="failed", reason=missing)))
                    self.study.fail(claim, missing)
                    return
                self._news.put(News(outcome))
            self.study.finish(claim, metrics)
        except BaseException:
            self.study.give_back(claim)
            raise
        finally:
            del self._held[id(claim)]

    def _missing_objective(self, metrics: Mapping[str, float]) -> str:
        """A sentence about an objective that a run did not log, as when its name is misspelled; else nothing."""
        plan = self.study.plan
        missing = [name for name in plan.objectives if name not in metrics] if plan.says_objectives else []
        if not missing:
            return ""
        hint = did_you_mean(missing[0], metrics)
        return f"Expected every run to log the objective {missing[0]!r}, but this one did not.{hint}"

    def _gone(self, claim: Claim) -> bool:
        """Whether a run's result no longer counts: this process is to stop, or another worker has the task."""
        return self._stop.is_set() or claim.lost


class _Watch:
    """Says whether a run is to end early, and reports its metric to the pruner.

    Only the first run of a trial is judged: with other seeds the same epoch would have two values.
    """

    def __init__(self, workers: Workers, claim: Claim, run_id: str, is_first: bool) -> None:
        self._workers = workers
        self._claim = claim
        search, plan = claim.task.search, workers.study.plan
        judged = is_first and search is not None and search.pruner != "none"
        self.metric = next(iter(plan.objectives)) if judged else None
        self._file = workers.folder / plan.name / run_id / REPORT_FILE
        self._reported: set[int] = set(claim.trial.storage.get_trial(claim.trial._trial_id).intermediate_values)
        self.is_pruned = False

    def is_over(self) -> bool:
        if self._workers._gone(self._claim):
            return True
        if self.metric is not None and not self.is_pruned:
            new = {epoch: value for epoch, value in read_reported(self._file).items() if epoch not in self._reported}
            for epoch, value in new.items():
                self._claim.trial.report(value, epoch)
                self._reported.add(epoch)
            self.is_pruned = bool(new) and self._claim.trial.should_prune()
        return self.is_pruned
