"""ExplainCallback, end to end on a small Infection graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.metrics import roc_auc_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

from attree.attention import capture_attention
from attree.attribution import Attribution, GAtt, make_methods, subgraph_pairs
from attree.callbacks import ExplainCallback, LastCheckpoint
from attree.callbacks.tensorboard import RUNS_BESIDE, TensorBoardWriter
from attree.data import Infection
from attree.errors import ArgumentError
from attree.evaluation import evaluate
from attree.faithfulness import reduce_attention
from attree.metrics import faithfulness_statistics
from attree.models import GAT, GATv2
from helpers.reducers import any_pass
from helpers.small_fits import classifier, curves, infection, trainer

METHODS = ("gatt", "avgatt", "uniform", "occlusion", "random")


def test_event_file_has_one_point_per_epoch_asked_for(tmp_path: Path) -> None:
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(every_n_epochs=2, num_targets=10, figures=0)])
    run.fit(classifier(data), datamodule=data)
    logged = curves(Path(run.log_dir))
    assert [step for step, _ in logged["val/acc"]] == [0, 1, 2, 3]
    for method in METHODS:
        # Occlusion is held against ground truth at the end alone.
        assert [step for step, _ in logged[f"explain/{method}/truth_auroc"]] == (
            [3] if method == "occlusion" else [1, 3]
        )
        assert [step for step, _ in logged[f"explain/{method}/weight/faithfulness"]] == [1, 3]
    assert all(value > 0 for _, value in logged["explain/seconds"])


@pytest.mark.parametrize("net", [GAT, GATv2])
def test_logged_metrics_are_those_of_the_final_network(tmp_path: Path, net: type) -> None:
    data, callback = (
        infection(),
        ExplainCallback(protocols=["removal", "authors"], num_targets=12, random_draws=1, seed=5, figures=0),
    )
    model = classifier(data, net, heads=2)
    run = trainer(tmp_path, [callback], epochs=3)
    run.fit(model, datamodule=data)
    logged = {name: value[-1][1] for name, value in curves(Path(run.log_dir)).items()}

    graph, truth, targets = data.graph, data.truth, callback.targets
    assert truth is not None
    assert targets is not None
    assert len(targets) == 12
    # The attention of the pass that was reduced: scores that tie but for rounding rank alike only on the same numbers.
    attention = any_pass(model.net, graph.x, graph.edge_index).attention
    torch.testing.assert_close(attention.weights, capture_attention(model.net, graph.x, graph.edge_index).weights)
    truth_pairs = subgraph_pairs(attention.graph, truth.targets, 2)
    ends = attention.graph.edge_index[:, truth_pairs.edges]
    labels = [
        [int(s), int(d)] in truth.edges_of(int(truth.targets[owner])).T.tolist()
        for owner, s, d in zip(truth_pairs.owner.tolist(), *ends.tolist(), strict=True)
    ]
    pairs = subgraph_pairs(attention.graph, targets, 2)
    authors = "weight" if net is GAT else "coefficient"
    for name, method in make_methods([name for name in METHODS if name != "occlusion"], seed=5).items():
        auroc = roc_auc_score(labels, method.score_pairs(attention, truth_pairs))
        assert logged[f"explain/{name}/truth_auroc"] == pytest.approx(auroc, abs=1e-6)
        for protocol in ("removal", authors):
            effect = reduce_attention(model.net, graph.x, graph.edge_index, pairs, protocol)
            expected = faithfulness_statistics(
                method.score_pairs(attention, pairs), effect.delta_pc, effect.delta_ne, effect.changed
            )
            for statistic, value in expected.items():
                found = logged[f"explain/{name}/{protocol}/{statistic}"]
                assert found == pytest.approx(value.item(), abs=1e-6, nan_ok=True)


def test_training_is_the_same_to_the_bit_with_and_without_the_callback(tmp_path: Path) -> None:
    weights = []
    for callbacks in (
        [],
        [ExplainCallback(num_targets=7, figures=1, methods=["gatt", "gatt_sim", "gatt_avg", "avgatt", "random"])],
    ):
        data = infection()
        model = classifier(data, GAT, dropout=0.5, attention_dropout=0.3)
        trainer(tmp_path, callbacks, epochs=3).fit(model, datamodule=data)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(with_it, without) for without, with_it in zip(*weights, strict=True))


def test_end_of_training_leaves_explanations_figures_and_metrics(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data, model = infection(), None
    model = classifier(data)
    run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=1)], epochs=2)
    run.fit(model, datamodule=data)
    folder = Path(run.log_dir)
    saved = Attribution.load(folder / "explanations" / "gatt.npz")
    assert data.truth is not None
    expected = GAtt().attribute(capture_attention(model.net, data.graph.x, data.graph.edge_index), data.truth.targets)
    assert torch.equal(saved.targets, data.truth.targets)
    torch.testing.assert_close(saved.scores, expected.scores)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["explain/gatt/truth_auroc"] == pytest.approx(curves(folder)["explain/gatt/truth_auroc"][-1][1])
    drawn, *others = sorted(path.stem for path in (folder / "figures").iterdir())
    assert others == ["scores_removal", "scores_weight"]
    assert int(drawn.removeprefix("case_study_")) in data.truth.targets
    printed = capsys.readouterr().out
    assert "GAtt" in printed
    assert f"{metrics['explain/gatt/truth_auroc']:.2f} \N{PLUS-MINUS SIGN}" in printed
    assert "tensorboard --logdir" in printed


def test_targets_are_seeded_and_survive_a_checkpoint(tmp_path: Path) -> None:
    data, first = infection(), ExplainCallback(num_targets=9, seed=1, figures=0)
    run = trainer(tmp_path, [first, LastCheckpoint(every_n_epochs=1)], epochs=1)
    run.fit(classifier(data), datamodule=data)
    assert first.targets is not None
    again = ExplainCallback(num_targets=3, seed=2, figures=0)
    resumed = trainer(tmp_path, [again], epochs=2)
    resumed.fit(classifier(data), datamodule=data, ckpt_path=LastCheckpoint.path(run))
    assert torch.equal(again.targets, first.targets)


def test_callbacks_can_monitor_an_explanation_metric(tmp_path: Path) -> None:
    data, metric = infection(), "explain/gatt/weight/faithfulness"
    checkpoint = ModelCheckpoint(tmp_path / "best", monitor=metric, mode="max")
    stop = EarlyStopping(metric, mode="max", patience=1, min_delta=10.0)
    run = trainer(tmp_path, [ExplainCallback(num_targets=30, figures=0), stop, checkpoint], epochs=50)
    run.fit(classifier(data), datamodule=data)
    assert run.current_epoch == 2  # nothing improves by 10, so patience runs out at the second epoch
    assert checkpoint.best_model_score is not None
    best = max(value for _, value in curves(Path(run.log_dir))[metric])
    assert float(checkpoint.best_model_score) == pytest.approx(best)


def test_validate_and_test_evaluate_too(tmp_path: Path) -> None:
    data = infection()
    model = classifier(data)
    run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=0, every_n_epochs=0)])
    (validated,) = run.validate(model, datamodule=data, verbose=False)
    (tested,) = run.test(model, datamodule=data, verbose=False)
    found = validated["validate/explain/gatt/truth_auroc"]
    assert found == pytest.approx(tested["test/explain/gatt/truth_auroc"])
    assert "test/acc" in tested
    for stage in ("validate", "test"):
        assert (Path(run.log_dir) / stage / "explanations" / "gatt.npz").is_file()


def test_without_validation_it_evaluates_after_the_training_epoch(tmp_path: Path) -> None:
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=0)], epochs=2, limit_val_batches=0)
    run.fit(classifier(data), datamodule=data)
    assert [step for step, _ in curves(Path(run.log_dir))["explain/gatt/truth_auroc"]] == [0, 1]


def test_works_with_another_logger_and_with_none(tmp_path: Path) -> None:
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=0)], epochs=1, logger=CSVLogger(tmp_path))
    run.fit(classifier(data), datamodule=data)
    assert "explain/gatt/truth_auroc" in (Path(run.log_dir) / "metrics.csv").read_text()
    none = trainer(
        tmp_path, [ExplainCallback(num_targets=5, figures=0)], epochs=1, logger=False, default_root_dir=tmp_path / "n"
    )
    none.fit(classifier(data), datamodule=data)
    assert "explain/gatt/truth_auroc" in none.callback_metrics


def test_tensorboard_pages_are_filled(tmp_path: Path) -> None:
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(num_targets=20, figures=1)], epochs=3)
    run.fit(classifier(data), datamodule=data)
    events = EventAccumulator(run.log_dir).Reload()
    tags = events.Tags()
    assert data.truth is not None
    assert any(tag.startswith("explain/case_study_") for tag in tags["images"])
    assert "explain/scores_weight" in tags["images"]
    assert "scores/gatt/weight/prediction_unchanged" in tags["histograms"]
    plugins = events.summary_metadata
    content = plugins["_hparams_/session_start_info"].plugin_data.content
    for name in (b"conv", b"num_layers", b"heads", b"hidden_channels", b"lr", b"weight_decay", b"dropout", b"seed"):
        assert name in content
    assert b"Infection" in content
    assert b"explain/gatt/weight/faithfulness" in plugins["_hparams_/experiment"].plugin_data.content
    (layout,) = events.Tensors("custom_scalars__config__")
    assert b"val/acc" in layout.tensor_proto.string_val[0]  # accuracy has its chart
    # Every number says what it means, and is written once a step.
    explained = [tag for tag in tags["scalars"] if tag.startswith("explain/")]
    assert len(explained) > 20
    assert [tag for tag in explained if not plugins[tag].summary_description] == []
    assert "rank correlation of AvgAtt's" in plugins["explain/avgatt/weight/pc_kendall"].summary_description
    assert len(events.Scalars("explain/gatt/weight/faithfulness")) == 3
    assert "val/acc" not in plugins
    # What the headline is about comes first: groups of cards and of texts are sorted by name.
    assert min(tag.partition("/")[0] for tag in (*tags["scalars"], *tags["tensors"]) if "/" in tag) == "attree"
    first = [tag for tag in tags["scalars"] if tag.startswith("attree/")]
    methods = ("GAtt", "AvgAtt", "Uniform", "Occlusion", "Random")
    columns = ("true edges", "edge deleted", "weight set to 0")
    assert sorted(first) == sorted(f"attree/{column}/{method}" for column in columns for method in methods)
    for tag, name in (
        ("attree/edge deleted/GAtt", "explain/gatt/removal/within_pearson"),
        ("attree/true edges/AvgAtt", "explain/avgatt/truth_auroc"),
    ):
        points, whole = events.Scalars(tag), events.Scalars(name)
        assert [(point.step, point.value) for point in points] == [(point.step, point.value) for point in whole]
        assert plugins[tag].summary_description == plugins[name].summary_description
    (text,) = events.Tensors("attree/results/text_summary")
    table = text.tensor_proto.string_val[0].decode()
    assert f"{float(run.callback_metrics['explain/gatt/truth_auroc']):.2f}" in table
    assert "0.5 is chance" in table
    # TensorBoard ticks no run of a folder with many: methods are tags, and a fit is one run.
    assert list(EventMultiplexer().AddRunsFromDirectory(run.log_dir).Runs()) == ["."]
    charts = Layout.FromString(layout.tensor_proto.string_val[0])
    drawn = {tag for group in charts.category for chart in group.chart for tag in chart.multiline.tag}
    assert drawn <= set(tags["scalars"])
    assert {f"explain/{method}/weight/faithfulness" for method in ("gatt", "avgatt", "uniform", "random")} < drawn


@pytest.mark.parametrize(("runs", "is_written"), [("40", True), ("41", False)])
def test_a_page_of_charts_that_would_be_blank_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: str, is_written: bool
) -> None:
    monkeypatch.setenv(RUNS_BESIDE, runs)
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=0)], epochs=1)
    run.fit(classifier(data), datamodule=data)
    assert ("custom_scalars__config__" in EventAccumulator(run.log_dir).Reload().Tags()["tensors"]) == is_written


def test_explanations_of_a_step_are_kept_for_the_tab(tmp_path: Path) -> None:
    data = infection()
    evaluation = evaluate(classifier(data).net, data.graph, num_targets=30, methods=["gatt"], protocols=["removal"])
    with SummaryWriter(str(tmp_path)) as writer:
        TensorBoardWriter(writer).write_explanations(evaluation, 40)
    content = json.loads((tmp_path / "explanations/steps/40.json").read_text())
    assert len(content["targets"]) == 20
    assert content["numTargets"] == 30
    assert {target["id"] for target in content["targets"]} <= set(evaluation.targets.tolist())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"methods": ["gat"]}, "`methods`.*gatt.*'gat'"),
        ({"methods": []}, "`methods`"),
        ({"protocols": ["zero"]}, "`protocols`.*coefficient.*'zero'"),
        ({"num_targets": 0}, "`num_targets`.*>= 1.*0"),
        ({"every_n_epochs": -1}, "`every_n_epochs`.*-1"),
        ({"figures": -1}, "`figures`"),
        ({"random_draws": 0}, "`random_draws`"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        ExplainCallback(**arguments)


def test_data_that_is_no_graph_is_refused_with_the_reason(tmp_path: Path) -> None:
    data = infection()
    rows = DataLoader(TensorDataset(torch.zeros(4, 2)))
    with pytest.raises(ArgumentError, match="no loader of graphs"):
        trainer(tmp_path, [ExplainCallback()], epochs=1).fit(classifier(data), train_dataloaders=rows)


@pytest.mark.parametrize(
    "options",
    [{"max_steps": 3, "epochs": -1}, {"check_val_every_n_epoch": 5, "epochs": 3}],
    ids=["by steps", "without a validation"],
)
def test_the_trained_network_is_evaluated_however_training_ends(tmp_path: Path, options: dict[str, Any]) -> None:
    data = infection()
    run = trainer(tmp_path, [ExplainCallback(every_n_epochs=0, num_targets=5, figures=0), LastCheckpoint()], **options)
    run.fit(classifier(data), datamodule=data)
    assert [step for step, _ in curves(Path(run.log_dir))["explain/gatt/truth_auroc"]] == [2]
    assert curves(Path(run.log_dir))["val/acc"][-1][0] == 2
    saved = torch.load(Path(run.log_dir) / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 3


def test_a_callback_used_again_chooses_again(tmp_path: Path) -> None:
    callback = ExplainCallback(num_targets=5, figures=0)
    for nodes in (300, 100):
        data = Infection(num_nodes=nodes, edge_probability=2 / nodes, num_layers=2, seed=3)
        trainer(tmp_path, [callback], epochs=1).fit(classifier(data), datamodule=data)
        assert callback.targets is not None
        assert int(callback.targets.max()) < nodes


@pytest.mark.parametrize("options", [{"logger": False}, {"fast_dev_run": True}], ids=str)
def test_without_a_logger_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = infection()
    trainer(tmp_path, [ExplainCallback(num_targets=5), LastCheckpoint()], epochs=1, **options).fit(
        classifier(data), datamodule=data
    )
    assert list(tmp_path.iterdir()) == []


def test_random_truth_is_averaged_over_draws(tmp_path: Path) -> None:
    values = []
    for draws in (1, 4):
        data = infection()
        run = trainer(tmp_path, [ExplainCallback(num_targets=5, figures=0, random_draws=draws)], logger=False)
        (metrics,) = run.validate(classifier(data), datamodule=data, verbose=False)
        values.append(metrics["validate/explain/random/truth_auroc"])
    assert values[0] != values[1]
    assert abs(values[1] - 0.5) < 0.1
