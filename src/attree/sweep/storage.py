"""Where a sweep's study is kept: a journal file in the sweep's folder, or a database."""

from __future__ import annotations

import json
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
    """Open what keeps a study; None if there is none and `create` is False.

    Args:
        own: The sweep's own folder.
        url: URL of the database, as SQLAlchemy spells it; None for a journal in the folder.
        create: Whether to make a journal where there is none, and to write to it.
    """
    if url is not None:
        return _database(url)
    path = own.absolute() / JOURNAL  # Optuna's lock misses a relative path
    if not path.exists() and not create:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileOpenLock(str(path))
    _check_journal(path, lock, mend=create)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def _check_journal(path: Path, lock: JournalFileOpenLock, mend: bool) -> None:
    """Refuse a damaged journal, but for its last line.

    A full disk or a power cut leaves half a line at the end. Optuna reads such a file, but would add the next line to
    the half one, and could then read neither.

    Args:
        path: The journal.
        lock: What others hold while they write.
        mend: Whether to remove half a line at the end.
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
                "finished runs of grids and lists are found by their folders, and a search begins anew."
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
