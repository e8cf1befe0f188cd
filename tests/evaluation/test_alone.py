"""`attree.evaluate` in one of several processes asks nothing of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_geometric.nn import GAT

import attree
from attree.data import Infection
from helpers.processes import spawn


def measure() -> dict[str, float]:
    torch.manual_seed(0)
    data = Infection(num_nodes=80, edge_probability=0.03, num_layers=2)
    model = GAT(data.num_features, 8, 2, data.num_classes).eval()
    return attree.evaluate(model, data.graph, 5, truth=data.truth, return_type="raw").metrics


def evaluate_in_the_first(rank: int, world_size: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    if rank == 0:
        torch.save(measure(), Path(folder, "metrics.pt"))
    dist.barrier()
    dist.destroy_process_group()


def test_evaluate_under_is_global_zero_does_not_wait_for_others(tmp_path: Path) -> None:
    """As after a DDP fit, under `if trainer.is_global_zero:`; the other process is at a barrier meanwhile."""
    spawn(evaluate_in_the_first, (2, str(tmp_path)), seconds=120)
    assert torch.load(tmp_path / "metrics.pt") == pytest.approx(measure(), nan_ok=True)
