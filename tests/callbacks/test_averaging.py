"""Averaged weights: the order of callbacks does not matter, and what is saved is of the weights a run ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch_geometric.nn import GAT as PyGGAT

from attree.attention import capture_attention
from attree.attribution import Attribution, GAtt
from attree.callbacks import ExplainCallback, LastCheckpoint
from attree.models import NodeClassifier
from helpers.small_fits import classifier, curves, infection, trainer
from helpers.versions import is_older

if is_older("lightning", "2.6"):
    pytest.skip("lightning before 2.6 has no EMAWeightAveraging", allow_module_level=True)

from lightning.pytorch.callbacks import EMAWeightAveraging

AVERAGING: dict[str, Callable[[], Callback]] = {
    "ema": lambda: EMAWeightAveraging(decay=0.8),
    # Updated after the last validation, so that the run ends with weights that were never validated.
    "ema by epoch": lambda: EMAWeightAveraging(decay=0.8, update_starting_at_step=10**6, update_starting_at_epoch=0),
    "swa": lambda: StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=2, annealing_epochs=1),
}


class Validated(Callback):
    """Notes the weights that each validation ran with."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        if not trainer.sanity_checking:
            self.weights.append(torch.cat([one.detach().clone().view(-1) for one in pl_module.parameters()]))


def fit(folder: Path, callbacks: list[Callback], batch_norm: bool = False) -> tuple[NodeClassifier, Path]:
    data = infection()
    model = classifier(data)
    if batch_norm:
        model = NodeClassifier(PyGGAT(data.num_features, 8, 2, data.num_classes, norm="batch_norm"), lr=0.01)
    run = trainer(folder, [*callbacks, LastCheckpoint(every_n_epochs=2)], epochs=4)
    run.fit(model, datamodule=data)
    return model, Path(run.log_dir)


def check_end(model: NodeClassifier, run: Path) -> dict[str, float]:
    """Compare what a run saved with its network measured anew; return its metrics."""
    data = infection()
    metrics = json.loads((run / "metrics.json").read_text())
    again = trainer(run, [ExplainCallback(num_targets=8, figures=0)], logger=False)
    (expected,) = again.validate(model, datamodule=data, verbose=False)
    for name, value in expected.items():
        if not name.endswith("seconds"):
            assert metrics[name.removeprefix("validate/")] == pytest.approx(value, abs=1e-6), name
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for name, value in model.state_dict().items():
        assert torch.equal(saved[name], value), name
    assert data.truth is not None
    model.eval()
    explained = GAtt().attribute(capture_attention(model.net, data.graph.x, data.graph.edge_index), data.truth.targets)
    torch.testing.assert_close(Attribution.load(run / "explanations" / "gatt.npz").scores, explained.scores)
    return metrics


@pytest.mark.parametrize(
    "kind", ["ema", *(pytest.param(kind, marks=pytest.mark.long) for kind in AVERAGING if kind != "ema")]
)
def test_the_order_does_not_matter_and_the_end_is_of_the_final_weights(kind: str, tmp_path: Path) -> None:
    found = []
    for before in (False, True):
        validated, averaging = Validated(), AVERAGING[kind]()
        explain = ExplainCallback(num_targets=8, figures=0)
        order = [averaging, validated, explain] if before else [explain, validated, averaging]
        model, run = fit(tmp_path, order)
        metrics = check_end(model, run)
        final = torch.cat([one.detach().view(-1) for one in model.parameters()])
        found.append((curves(run), metrics, validated.weights[-1], final))
    (one, first, last_validated, final), (two, second, *_) = found
    assert torch.equal(last_validated, final) == (kind == "ema")
    for name in set(one) - {"explain/seconds"}:
        assert dict(one[name]) == pytest.approx(dict(two[name]), nan_ok=True), name
    first.pop("explain/seconds"), second.pop("explain/seconds")
    assert first == second


def test_each_point_of_the_curves_is_of_the_weights_that_were_validated(tmp_path: Path) -> None:
    validated = Validated()
    _, run = fit(tmp_path, [AVERAGING["ema"](), validated, ExplainCallback(num_targets=8, figures=0)])
    points = curves(run)["explain/gatt/truth_auroc"]
    data = infection()
    for weights, (_, value) in zip(validated.weights, points, strict=True):
        model = classifier(data)
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        again = trainer(tmp_path, [ExplainCallback(num_targets=8, figures=0)], logger=False)
        (expected,) = again.validate(model, datamodule=data, verbose=False)
        assert value == pytest.approx(expected["validate/explain/gatt/truth_auroc"], abs=1e-6)


def test_averaging_with_batch_statistics(tmp_path: Path) -> None:
    model, run = fit(tmp_path, [ExplainCallback(num_targets=8, figures=0), AVERAGING["swa"]()], batch_norm=True)
    check_end(model, run)


def test_a_run_with_averaged_weights_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    ends = []
    for breaks in ([6], [3, 6]):
        data, last = infection(), None
        for epochs in breaks:
            model = classifier(data, dropout=0.5)
            run = trainer(tmp_path, [EMAWeightAveraging(decay=0.8), LastCheckpoint()], epochs=epochs)
            run.fit(model, datamodule=data, ckpt_path=last)
            last = LastCheckpoint.path(run)
        ends.append(model.state_dict())
    for name, value in ends[0].items():
        assert torch.equal(ends[1][name], value), name
