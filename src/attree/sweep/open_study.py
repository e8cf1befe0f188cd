"""Open the Optuna study of a sweep, and refuse one whose trials cannot be compared with new ones."""

from __future__ import annotations

import warnings
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.study import Study

from attree.errors import ArgumentError
from attree.sweep.plan import Plan
from attree.sweep.storage import open_storage

SEARCHES, OBJECTIVES = "attree:searches", "attree:objectives"
"""Attributes of a study: the fingerprint of each search, and the objectives."""

REMEDY = "Give the sweep another `name`, or remove its folder."


def open_study(plan: Plan, folder: Path, url: str | None, create: bool) -> Study | None:
    """Open a sweep's study.

    Args:
        plan: The plan.
        folder: The sweep's own folder.
        url: The database that holds the study; None for a journal in the folder.
        create: Whether to begin a study where there is none.

    Returns:
        The study, or None if there is none and `create` is False.
    """
    storage = open_storage(folder, url, create)
    if storage is None:
        return None
    directions = list(plan.objectives.values())
    if create:
        study = optuna.create_study(storage=storage, study_name=plan.name, directions=directions, load_if_exists=True)
    else:
        try:
            study = optuna.load_study(storage=storage, study_name=plan.name)
        except KeyError:
            return None
    _check_objectives(plan, study)
    _check_searches(plan, study)
    if create:
        _note_plan(plan, study)
    return study


def _check_objectives(plan: Plan, study: Study) -> None:
    """Refuse other objectives than those that the study began with."""
    before, now = study.user_attrs.get(OBJECTIVES), _listed_objectives(plan)
    if before is not None and before != now:
        words = [", ".join(f"{name}: {direction}" for name, direction in one) for one in (before, now)]
        raise ArgumentError(
            f"Expected the sweep {plan.name!r} to have the objectives that its study began with ({words[0]}), but got "
            f"{words[1]}. {REMEDY}"
        )


def _check_searches(plan: Plan, study: Study) -> None:
    """Refuse a search whose runs would have another config than those before."""
    before = study.user_attrs.get(SEARCHES, {})
    for search in plan.searches:
        if before.get(search.name, search.fingerprint) != search.fingerprint:
            raise ArgumentError(
                f"Expected the search {search.name!r} of {plan.name!r} to have the config, `set`, `keys` and `seeds` "
                f"that its study began with, as its trials are compared, but they have changed. {REMEDY}"
            )


def _note_plan(plan: Plan, study: Study) -> None:
    """Note objectives and searches in the study, for the checks above."""
    known = study.user_attrs
    if OBJECTIVES not in known:
        study.set_user_attr(OBJECTIVES, _listed_objectives(plan))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(plan.objectives))
    before = known.get(SEARCHES, {})
    searches = {**before, **{search.name: search.fingerprint for search in plan.searches}}
    if searches != before:
        study.set_user_attr(SEARCHES, searches)


def _listed_objectives(plan: Plan) -> list[list[str]]:
    """The objectives as JSON keeps them: pairs in their order."""
    return [[name, direction] for name, direction in plan.objectives.items()]
