"""Open the Optuna study of a sweep: in SQLite in its folder, or in another database. Older journals are read."""

from __future__ import annotations

import json
import math
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study

from attree.errors import ArgumentError
from attree.io.files import replacing
from attree.sweep.plan import Plan

STUDY_FILE = "study.db"
"""File in the sweep's folder that holds the study."""

JOURNAL = "journal.log"
"""File that held the study up to version 0.2."""

BEATS_PER_GRACE = 6
"""Number of heartbeats within the grace period."""

BUSY_SECONDS = 100
"""Seconds to wait while another process writes to the file of the study."""

TRIES = 5
"""Number of attempts to open a database. Two workers that create its tables at the same time disturb each other."""

SEARCHES, OBJECTIVES = "attree:searches", "attree:objectives"
"""Attributes of the study: the fingerprint of each search, and the objectives."""

WAY_OUT = "Remove the file: finished runs of grids and lists are found by their folders, and a search starts again."

REMEDY = "Give the sweep another `name`, or remove its folder."


def open_study(plan: Plan, folder: Path, url: str | None, create: bool, grace: float) -> Study | None:
    """Open a sweep's study: see `attree.sweep.study.SweepStudy.open`."""
    storage = open_storage(plan.name, folder, url, create, grace)
    if storage is None:
        return None
    if create:
        directions = list(plan.objectives.values())
        study = optuna.create_study(storage=storage, study_name=plan.name, directions=directions, load_if_exists=True)
    else:
        try:
            study = optuna.load_study(storage=storage, study_name=plan.name)
        except KeyError:
            return None
    _check_plan(plan, study)
    if create:
        _note_plan(plan, study)
    return study


def _check_plan(plan: Plan, study: Study) -> None:
    """Raise if the plan has other objectives than the study, or a search whose runs would have another config."""
    before, now = study.user_attrs.get(OBJECTIVES), _objectives(plan)
    if before is not None and before != now:
        words = [", ".join(f"{name}: {direction}" for name, direction in pairs) for pairs in (before, now)]
        raise ArgumentError(
            f"Expected the sweep {plan.name!r} to have the objectives that its study began with ({words[0]}), but got "
            f"{words[1]}. {REMEDY}"
        )
    fingerprints = study.user_attrs.get(SEARCHES, {})
    for search in plan.searches:
        if fingerprints.get(search.name, search.fingerprint) != search.fingerprint:
            raise ArgumentError(
                f"Expected the search {search.name!r} of {plan.name!r} to have the config, `set`, `keys` and `seeds` "
                f"that its study began with, as its trials are compared, but they have changed. {REMEDY}"
            )


def _note_plan(plan: Plan, study: Study) -> None:
    """Store the objectives and searches in the study, for `_check_plan`."""
    attributes = study.user_attrs
    if OBJECTIVES not in attributes:
        study.set_user_attr(OBJECTIVES, _objectives(plan))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(plan.objectives))
    before = attributes.get(SEARCHES, {})
    searches = {**before, **{search.name: search.fingerprint for search in plan.searches}}
    if searches != before:
        study.set_user_attr(SEARCHES, searches)


def _objectives(plan: Plan) -> list[list[str]]:
    """Return the objectives as JSON restores them: lists of name and direction."""
    return [[name, direction] for name, direction in plan.objectives.items()]


def open_storage(name: str, folder: Path, url: str | None, create: bool, grace: float) -> BaseStorage | None:
    """Open the storage of a sweep's study; None if the folder has none and `create` is False.

    A journal of an older version is read. With `create`, its finished trials are copied to the new file first.
    """
    if url is not None:
        return _database(url, grace)
    path, journal = folder.absolute() / STUDY_FILE, folder.absolute() / JOURNAL
    if not path.exists():
        if not create:
            return _read_journal(journal) if journal.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        if journal.exists():
            with replacing(path) as temporary:
                _copy_finished(name, _read_journal(journal), _database(f"sqlite:///{temporary}", grace))
    return _database(f"sqlite:///{path}", grace)


def _copy_finished(name: str, source: BaseStorage, destination: RDBStorage) -> None:
    """Copy a study without its waiting and running trials: their tasks are queued again."""
    try:
        before = optuna.load_study(storage=source, study_name=name)
    except KeyError:  # the journal of another sweep
        return
    study = optuna.create_study(storage=destination, study_name=name, directions=before.directions)
    for attribute, value in before.user_attrs.items():
        study.set_user_attr(attribute, value)
    study.add_trials([trial for trial in before.get_trials(deepcopy=False) if trial.state.is_finished()])
    destination.engine.dispose()


def _read_journal(path: Path) -> JournalStorage:
    """Return the storage in a journal, to be read; raise if a line is damaged, except an incomplete last one."""
    content = path.read_bytes()
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            json.loads(line)
        except ValueError as error:
            raise ArgumentError(
                f"Expected {path} to be the journal of a study, but its line {number} cannot be read. {WAY_OUT}"
            ) from error
    return JournalStorage(JournalFileBackend(str(path)))


def _database(url: str, grace: float) -> RDBStorage:
    """Return the Optuna storage in the database at a URL; raise unless the URL is valid and the database answers."""
    # Imported here, because SQLAlchemy takes seconds to import.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError as UrlError
    from sqlalchemy.exc import DatabaseError, NoSuchModuleError

    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql" and find_spec("psycopg") is not None:
            parsed = parsed.set(drivername="postgresql+psycopg")
        visible_url = parsed.render_as_string(hide_password=True)
        busy = {"connect_args": {"timeout": BUSY_SECONDS}} if parsed.drivername.startswith("sqlite") else {}
        for attempt in range(TRIES):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ExperimentalWarning)  # of heartbeats
                    return RDBStorage(
                        parsed.render_as_string(hide_password=False),
                        engine_kwargs={"pool_pre_ping": True, **busy},
                        heartbeat_interval=max(1, round(grace / BEATS_PER_GRACE)),
                        grace_period=math.ceil(grace),
                    )
            except DatabaseError:
                if attempt == TRIES - 1:
                    raise
                time.sleep(0.2 * 2**attempt)
        raise AssertionError
    except (UrlError, NoSuchModuleError) as error:
        raise ArgumentError(
            f"Expected argument `storage` to be the URL of a database, as postgresql://user@host/name, but got {url!r}."
        ) from error
    except ImportError as error:
        raise ArgumentError(
            f"Expected a driver for the database {visible_url}, but Python has none here ({error.name or error}). For "
            "PostgreSQL: pip install 'attree[postgres]'."
        ) from error
    except DatabaseError as error:
        first = str(error.orig or error).strip().splitlines()[0]
        if parsed.drivername == "sqlite" and Path(parsed.database or "").name == STUDY_FILE:
            raise ArgumentError(
                f"Expected {parsed.database} to be the study of a sweep, but it cannot be read ({first}). {WAY_OUT}"
            ) from error
        raise ArgumentError(
            f"Expected argument `storage` to be a database that answers, but {visible_url} does not: {first}"
        ) from error
