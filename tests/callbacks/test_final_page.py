"""The page that a fit ends with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attree.callbacks import ExplainCallback
from helpers.small_fits import classifier, infection, trainer


def test_a_fit_writes_a_page_with_its_curves(tmp_path: Path) -> None:
    data = infection()
    trainer(tmp_path, [ExplainCallback(num_targets=4, figures=1)]).fit(classifier(data), datamodule=data)
    text = (tmp_path / "run" / "version_0" / "page.html").read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="attree-data">(.*?)</script>', text, re.DOTALL)
    content = json.loads(found)
    assert len(content["targets"]) == 4
    assert all("predicted" in target for target in content["targets"])
    assert content["title"] == "Infection \N{MIDDLE DOT} GAT, 2 layers"
    curves = {curve["name"]: curve["points"] for curve in content["curves"]}
    assert len(curves["val/acc"]) == len(curves["explain/gatt/weight/pc_pearson"]) == 4  # the last epoch's too


@pytest.mark.parametrize("options", [{"figures": 0}, {"save": False}])
def test_without_figures_there_is_no_page(tmp_path: Path, options: dict[str, object]) -> None:
    data = infection()
    callback = ExplainCallback(num_targets=4, **options)
    trainer(tmp_path, [callback], epochs=1).fit(classifier(data), datamodule=data)
    assert not (tmp_path / "run" / "version_0" / "page.html").exists()


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    data = infection()
    (tmp_path / "run" / "version_0" / "page.html").mkdir(parents=True)
    (tmp_path / "run" / "version_0" / "page.html" / "file").touch()
    fitting = trainer(tmp_path, [ExplainCallback(num_targets=4, figures=1)], epochs=1)
    fitting.logger._version = 0
    with pytest.warns(UserWarning, match="The page could not be made"):
        fitting.fit(classifier(data), datamodule=data)
    assert (tmp_path / "run" / "version_0" / "metrics.json").is_file()
