"""How a sweep starts `attree fit`: as processes of their own, which end with the sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock

from attree.io.processes import start_child

POLL = 0.2
"""Seconds between two looks at a process that may have to be ended early."""

Launch = Callable[[Sequence[str], Path, Mapping[str, str], Callable[[], bool]], int]
"""Runs `attree` and returns its exit status. Takes the arguments, the file for the output, the environment, and a
function that says whether the process is to be ended early."""


class Processes:
    """Starts `attree` processes and can end all that still run."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._stopped = False

    def launch(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        is_over: Callable[[], bool] = lambda: False,
    ) -> int:
        """Run `attree` and return its exit status. The process is killed as soon as `is_over` says so."""
        with log.open("ab") as output:
            with self._lock:
                if self._stopped:
                    return 1
                process = start_child(
                    [sys.executable, "-m", "attree.cli", *arguments],
                    environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                self._running.add(process)
            try:
                while True:
                    try:
                        return process.wait(timeout=POLL)
                    except subprocess.TimeoutExpired:
                        if is_over():
                            _kill(process)
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """End what runs, with all that it started, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def threads_per_worker(workers: int) -> int:
    """Threads that each of several simultaneous runs may use: an equal share of what one alone would."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    available = int(asked) if asked.isdigit() else os.cpu_count() or 1
    return max(1, available // workers)
