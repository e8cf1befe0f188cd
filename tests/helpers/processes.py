"""Start several processes, and never wait for them for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp


def spawn(function: Callable[..., None], args: tuple[Any, ...], processes: int = 2, seconds: float = 240.0) -> None:
    """Run `function(rank, *args)` in several processes; a hang or an error of any of them is an error here."""
    context = mp.spawn(function, args=args, nprocs=processes, join=False)
    end = time.monotonic() + seconds
    try:
        while not context.join(timeout=1.0):
            if time.monotonic() > end:
                raise TimeoutError(f"{processes} processes were not done after {seconds:.0f} seconds.")
    finally:
        for process in context.processes:
            process.kill()
