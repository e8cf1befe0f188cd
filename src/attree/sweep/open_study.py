"""Open the Optuna study of a sweep, in a journal file in the sweep's folder or in a database."""

from __future__ import annotations

import json
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study

from attree.errors import ArgumentError
from attree.sweep.plan import Plan

JOURNAL = "journal.log"
"""File in the sweep's folder that holds the study."""

TRIES = 5
"""Number of attempts to open a database. Two workers that create its tables at the same time disturb each other."""

SEARCHES, OBJECTIVES = "attree:searches", "attree:objectives"
"""Attributes of the study: the fingerprint of each search, and the objectives."""

REMEDY = "Give the sweep another `name`, or remove its folder."


def open_study(plan: Plan, folder: Path, url: str | None, create: bool) -> Study | None:
    """Open a sweep's study. Raise if its trials cannot be compared with those of the plan.

    Args:
        plan: The plan.
        folder: The sweep's own folder.
        url: URL of the study's database; None for a journal in the folder.
        create: Create the study if it does not exist.

    Returns:
        The study; None if it does not exist and `create` is False.
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
    """Raise if the plan has other objectives than the study."""
    before, now = study.user_attrs.get(OBJECTIVES), _listed_objectives(plan)
    if before is not None and before != now:
        words = [", ".join(f"{name}: {direction}" for name, direction in one) for one in (before, now)]
        raise ArgumentError(
            f"Expected the sweep {plan.name!r} to have the objectives that its study began with ({words[0]}), but got "
            f"{words[1]}. {REMEDY}"
        )


def _check_searches(plan: Plan, study: Study) -> None:
    """Raise if the runs of a search would have another config than its earlier runs."""
    before = study.user_attrs.get(SEARCHES, {})
    for search in plan.searches:
        if before.get(search.name, search.fingerprint) != search.fingerprint:
            raise ArgumentError(
                f"Expected the search {search.name!r} of {plan.name!r} to have the config, `set`, `keys` and `seeds` "
                f"that its study began with, as its trials are compared, but they have changed. {REMEDY}"
            )


def _note_plan(plan: Plan, study: Study) -> None:
    """Store the objectives and searches in the study, for the checks above."""
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
    """Return the objectives as JSON restores them: lists of name and direction."""
    return [[name, direction] for name, direction in plan.objectives.items()]


def open_storage(own: Path, url: str | None, create: bool = True) -> BaseStorage | None:
    """Open the storage of a study; None if there is no journal and `create` is False.

    Args:
        own: The sweep's own folder.
        url: URL of the database, in SQLAlchemy's form; None for a journal in the folder.
        create: Create the journal if it does not exist, and repair its last line.
    """
    if url is not None:
        return _database(url)
    path = own.absolute() / JOURNAL  # Optuna's lock needs an absolute path
    if not path.exists() and not create:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileOpenLock(str(path))
    _check_journal(path, lock, mend=create)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def _check_journal(path: Path, lock: JournalFileOpenLock, mend: bool) -> None:
    """Raise if a line of the journal is damaged, except an incomplete last line.

    A full disk or a power cut leaves an incomplete line at the end. Optuna reads such a file, but would append the next
    line to the incomplete one, and could then read neither.

    Args:
        path: The journal.
        lock: The lock that writers hold.
        mend: Remove an incomplete last line.
    """
    if not path.exists():
        return
    lock.acquire()
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if mend and len(whole) < len(content):
            with path.open("r+b") as stream:
                stream.truncate(len(whole))
    finally:
        lock.release()
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            json.loads(line)
        except ValueError as error:
            raise ArgumentError(
                f"Expected {path} to be the journal of a study, but its line {number} cannot be read. Remove the file: "
                "finished runs of grids and lists are found by their folders, and a search starts again."
            ) from error


def _database(url: str) -> RDBStorage:
    """Return the Optuna storage in the database at a URL; raise unless the URL is valid and the database answers."""
    # Imported here: SQLAlchemy takes seconds to import, and a journal does not need it.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError as UrlError
    from sqlalchemy.exc import IntegrityError, NoSuchModuleError, OperationalError, ProgrammingError

    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql" and find_spec("psycopg") is not None:
            parsed = parsed.set(drivername="postgresql+psycopg")
        shown = parsed.render_as_string(hide_password=True)
        for attempt in range(TRIES):
            try:
                return RDBStorage(parsed.render_as_string(hide_password=False), engine_kwargs={"pool_pre_ping": True})
            except (IntegrityError, ProgrammingError, OperationalError):
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
            f"Expected a driver for the database {shown}, but Python has none here ({error.name or error}). For "
            "PostgreSQL: pip install '.[postgres]'."
        ) from error
    except (IntegrityError, ProgrammingError, OperationalError) as error:
        first = str(error.orig or error).strip().splitlines()[0]
        raise ArgumentError(
            f"Expected argument `storage` to be a database that answers, but {shown} does not: {first}"
        ) from error
