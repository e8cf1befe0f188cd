"""Metrics are plain JSON, and come back as they went."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from attree.io.files import read_metrics, write_metrics


def test_what_is_undefined_is_null(tmp_path: Path) -> None:
    metrics = {"b/loss": math.inf, "a/acc": 0.1, "explain/gatt/weight/p_auroc": math.nan}
    path = write_metrics(tmp_path / "run" / "metrics.json", metrics)
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "a/acc": 0.1,
        "b/loss": None,
        "explain/gatt/weight/p_auroc": None,
    }
    found = read_metrics(path)
    assert found["a/acc"] == 0.1
    assert math.isnan(found["b/loss"])
    # As a sweep collects them: a metric that no run has is a column of numbers, too.
    assert pd.DataFrame([found, found])["explain/gatt/weight/p_auroc"].dtype == float
