"""Context that sees every torch function, and can be switched off while code runs that is no model's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.overrides import TorchFunctionMode


class SwitchedMode(TorchFunctionMode):
    """Base of contexts that see the torch functions of a model; of this thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._is_active = True

    @contextmanager
    def switched(self, is_active: bool) -> Iterator[None]:
        """Leave functions as they are for a while (or no longer): code that is no model's own need not be watched."""
        before, self._is_active = self._is_active, is_active
        try:
            yield
        finally:
            self._is_active = before
