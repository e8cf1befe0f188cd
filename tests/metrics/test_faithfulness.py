"""The seven statistics and their mean, as a function and as a collection of metrics."""

from __future__ import annotations

import pickle

import lightning
import matplotlib
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from attree.errors import ArgumentError
from attree.metrics import Faithfulness, functional
from attree.metrics.functional import Ranking, faithfulness_statistics
from helpers.statistics import pair_batches, pair_columns, pooled, same, scipy_value

matplotlib.use("Agg")


KEYS = ["pc_pearson", "pc_kendall", "pc_spearman", "ne_pearson", "ne_kendall", "ne_spearman", "p_auroc"]


def assert_equal(ours: dict[str, Tensor], expected: dict[str, Tensor], prefix: str = "", postfix: str = "") -> None:
    assert list(ours) == [f"{prefix}{key}{postfix}" for key in expected]
    assert torch.equal(torch.stack(list(ours.values())), torch.stack(list(expected.values())))


def test_the_seven_statistics_and_their_mean() -> None:
    scores, delta_pc, delta_ne, changed = pair_columns(4_000, seed=0)
    values = faithfulness_statistics(scores, delta_pc, delta_ne, changed)
    assert list(values) == [*KEYS, "faithfulness"]
    for column, delta in (("pc", delta_pc), ("ne", delta_ne)):
        x, y = scores.double().numpy(), delta.double().numpy()
        same(values[f"{column}_pearson"], scipy_value(stats.pearsonr, x, y))
        same(values[f"{column}_kendall"], scipy_value(stats.kendalltau, x, y))
        same(values[f"{column}_spearman"], scipy_value(stats.spearmanr, x, y))
    same(values["p_auroc"], roc_auc_score(changed, scores))
    same(values["faithfulness"], float(np.mean([values[key].item() for key in KEYS])))


def test_rankings_made_once_give_the_same_and_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pair_columns(500, seed=1)
    expected = faithfulness_statistics(*plain)
    prepared = [Ranking(column) for column in plain]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("sorted again")

    monkeypatch.setattr(np, "argsort", refuse)
    assert faithfulness_statistics(*prepared) == expected
    assert faithfulness_statistics(*prepared[:3], plain[3]) == expected


def test_one_undefined_statistic_makes_the_mean_undefined() -> None:
    scores, delta_pc, delta_ne, changed = pair_columns(50, seed=2)
    values = faithfulness_statistics(scores, delta_pc, delta_ne, torch.zeros_like(changed))
    assert [key for key, value in values.items() if value.isnan()] == ["p_auroc", "faithfulness"]


def test_gradients_do_not_leak_into_the_statistics() -> None:
    scores, delta_pc, delta_ne, changed = pair_columns(20, seed=3)
    values = faithfulness_statistics(scores.requires_grad_(), delta_pc, delta_ne, changed)
    assert not any(value.requires_grad for value in values.values())


def test_collection_gives_the_seven_and_their_mean() -> None:
    metric = Faithfulness()
    assert isinstance(metric, MetricCollection)
    for part in pair_batches():
        metric.update(*part)
    expected = faithfulness_statistics(*pooled(pair_batches()))
    assert_equal(metric.compute(), expected)
    assert_equal(metric.compute(), expected)
    for name, member in metric.items(copy_state=False):
        assert member.compute().equal(expected[name])
    metric.reset()
    second = pair_batches(seed=9)[0]
    scores, delta_pc, delta_ne, changed = second
    metric.update(scores, changed=changed, delta_ne=delta_ne, delta_pc=delta_pc)
    assert_equal(metric.compute(), faithfulness_statistics(*second))


def test_collection_stores_the_pairs_once() -> None:
    metric = Faithfulness()
    for part in pair_batches():
        metric.update(*part)
    metric.compute()
    metric(*pair_batches()[0])
    for column in ("scores", "delta_pc", "delta_ne", "changed"):
        assert len({id(getattr(member, column)) for member in metric.values(copy_state=False)}) == 1


def test_collection_forward_gives_the_batch_and_keeps_the_whole() -> None:
    metric = Faithfulness(postfix="_x")
    for part in pair_batches(sizes=(30, 20)):
        assert_equal(metric(*part), faithfulness_statistics(*part), postfix="_x")
    assert_equal(metric.compute(), faithfulness_statistics(*pooled(pair_batches(sizes=(30, 20)))), postfix="_x")


def test_collection_clones_rename_and_live_apart() -> None:
    metric = Faithfulness(prefix="val/")
    first, _, last = pair_batches()
    metric.update(*first)
    clone = metric.clone(prefix="test/", postfix="!")
    clone.update(*last)
    assert_equal(metric.compute(), faithfulness_statistics(*first), prefix="val/")
    assert_equal(clone.compute(), faithfulness_statistics(*pooled([first, last])), prefix="test/", postfix="!")
    revived = pickle.loads(pickle.dumps(clone))
    assert_equal(revived.compute(), faithfulness_statistics(*pooled([first, last])), prefix="test/", postfix="!")
    assert clone["test/pc_kendall!"].compute().equal(functional.kendall(*pooled([first, last])[:2]))


def test_collection_survives_a_checkpoint() -> None:
    metric = Faithfulness()
    metric.persistent(True)
    first, _, last = pair_batches()
    metric.update(*first)
    restored = Faithfulness()
    restored.load_state_dict(metric.state_dict())
    restored.update(*last)
    assert_equal(restored.compute(), faithfulness_statistics(*pooled([first, last])))


def test_collection_plots() -> None:
    metric = Faithfulness(prefix="gatt/")
    curve = [metric(*part) for part in pair_batches(sizes=(30, 20))]
    figures = metric.plot(curve)
    assert sorted(axes.get_ylabel() for _, axes in figures) == sorted(metric.keys(keep_base=True))
    together, axes = metric.plot(together=True)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(metric.compute())
    for figure in [*(figure for figure, _ in figures), together]:
        matplotlib.pyplot.close(figure)


def test_collection_gathers_each_column_once() -> None:
    gathered = []

    def gather(column: Tensor, group: object = None) -> list[Tensor]:
        gathered.append(column)
        return [column, column.new_empty(0), column]

    metric = Faithfulness(dist_sync_fn=gather, distributed_available_fn=lambda: True)
    first, _, last = pair_batches()
    metric.update(*first)
    assert_equal(metric.compute(), faithfulness_statistics(*pooled([first, first])))
    assert len(gathered) == 4
    metric.update(*last)
    assert_equal(metric.compute(), faithfulness_statistics(*pooled([first, last, first, last])))

    on_step = Faithfulness(dist_sync_fn=gather, distributed_available_fn=lambda: True, dist_sync_on_step=True)
    values = on_step(*first)
    expected = faithfulness_statistics(*pooled([first, first]))
    assert all(values[name].equal(expected[name]) for name in expected)
    on_step(*last)
    assert_equal(on_step.compute(), faithfulness_statistics(*pooled([first, last, first, last])))


def test_lightning_logs_the_collection_as_it_is() -> None:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.faithfulness = Faithfulness(prefix="explain/")

        def validation_step(self, batch: list[Tensor]) -> None:
            self.faithfulness.update(*batch)
            self.log_dict(self.faithfulness, on_epoch=True)

    parts = pair_batches(sizes=(30, 20))
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    module = Module()
    for _ in range(2):  # Lightning resets the metric in between
        (logged,) = trainer.validate(module, DataLoader(parts, batch_size=None), verbose=False)
        expected = faithfulness_statistics(*pooled(parts))
        assert {f"explain/{key}": value.item() for key, value in expected.items()} == pytest.approx(logged, abs=1e-6)


def test_errors_name_the_argument() -> None:
    x = torch.arange(4.0)
    with pytest.raises(ArgumentError, match="`delta_ne` to be of length 4 as `scores` is, but got 2"):
        faithfulness_statistics(x, x, x[:2], x > 1)
    with pytest.raises(ArgumentError, match="`delta_ne` to be one-dimensional"):
        Faithfulness().update(x, x, x[None], x > 1)
    with pytest.raises(ArgumentError, match=r"`changed` to be 0 or 1 everywhere, but got \[3.0\]"):
        faithfulness_statistics(x, x, x, torch.tensor([0.0, 3.0, 1.0, 1.0]))
