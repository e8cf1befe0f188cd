"""Where a sweep's study is kept: a journal file in the sweep's folder, or a database."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from attree.errors import ArgumentError

JOURNAL = "journal.log"
"""The file in a sweep's folder that holds its study."""

TRIES = 5
"""How often a database is asked for its tables: two workers that make them at the same moment disturb each other."""


def open_storage(own: Path, url: str | None, create: bool = True) -> BaseStorage | None:
    """Open what keeps a study; None if there is none and it is not to be made.

    Args:
        own: The sweep's folder.
        url: The database, as SQLAlchemy spells it; None for a journal in the folder.
        create: Whether to make what is not there.
    """
    if url is not None:
        return _database(url)
    path = own.absolute() / JOURNAL  # Optuna's lock misses a relative path
    if not path.exists() and not create:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
    except (ValueError, KeyError, AssertionError) as error:
        raise ArgumentError(
            f"Expected {path} to be the journal of a study, but it cannot be read ({error}). Remove it: runs of grids "
            "and lists that are finished are found by their folders."
        ) from error


def _database(url: str) -> RDBStorage:
    # SQLAlchemy takes seconds to import, and a journal does without it.
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
            "PostgreSQL: pip install 'attree[postgres]'."
        ) from error
    except (IntegrityError, ProgrammingError, OperationalError) as error:
        first = str(error.orig or error).strip().splitlines()[0]
        raise ArgumentError(
            f"Expected argument `storage` to be a database that answers, but {shown} does not: {first}"
        ) from error
