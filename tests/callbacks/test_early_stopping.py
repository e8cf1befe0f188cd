"""The advice on early stopping stops a run after it has learned, not before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import EarlyStopping

from attree.callbacks import ExplainCallback
from attree.data import Infection
from attree.io.files import read_metrics
from attree.models import GAT, NodeClassifier
from helpers.small_fits import trainer

ADVICE = 'EarlyStopping("val/loss", patience=50, min_delta=0.005)'


@pytest.mark.long
def test_the_advice_stops_infection_after_it_has_learned(tmp_path: Path) -> None:
    assert ADVICE in str(ExplainCallback.__doc__)
    seed_everything(1)
    data = Infection(num_nodes=500, edge_probability=0.004, seed=1)
    model = NodeClassifier(GAT(data.num_features, data.num_classes, num_layers=3))
    stop = eval(ADVICE, {"EarlyStopping": EarlyStopping})
    run = trainer(tmp_path, [ExplainCallback(num_targets=10, every_n_epochs=100, figures=0), stop], epochs=500)
    run.fit(model, datamodule=data)
    assert 100 < run.current_epoch < 500
    # All of the largest class is what a network predicts that has learned nothing, here for 50 epochs and more.
    labels = data.graph.y[data.graph.val_mask].tolist()
    nothing = Counter(labels).most_common(1)[0][1] / len(labels)
    metrics = read_metrics(Path(run.log_dir) / "metrics.json")
    assert metrics["val/acc"] > nothing + 0.2
    assert metrics["explain/gatt/truth_auroc"] > 0.95
