"""The torchmetrics classes do what users of torchmetrics expect."""

from __future__ import annotations

import pickle
from typing import Any

import lightning
import matplotlib
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric, MetricCollection

from attree.errors import ArgumentError
from attree.metrics import AUROC, Faithfulness, Kendall, Pearson, Spearman, TruthAUROC, functional
from attree.metrics.functional import faithfulness_statistics

matplotlib.use("Agg")

PAIRS = [
    (Pearson, functional.pearson),
    (Spearman, functional.spearman),
    (Kendall, functional.kendall),
    (AUROC, functional.auroc),
]


def batches(seed: int = 0, sizes: tuple[int, ...] = (40, 1, 25)) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    result = []
    for size in sizes:
        scores, delta_pc, delta_ne = torch.rand(3, size, generator=generator).mul(8).round()
        result.append((scores, delta_pc, delta_ne - 0.3 * scores, delta_pc > 4))
    return result


def pooled(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def assert_equal(ours: dict[str, Tensor], expected: dict[str, Tensor], prefix: str = "", postfix: str = "") -> None:
    assert list(ours) == [f"{prefix}{key}{postfix}" for key in expected]
    assert torch.equal(torch.stack(list(ours.values())), torch.stack(list(expected.values())))


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
def test_updates_accumulate_and_reset_forgets(metric_class: type[Metric], function: Any) -> None:
    metric = metric_class()
    parts = [(scores, changed) for scores, _, _, changed in batches()]
    for part in parts:
        metric.update(*part)
    whole = function(*pooled(parts))
    assert metric.compute().equal(whole)
    assert metric.compute().dtype == torch.float64
    metric.reset()
    metric.update(*parts[0])
    assert metric.compute().equal(function(*parts[0]))


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
def test_forward_gives_the_batch_and_keeps_the_whole(metric_class: type[Metric], function: Any) -> None:
    metric = metric_class()
    parts = [(scores, changed) for scores, _, _, changed in batches(sizes=(30, 20))]
    for part in parts:
        assert metric(*part).equal(function(*part))
    assert metric.compute().equal(function(*pooled(parts)))


@pytest.mark.parametrize("metric_class", [metric_class for metric_class, _ in PAIRS])
def test_pickle_clone_and_state_dict_keep_the_pairs(metric_class: type[Metric]) -> None:
    metric = metric_class()
    scores, _, _, changed = batches()[0]
    metric.update(scores, changed)
    expected = metric.compute()
    assert pickle.loads(pickle.dumps(metric)).compute().equal(expected)
    assert metric.clone().compute().equal(expected)
    assert not metric.state_dict()
    metric.persistent(True)
    fresh = metric_class()
    fresh.load_state_dict(metric.state_dict())
    fresh.update(scores[:0], changed[:0])
    assert fresh.compute().equal(expected)
    other = metric_class()
    other.update(*(column[:7] for column in (scores, changed)))
    other.merge_state(metric)
    assert len(other.column("scores")) == len(scores) + 7


@pytest.mark.parametrize("metric_class", [metric_class for metric_class, _ in PAIRS])
def test_nothing_seen_is_nan_with_a_warning(metric_class: type[Metric]) -> None:
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert metric_class().compute().isnan()


def test_half_precision_modules_do_not_round_the_states() -> None:
    metric = Kendall()
    torch.nn.ModuleList([metric]).half()
    scores = 1 + torch.arange(4, dtype=torch.float64) * 1e-9
    metric.update(scores, scores)
    assert metric.compute() == 1


@pytest.mark.parametrize("metric_class", [metric_class for metric_class, _ in PAIRS])
def test_declared_properties_and_plot(metric_class: type[Metric]) -> None:
    metric = metric_class()
    assert metric.is_differentiable is False
    assert metric.higher_is_better is True
    assert metric.plot_upper_bound == 1
    scores, _, _, changed = batches()[0]
    values = [metric(scores, changed) for _ in range(3)]
    for figure, axes in (metric.plot(), metric.plot(values)):
        assert axes.get_ylabel() == metric_class.__name__
        matplotlib.pyplot.close(figure)


def test_update_errors_name_the_argument() -> None:
    x = torch.arange(4.0)
    with pytest.raises(ArgumentError, match="`target` to be of length 4"):
        Kendall().update(x, x[:2])
    with pytest.raises(ArgumentError, match="`scores` to be a tensor, but got 'list'"):
        Pearson().update([1.0], x)
    with pytest.raises(ArgumentError, match="`delta_ne` to be one-dimensional"):
        Faithfulness().update(x, x, x[None], x > 1)
    with pytest.raises(ArgumentError, match="`average`"):
        TruthAUROC(average="macro")
    with pytest.raises(ArgumentError, match="`target` to be given"):
        TruthAUROC(average="target").update(x, x > 1)


def test_truth_auroc_pools_or_averages() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(300, generator=generator), torch.rand(300, generator=generator) < 0.4
    target = torch.randint(0, 12, (300,), generator=generator) * 1000
    labels[target == 3000] = False
    pool, mean = TruthAUROC(), TruthAUROC(average="target")
    for chunk in torch.arange(300).split(70):
        pool.update(scores[chunk], labels[chunk], target[chunk])
        mean.update(scores[chunk], labels[chunk], target=target[chunk])
    own = [roc_auc_score(labels[target == t], scores[target == t]) for t in target.unique() if t != 3000]
    assert pool.compute().item() == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert mean.compute().item() == pytest.approx(sum(own) / len(own), abs=1e-12)
    assert pickle.loads(pickle.dumps(mean)).compute().equal(mean.compute())


def test_collection_gives_the_seven_and_their_mean() -> None:
    metric = Faithfulness()
    assert isinstance(metric, MetricCollection)
    for part in batches():
        metric.update(*part)
    expected = faithfulness_statistics(*pooled(batches()))
    assert_equal(metric.compute(), expected)
    assert_equal(metric.compute(), expected)
    for name, member in metric.items(copy_state=False):
        assert member.compute().equal(expected[name])
    metric.reset()
    second = batches(seed=9)[0]
    scores, delta_pc, delta_ne, changed = second
    metric.update(scores, changed=changed, delta_ne=delta_ne, delta_pc=delta_pc)
    assert_equal(metric.compute(), faithfulness_statistics(*second))


def test_collection_stores_the_pairs_once() -> None:
    metric = Faithfulness()
    for part in batches():
        metric.update(*part)
    metric.compute()
    metric(*batches()[0])
    for column in ("scores", "delta_pc", "delta_ne", "changed"):
        assert len({id(getattr(member, column)) for member in metric.values(copy_state=False)}) == 1


def test_collection_forward_gives_the_batch_and_keeps_the_whole() -> None:
    metric = Faithfulness(postfix="_x")
    for part in batches(sizes=(30, 20)):
        assert_equal(metric(*part), faithfulness_statistics(*part), postfix="_x")
    assert_equal(metric.compute(), faithfulness_statistics(*pooled(batches(sizes=(30, 20)))), postfix="_x")


def test_collection_clones_rename_and_live_apart() -> None:
    metric = Faithfulness(prefix="val/")
    first, _, last = batches()
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
    first, _, last = batches()
    metric.update(*first)
    restored = Faithfulness()
    restored.load_state_dict(metric.state_dict())
    restored.update(*last)
    assert_equal(restored.compute(), faithfulness_statistics(*pooled([first, last])))


def test_collection_plots() -> None:
    metric = Faithfulness(prefix="gatt/")
    curve = [metric(*part) for part in batches(sizes=(30, 20))]
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
    first, _, last = batches()
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

    parts = batches(sizes=(30, 20))
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
