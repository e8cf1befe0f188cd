"""Saved attributions that are damaged or forged: a sentence of attree's own, or a result that is whole."""

from __future__ import annotations

import tracemalloc
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attree.attention import Attention, Graph
from attree.attribution import Attribution, GAtt
from attree.errors import ArgumentError, AttreeError
from helpers.damage import DAMAGES
from helpers.graphs import NODES, messy_graph


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved result of every node of a messy graph."""
    graph = Graph(messy_graph(0), NODES)
    weights = [torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(layer)) for layer in range(2)]
    result = GAtt().attribute(Attention.from_weights(graph, weights), range(NODES))
    return result.save(tmp_path_factory.mktemp("saved") / "gatt.npz")


def forge(source: Path, target: Path, **changes: Any) -> Path:
    """The same file with some arrays replaced."""
    with np.load(source) as archive:
        np.savez(target, **{**archive, **changes})
    return target


def assert_whole(result: Attribution) -> None:
    """What every result must be, by plain loops."""
    looped, bounds = result.graph.num_edges, result.ptr.tolist()
    assert bounds[0] == 0
    assert bounds[-1] == len(result.edges) == len(result.scores)
    assert len(bounds) == len(result) + 1
    assert bounds == sorted(bounds)
    assert all(0 <= edge < looped for edge in result.edges.tolist())
    targets = result.targets.tolist()
    assert all(target >= 0 for target in targets)
    assert len(set(targets)) == len(targets)
    assert result.scores.is_floating_point()
    for one in result:
        assert len(set(one.edges.tolist())) == len(one.edges)
    assert len(result.to_pandas()) == len(result.scores)


def outcome(path: Path) -> Attribution | AttreeError:
    """What loading comes to; any exception but attree's own fails the test."""
    try:
        return Attribution.load(path)
    except AttreeError as error:
        return error


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_load_whole_or_are_refused(intact: Path, tmp_path: Path, damage: Any) -> None:
    rng = np.random.default_rng(0)
    refused = 0
    for attempt in range(50):
        path = tmp_path / f"{attempt}.npz"
        path.write_bytes(intact.read_bytes())
        damage(path, rng)
        result = outcome(path)
        if isinstance(result, Attribution):
            assert_whole(result)
        else:
            assert str(path) in str(result)
            assert "\n" not in str(result)
            refused += 1
    assert refused > 15


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ptr": np.arange(NODES)}, "its `ptr` does not cut"),
        ({"targets": np.full(NODES, NODES)}, "`targets` are not all different ids >= 0"),
        ({"targets": np.arange(-1, NODES - 1)}, "`targets` are not all different ids >= 0"),
        ({"targets": np.zeros(NODES, dtype=np.int32)}, r"`targets` is of int32 and shape \(11,\)"),
        ({"num_nodes": np.array(3)}, r"`edge_index` to be node ids in \[0, 3\)"),
        ({"num_nodes": np.array(-3)}, "`num_nodes` to be an integer >= 0"),
        ({"num_nodes": np.array(2.5)}, "`num_nodes` is no integer"),
        ({"num_nodes": np.array(10**9)}, "it claims 1,000,000,000 nodes; pass `max_nodes` to read more than 4,"),
        ({"num_nodes": np.array(2**64 - 1, dtype=np.uint64)}, "it claims 18,446,744,073,709,551,615 nodes"),
        ({"edge_index": np.zeros((3, 2), dtype=np.int64)}, r"`edge_index` to be of shape \[2, num_edges\]"),
        ({"method": np.arange(3)}, "`method` is no text"),
        ({"format": np.array("attree-attribution-9")}, "its array `format` does not say so"),
    ],
)
def test_what_does_not_fit_is_named(intact: Path, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = forge(intact, tmp_path / "forged.npz", **changes)
    with pytest.raises(ArgumentError, match=f"`path` to be a file of format attree-attribution-1, but got .*{reason}"):
        Attribution.load(path)


def test_arrays_are_checked_against_each_other(intact: Path, tmp_path: Path) -> None:
    with np.load(intact) as archive:
        ptr, edges, scores = archive["ptr"], archive["edges"], archive["scores"]
    path = tmp_path / "forged.npz"
    twice, wrapping = edges.copy(), ptr.copy()
    twice[1] = twice[0]
    wrapping[1:3] = 2**63 - 1, -(2**63)
    for changes, reason in (
        ({"scores": scores[:-1]}, "`scores` of"),
        ({"edges": edges + 1}, "`edges` are not all in"),
        ({"edges": twice}, "an edge twice for one target"),
        ({"ptr": ptr[::-1].copy()}, "its `ptr` does not cut"),
        ({"ptr": wrapping}, "its `ptr` does not cut"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            Attribution.load(forge(intact, path, **changes))
    shuffled = np.concatenate([edges[begin:end][::-1] for begin, end in pairwise(ptr)])
    assert Attribution.load(forge(intact, path, edges=shuffled)).edges.tolist() == shuffled.tolist()


def test_more_nodes_than_plausible_load_if_asked_for(intact: Path, tmp_path: Path) -> None:
    path = forge(intact, tmp_path / "sparse.npz", num_nodes=np.array(20))
    with pytest.raises(ArgumentError, match="it claims 20 nodes; pass `max_nodes` to read more than 19"):
        Attribution.load(path, max_nodes=19)
    assert Attribution.load(path, max_nodes=20).graph.num_nodes == 20


@pytest.mark.parametrize(
    ("forgery", "reason"),
    [
        ("compressed", "it claims .* bytes of arrays, where .* are allowed"),
        ("shape", r"scores.npy has not the size that its shape \(99999999,\) needs"),
        ("directory", "it claims .* bytes of arrays, where .* are allowed"),
    ],
)
def test_no_memory_is_taken_for_what_is_not_there(intact: Path, tmp_path: Path, forgery: str, reason: str) -> None:
    path = tmp_path / "bomb.npz"
    content = intact.read_bytes()
    with np.load(intact) as archive, zipfile.ZipFile(intact) as members:
        if forgery == "compressed":
            np.savez_compressed(path, **{**archive, "scores": np.zeros(2**23)})
        elif forgery == "shape":
            shape = str(archive["scores"].shape).encode()
            with zipfile.ZipFile(path, "w") as forged:
                for name in members.namelist():
                    array = members.read(name)
                    header = array[:128].replace(shape, b"(99999999,)").rstrip()[:127].ljust(127) + b"\n"
                    forged.writestr(name, header + array[128:] if name == "scores.npy" else array)
        else:
            size = members.getinfo("scores.npy").file_size.to_bytes(4, "little")
            path.write_bytes(content.replace(size, (2**31).to_bytes(4, "little")))
    assert path.read_bytes() != content
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match=rf"bomb.npz is no intact .npz archive of plain arrays \({reason}\)"):
            Attribution.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
