"""Columns of several processes come together in the first one, without objects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from attree.evaluation.columns import Exchange, PairColumns, gathered
from helpers.processes import spawn

SHARES = {"even": (0, 2, 4), "uneven": (0, 5, 6), "first has none": (0, 0, 6), "second has none": (0, 6, 6)}


def whole() -> PairColumns:
    """Six pairs of three targets."""
    generator = torch.Generator().manual_seed(0)
    delta = torch.rand(3, 6, generator=generator, dtype=torch.float64)
    scores = {"gatt": torch.rand(6, generator=generator), "random": torch.rand(6, dtype=torch.float64) * 0 + delta[0]}
    deltas = {"removal": (delta[0], delta[1], delta[2] > 0.5)}
    return PairColumns(torch.tensor([0, 0, 1, 1, 2, 2]), scores, deltas, delta[2] > 0.3)


def tensors(columns: PairColumns) -> list[Tensor]:
    listed: list[Tensor] = []
    columns.map(lambda column: (listed.append(column), column)[1])
    return listed


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("columns are sent as tensors, to one process")


def exchange(rank: int, folder: Path, begin: int, middle: int, end: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.all_gather_object = refuse
    share = torch.arange(begin, middle) if rank == 0 else torch.arange(middle, end)
    columns = whole().at(share)
    if not len(share):  # without a pair, nothing says which type a score has
        columns = columns.map(lambda column: column if column.dtype in (torch.int64, torch.bool) else column.float())
    joined = gathered(columns)
    assert (joined is None) == (rank > 0)
    if joined is not None:
        for found, expected in zip(tensors(joined), tensors(whole().at(torch.arange(begin, end))), strict=True):
            assert found.dtype in (expected.dtype, torch.float32)
            assert torch.equal(found, expected)
    assert gathered(None) is None
    exchange, expected = (
        Exchange(len(share), torch.device("cpu")),
        whole().at(torch.arange(begin, end)).deltas["removal"][0],
    )
    column = columns.deltas["removal"][0].double()
    assert torch.allclose(exchange.everywhere(column), expected, atol=1e-7)
    for owner in range(2):
        at_owner = exchange.joined(column, owner)
        assert torch.allclose(at_owner, expected if rank == owner else expected[:0], atol=1e-7)
    assert exchange.summed(torch.tensor([float(rank), 2.0])).tolist() == [1.0, 4.0]
    assert torch.equal(exchange.everywhere(columns.deltas["removal"][2]), whole().deltas["removal"][2][begin:end])
    dist.destroy_process_group()


@pytest.mark.parametrize("share", SHARES)
def test_the_first_process_gets_every_pair(share: str, tmp_path: Path) -> None:
    spawn(exchange, (tmp_path, *SHARES[share]))
