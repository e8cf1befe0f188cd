"""The ragged result: reading, converting, saving."""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from attree.attention import Attention, Graph
from attree.attribution import Attribution, GAtt
from attree.errors import ArgumentError
from helpers.random_attention import Case, cases


@pytest.fixture
def result() -> Attribution:
    """Targets 3 and 1 of a graph with a self-loop given twice, a duplicate edge and an isolated node 4."""
    edge_index = torch.tensor([[0, 1, 1, 2, 1, 0, 1], [1, 1, 2, 3, 2, 3, 1]])
    graph = Graph(edge_index, 5)
    weights = [torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(layer)) for layer in range(2)]
    return GAtt().attribute(Attention.from_weights(graph, weights), [3, 1])


def test_scores_and_bounds_must_fit(result: Attribution) -> None:
    graph, targets, ptr, edges, scores = result.graph, result.targets, result.ptr, result.edges, result.scores
    with pytest.raises(ArgumentError, match=r"`scores` to be of shape .*one for each edge, but got"):
        Attribution("mine", graph, targets, ptr, edges, scores[1:])
    with pytest.raises(ArgumentError, match=r"`ptr` to be of shape \(3,\)"):
        Attribution("mine", graph, targets, ptr[1:], edges, scores)


def test_reads_by_target_and_in_order(result: Attribution) -> None:
    assert len(result) == 2
    assert [part.target for part in result] == [3, 1]
    by_id = result[1]
    assert by_id.target == 1
    assert torch.equal(by_id.scores, list(result)[1].scores)
    dense = result.dense(1)
    assert dense.count_nonzero() == by_id.edges.numel() == 3  # 0 -> 1 and the loops of 0 and 1
    with pytest.raises(ValueError, match=r"one of the 2 explained ones \(3, 1\), but got 0"):
        result[0]


def test_edge_mask_is_aligned_with_the_edges_given(result: Attribution) -> None:
    mask, dense = result.edge_mask(1), result.dense(1)
    given, looped = result.graph.original_edge_index, result.graph.edge_index
    assert mask.shape == (7,)
    loop_of_1 = dense[(looped[0] == 1) & (looped[1] == 1)]
    assert mask[1] == mask[6] == loop_of_1 > 0
    proper = given[0] != given[1]
    assert torch.equal(mask[proper], dense[: int(proper.sum())])


def test_explanation_holds_mask_and_index(result: Attribution) -> None:
    explanation = result.to_explanation(3, x=torch.ones(5, 2))
    assert explanation.validate()
    assert explanation.index.tolist() == [3]
    assert torch.equal(explanation.edge_mask, result.edge_mask(3))


def test_table_lists_every_score(result: Attribution) -> None:
    table = result.to_pandas()
    assert list(table.columns) == ["target", "source", "destination", "score"]
    assert len(table) == result.scores.numel()
    row = table[(table.target == 3) & (table.source == 0) & (table.destination == 3)]
    assert row.score.item() == pytest.approx(result.dense(3)[4].item())
    assert isinstance(table, pd.DataFrame)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(partial=True))
def test_survives_saving_without_pickle(case: Case, tmp_path: Path) -> None:
    result = GAtt().attribute(case.attention, torch.arange(case.num_nodes).flip(0))
    path = result.save(tmp_path / "scores.npz")
    with zipfile.ZipFile(path) as archive:
        assert all(name.endswith(".npy") for name in archive.namelist())
    with np.load(path, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)
    loaded = Attribution.load(path)
    assert loaded.method == "gatt"
    assert loaded.graph.num_nodes == case.num_nodes
    for name in ("targets", "ptr", "edges", "scores"):
        assert torch.equal(getattr(loaded, name), getattr(result, name))
    assert torch.equal(loaded.graph.edge_index, result.graph.edge_index)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_any_precision_are_saved(result: Attribution, tmp_path: Path, dtype: torch.dtype) -> None:
    rounded = replace(result, scores=result.scores.to(dtype))
    loaded = Attribution.load(rounded.save(tmp_path / "scores.npz"))
    assert torch.equal(loaded.scores.double(), rounded.scores.double())


def test_loading_refuses_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        Attribution.load(tmp_path / "absent.npz")
    np.savez(tmp_path / "other.npz", edges=np.zeros(3))
    with pytest.raises(ValueError, match="attree-attribution-1"):
        Attribution.load(tmp_path / "other.npz")
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match=r"pickled.npz is no intact .npz archive of plain arrays"):
        Attribution.load(tmp_path / "pickled.npz")


def test_concat_keeps_every_part(result: Attribution) -> None:
    joined = Attribution.concat([result, result])
    assert joined.targets.tolist() == [3, 1, 3, 1]
    assert joined.ptr[-1] == joined.scores.numel() == 2 * result.scores.numel()
    with pytest.raises(ValueError, match="at least one"):
        Attribution.concat([])
    with pytest.raises(ArgumentError, match="`parts` to be results of one method"):
        Attribution.concat([result, replace(result, method="another")])
    other = Graph(result.graph.original_edge_index.flip(0), result.graph.num_nodes)
    with pytest.raises(ArgumentError, match="`parts` to be results on one graph"):
        Attribution.concat([result, replace(result, graph=other)])
    again = Graph(result.graph.original_edge_index.clone(), result.graph.num_nodes)
    assert len(Attribution.concat([result, replace(result, graph=again)])) == 4


def test_staying_on_a_device_keeps_the_graph(result: Attribution) -> None:
    assert result.to("cpu").graph is result.graph
