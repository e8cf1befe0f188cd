"""A PostgreSQL server of a test's own, from Debian's package, thrown away at its end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _binaries() -> Path | None:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server and give the URL of its database; skip the test where there is none to start."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="no driver for PostgreSQL (pip install '.[postgres]')")
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="attree_pg_"))
    if as_user:
        shutil.chown(folder, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*command: str) -> None:
        done = subprocess.run(
            [*as_user, *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    data, log = folder / "data", folder / "log"
    run(str(binaries / "initdb"), "-D", str(data), "-U", "attree", "--auth=trust", "--no-sync", "-E", "UTF8")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    run(str(binaries / "pg_ctl"), "-D", str(data), "-l", str(log), "-o", options, "-w", "start")
    try:
        yield f"postgresql://attree@127.0.0.1:{port}/postgres"
    finally:
        run(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
