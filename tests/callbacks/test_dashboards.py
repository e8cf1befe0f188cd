"""What a person finds after a fit: pages, pictures, printed lines and names that agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.backend_context import Context
from torch_geometric.data import Batch

import attree
from attree.attribution import Attribution, AttributionMethod, GAtt
from attree.callbacks import ExplainCallback
from attree.data import MUTAG
from attree.evaluation import Evaluation
from attree.models import GAT, GraphClassifier
from attree.report.case_study import draw_score_histograms
from helpers.small_fits import classifier, infection, trainer


def hyperparameters(folder: Path) -> list[str]:
    """In the order of TensorBoard's own backend, which ticks the first five."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(folder))))
    request = RequestContext()
    found = context.experiment_from_metadata(
        request, "", True, context.hparams_metadata(request, ""), context.hparams_from_data_provider(request, "", 0)
    )
    return [info.name for info in found.hparam_infos]


def test_what_regularises_is_ticked_on_the_page_of_hyperparameters(tmp_path: Path) -> None:
    data = infection()
    for dropout in (0.0, 0.5):
        run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=0)], epochs=1)
        run.fit(classifier(data, dropout=dropout), datamodule=data)
    names = hyperparameters(tmp_path)
    assert names[:5] == ["attention_dropout", "dropout", "heads", "lr", "weight_decay"]
    assert {"dataset", "seed", "conv", "num_layers", "hidden_channels"} <= set(names[5:])


def test_a_run_of_steps_has_pictures_and_histograms(tmp_path: Path) -> None:
    data = infection()
    callback = ExplainCallback(num_targets=5, every_n_epochs=2)
    run = trainer(tmp_path, [callback], epochs=-1, max_steps=3)
    model = classifier(data)
    run.fit(model, datamodule=data)
    tags = EventAccumulator(run.log_dir).Reload().Tags()
    assert {"explain/scores_weight"} < set(tags["images"])
    assert any(tag.startswith("explain/case_study_") for tag in tags["images"])
    assert "scores/gatt/weight/prediction_unchanged" in tags["histograms"]

    # The last evaluation was of the second epoch's weights, so the final one is another; others can monitor it.
    assert callback.targets is not None
    expected = attree.evaluate(
        model.net, data.graph, callback.targets, protocols=["weight", "removal"], truth=data.truth, return_type="raw"
    )
    assert set(expected.metrics) <= set(run.callback_metrics)
    for name, value in expected.metrics.items():
        assert float(run.callback_metrics[name]) == pytest.approx(value, abs=1e-5, nan_ok=True), name


def test_a_run_without_tensorboard_is_not_told_to_start_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = infection()
    for logger, is_told in ((CSVLogger(tmp_path / "csv"), False), (None, True)):
        options: dict[str, Any] = {} if logger is None else {"logger": logger}
        trainer(tmp_path, [ExplainCallback(num_targets=5)], epochs=1, **options).fit(classifier(data), datamodule=data)
        said = capsys.readouterr().out
        assert said.startswith("Use occlusion (exact). ")
        assert ("tensorboard --logdir" in said) == is_told


@pytest.mark.needs("tu/MUTAG/raw")
def test_graphs_are_called_the_same_everywhere(tmp_path: Path, data_root: str) -> None:
    data = MUTAG(root=data_root)
    callback = ExplainCallback(num_targets=2, figures=2, seed=1)
    run = trainer(tmp_path, [callback], epochs=1)
    model = GraphClassifier(GAT(data.num_features, data.num_classes, num_layers=2))
    run.fit(model, datamodule=data)
    folder = Path(run.log_dir)
    assert callback.targets is not None
    chosen = callback.targets.tolist()
    assert max(chosen) > 60  # beyond the nodes of the two molecules: a name, not a position
    saved = Attribution.load(folder / "explanations" / "gatt.npz")
    assert saved.targets.tolist() == chosen
    drawn = {path.stem for path in (folder / "figures").glob("case_study_*.png")}
    assert drawn == {f"case_study_{name}" for name in chosen}
    images = EventAccumulator(str(folder)).Reload().Tags()["images"]
    assert {f"explain/{name}" for name in drawn} <= set(images)
    for name in chosen:  # the scores under a name are those of the molecule at this position of the dataset
        alone = attree.evaluate(
            model,
            Batch.from_data_list([data.graphs[name]]),
            "all",
            ["gatt"],
            ["removal"],
            readout="sum",
            return_type="raw",
        )
        scores = saved[name].scores.sort().values
        torch.testing.assert_close(scores, alone.pair_scores["gatt"].sort().values, atol=1e-5, rtol=1e-4)


class Backwards(AttributionMethod):
    """A user's own method, with a label that Matplotlib could take for something else."""

    name = "_my_method"
    label = "_my $method"

    def attribute(self, subject: Any, targets: Any = "all") -> Attribution:
        found = GAtt().attribute(subject, targets)
        return Attribution(self.name, found.graph, found.targets, found.ptr, found.edges, -found.scores)


def test_a_method_of_ones_own_is_drawn_like_any_other(tmp_path: Path) -> None:
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(methods=["gatt", Backwards()], num_targets=5)], epochs=1)
    run.fit(classifier(data), datamodule=data)
    figures = {path.stem for path in Path(run.log_dir, "figures").iterdir()}
    assert {"scores_weight", "scores_removal"} <= figures
    assert len(figures) == 3


def test_histograms_are_titled_with_the_numbers_of_the_table() -> None:
    data = infection()
    model = classifier(data).net.eval()
    generator = torch.Generator().manual_seed(2)  # with the usual first weights, it predicts one class everywhere
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    evaluation: Evaluation = attree.evaluate(
        model, data.graph, None, ["gatt", "random"], "removal", num_targets=60, return_type="raw", random_draws=5
    )
    assert evaluation.num_changed("removal") > 0
    titles = [axes.get_title() for axes in draw_score_histograms(evaluation)["scores_removal"].axes]
    shown = {method: evaluation.metrics[f"explain/{method}/removal/p_auroc"] for method in ("gatt", "random")}
    assert titles == [f"GAtt, AUROC {shown['gatt']:.3f}", f"Random, AUROC {shown['random']:.3f} (mean of draws)"]
    one = attree.evaluate(
        model, data.graph, methods="random", protocols="removal", num_targets=60, return_type="raw", random_draws=1
    )
    assert abs(one.metrics["explain/random/removal/p_auroc"] - shown["random"]) > 5e-4  # one draw is another number
