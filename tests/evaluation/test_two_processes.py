"""Two processes that share the targets and the statistics give the numbers of one, to the last digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data

from attree.data import GroundTruth
from attree.evaluation import Evaluation, EvaluationConfig, Evaluator
from attree.evaluation.config import Shard
from attree.models import GAT
from attree.subject import Subject
from helpers.processes import spawn

NODES = 40
CONFIG = EvaluationConfig(["gatt", "avgatt", "uniform", "random"], ["removal", "weight"], random_draws=2)


def evaluator(targets: int, shard: Shard) -> Evaluator:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES, (2, 100), generator=generator)
    torch.manual_seed(0)
    net = GAT(5, 3, 4, num_layers=2).eval()
    subject = Subject.of_data(net, Data(x=torch.randn(NODES, 5, generator=generator), edge_index=edges))
    truth = GroundTruth(edges[1, :6].unique(), edges[:, :6])
    return Evaluator(subject, torch.arange(targets), CONFIG, truth, shard=shard, warn=False)


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("objects are pickled, and received by every process")


def evaluate(targets: int, shard: Shard) -> tuple[Evaluation, dict[str, Any]]:
    shared = evaluator(targets, shard)
    shared.evaluate(final=False)
    evaluation = shared.with_certainty(shared.evaluate())  # the second time, some rankings are known
    return evaluation, {name: float(value).hex() for name, value in evaluation.metrics.items()}


def in_process(rank: int, folder: Path, targets: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.all_gather_object = dist.broadcast_object_list = refuse
    evaluation, numbers = evaluate(targets, Shard(rank, 2))
    torch.save((numbers, dict(evaluation.intervals)), folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("targets", [9, 1])
def test_metrics_and_intervals_are_those_of_one_process(targets: int, tmp_path: Path) -> None:
    expected, numbers = evaluate(targets, Shard())
    spawn(in_process, (tmp_path, targets))
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    assert [metrics for metrics, _ in results] == [numbers] * 2
    intervals = results[0][1]  # those of the first process; the others report nothing
    assert intervals.keys() == expected.intervals.keys()
    for name, interval in expected.intervals.items():
        np.testing.assert_array_equal(intervals[name], interval, err_msg=name)


def test_shares_follow_one_another() -> None:
    items = torch.arange(11)
    for world_size in (1, 2, 3, 20):
        shares = [Shard(rank, world_size).of(items) for rank in range(world_size)]
        assert torch.cat(shares).tolist() == items.tolist()
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
