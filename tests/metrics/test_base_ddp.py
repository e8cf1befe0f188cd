"""Two processes compute what one computes, however unevenly the pairs fall."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from attree.metrics import AUROC, Faithfulness, FaithfulnessComparison, Kendall, Pearson, Spearman, TruthAUROC
from attree.metrics.functional import auroc, auroc_by_target, faithfulness_statistics, kendall, pearson, spearman
from helpers.processes import spawn

N = 60
# How many pairs the first process gets; the other gets the rest, in updates of at most 25.
SPLITS = {"even": 30, "uneven": 7, "first_empty": 0, "second_empty": N}


def columns() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores, delta_pc, delta_ne = torch.rand(3, N, generator=generator).mul(20).round() / 8
    return scores, delta_pc, delta_ne - scores, delta_pc > 1, torch.arange(N) % 5


def compute_all(split: int, rank: int) -> dict[str, Tensor]:
    share = torch.arange(split) if rank == 0 else torch.arange(split, N)
    pairs = {"pearson": Pearson(), "spearman": Spearman(), "kendall": Kendall()}
    classes, truth, by_target = AUROC(), TruthAUROC(), TruthAUROC(average="target")
    collection = Faithfulness(prefix="all/")
    comparison = FaithfulnessComparison(["first", "second"], fixed=["first"])
    for chunk in share.split(25) if len(share) else ():
        scores, delta_pc, delta_ne, changed, target = (column[chunk] for column in columns())
        for metric in pairs.values():
            metric.update(scores, delta_pc)
        classes.update(scores, changed)
        truth.update(scores, changed)
        by_target.update(scores, changed, target)
        collection.update(scores, delta_pc, delta_ne, changed)
        comparison.update({"first": scores, "second": -scores}, delta_pc, delta_ne, changed)
    values = {name: metric.compute() for name, metric in pairs.items()}
    values |= {"auroc": classes.compute(), "truth": truth.compute(), "by_target": by_target.compute()}
    values |= collection.compute()
    values |= {f"member/{name}": member.compute() for name, member in collection.items(copy_state=False)}
    values |= {f"first/{name}": value for name, value in comparison.compute()["first"].items()}
    # Another epoch, with other scores of the method that was said to be fixed.
    comparison.reset()
    if rank == 1:
        scores, *others = columns()[:4]
        comparison.update({"first": scores.flip(0), "second": scores}, *others)
    both = comparison.compute()
    values |= {f"flipped/{name}": value for name, value in both["first"].items()}
    values |= {f"second/{name}": value for name, value in both["second"].items()}
    values["kept"] = torch.tensor(len(collection["faithfulness"].column("scores")))
    collection.reset()
    if rank == 1:
        collection.update(*columns()[:4])
    values |= {f"again/{name}": value for name, value in collection.compute().items()}
    return values


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    results = {name: compute_all(split, rank) for name, split in SPLITS.items()}
    with_nothing = Faithfulness().compute()
    torch.save((results, with_nothing), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("ddp")
    spawn(run, (str(folder),))
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("split", SPLITS)
def test_every_process_gets_the_value_over_all_pairs(outcome: list, split: str, rank: int) -> None:
    values = outcome[rank][0][split]
    scores, delta_pc, delta_ne, changed, target = columns()
    statistics = faithfulness_statistics(scores, delta_pc, delta_ne, changed)
    expected = {
        "pearson": pearson(scores, delta_pc),
        "spearman": spearman(scores, delta_pc),
        "kendall": kendall(scores, delta_pc),
        "auroc": auroc(scores, changed),
        "truth": auroc(scores, changed),
        "by_target": auroc_by_target(scores, changed, target),
    }
    flipped = faithfulness_statistics(scores.flip(0), delta_pc, delta_ne, changed)
    expected |= {f"flipped/{name}": value for name, value in flipped.items()}
    for start in ("all/", "member/all/", "again/all/", "first/", "second/"):
        expected |= {f"{start}{name}": value for name, value in statistics.items()}
    kept = values.pop("kept")
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert values[name].item() == pytest.approx(value.item(), abs=1e-14), name
    assert kept == (SPLITS[split] if rank == 0 else N - SPLITS[split])


def test_nothing_on_any_process_is_nan(outcome: list) -> None:
    for _, with_nothing in outcome:
        assert all(value.isnan() for value in with_nothing.values())
