"""How far each task of a sweep is, as the study's trials tell it, and how a trial begins and ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from attree.sweep.plan import Settings

FINGERPRINT = "attree:fingerprint"
"""Attribute of a trial: the fingerprint of its task. Several trials may be of one task: it was lost, or done again."""

SETTINGS, RUNS = "attree:settings", "attree:runs"
"""Attributes of a trial: the settings that were drawn, and the metrics of its runs by id."""

ENDED = "attree:ended"
"""Attribute of a trial: how it ended (`done`, `failed`, `lost` or `duplicate`), which Optuna's states do not tell."""

Status = Literal["missing", "waiting", "running", "done", "failed"]


@dataclass(frozen=True)
class Record:
    """How far a task is.

    Attributes:
        status: Whether the task waits, runs, is done or has failed; `missing` if it must still be queued.
        trial: The task's newest trial; None if there is none.
    """

    status: Status
    trial: FrozenTrial | None

    @classmethod
    def of(cls, trial: FrozenTrial | None) -> Record:
        """The record of a task whose newest trial this is."""
        if trial is None:
            return cls("missing", None)
        if not trial.state.is_finished():
            return cls("running" if trial.state == TrialState.RUNNING else "waiting", trial)
        ended = trial.user_attrs.get(ENDED)
        if ended == "done" or trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            return cls("done", trial)
        return cls("missing" if ended == "lost" else "failed", trial)

    @property
    def settings(self) -> Settings | None:
        """The settings that a search drew for this trial; None before it has drawn them."""
        return None if self.trial is None else self.trial.user_attrs.get(SETTINGS)

    @property
    def runs(self) -> dict[str, dict[str, float]]:
        """The metrics of the task's runs by run id, NaN where a metric is undefined."""
        stored = {} if self.trial is None else self.trial.user_attrs.get(RUNS, {})
        return {
            run: {name: math.nan if value is None else value for name, value in metrics.items()}
            for run, metrics in stored.items()
        }


def storable(runs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Metrics by run id as a study can keep them: JSON has no NaN, so undefined metrics become None."""
    return {
        run: {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        for run, metrics in runs.items()
    }


def take_trial(storage: Any, trial: FrozenTrial) -> bool:
    """Change a trial from waiting to running; False if another worker has done so."""
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
    """End a trial; False if it has ended already.

    Args:
        storage: Optuna's storage.
        trial: The trial.
        how: What its attribute `ENDED` says.
        values: Its objectives; None if some are undefined, for which Optuna has no other state than a failure.
        state: Optuna's state of a trial without values.
    """
    try:
        storage.set_trial_user_attr(trial._trial_id, ENDED, how)
        ended = TrialState.COMPLETE if values is not None else state
        return bool(storage.set_trial_state_values(trial._trial_id, state=ended, values=values))
    except UpdateFinishedTrialError:
        return False
