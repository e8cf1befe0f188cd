"""A cell: one measurement that stands on its own, named by all that determines it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, ClassVar

