"""Sweeps: fit one config with many settings and seeds, on any number of machines, and summarise the results.

These names need no Optuna, which the extra `sweep` installs: the fits of a sweep import this folder too.
"""

from attree.sweep.plan import Block, Direction, Plan, Run
from attree.sweep.read_plan import DEFAULT_METRICS, load_plan
from attree.sweep.single_run import (
    FINGERPRINT_FILE,
    METRICS_FILE,
    Launch,
    Processes,
    ReportMetric,
    fit_arguments,
    folder_of_run,
    metrics_of_run,
    threads_per_worker,
)

__all__ = [
    "DEFAULT_METRICS",
    "FINGERPRINT_FILE",
    "METRICS_FILE",
    "Block",
    "Direction",
    "Launch",
    "Plan",
    "Processes",
    "ReportMetric",
    "Run",
    "fit_arguments",
    "folder_of_run",
    "load_plan",
    "metrics_of_run",
    "threads_per_worker",
]
