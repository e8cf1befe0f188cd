"""What the columns of a sweep's results, its settings and its values are called."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from attree.report.sweep_figure import SETTING

SWEEP, SEED, RUN = "sweep", "seed", "run"

COLUMNS = (SWEEP, SETTING, SEED, RUN)
"""The results' own columns: no setting may be called like one of them."""


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last word of each config key, or the whole key where last words are the same or name one of `COLUMNS`.

    >>> short_names(["model.init_args.lr", "x.dropout", "y.dropout", "data.seed"])
    {'model.init_args.lr': 'lr', 'x.dropout': 'x.dropout', 'y.dropout': 'y.dropout', 'data.seed': 'data.seed'}
    """
    last = {key: key.rpartition(".")[2] for key in keys}
    times = Counter([*last.values(), *COLUMNS])
    return {key: word if times[word] == 1 else key for key, word in last.items()}


def value_text(value: Any) -> str:
    """A value as it is typed on the command line.

    >>> value_text(0.0005), value_text("attree.models.GATv2"), value_text(["gatt", "random"]), value_text(True)
    ('0.0005', 'attree.models.GATv2', '["gatt", "random"]', 'true')
    """
    return value if isinstance(value, str) else json.dumps(value)
