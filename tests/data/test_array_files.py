"""Array files of datasets that are damaged: a sentence, never another library's exception."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attree.data import HIN, BAShapes, Infection
from attree.errors import AttreeError, MissingDataError
from attree.paper.networks import load_authors_gat
from helpers.damage import DAMAGES

READERS: dict[str, Callable[[Path], Any]] = {
    "hin/hin.npz": lambda root: HIN(root=str(root)).setup(),
    "gatt_paper/infection_3hop.npz": lambda root: Infection(source="authors", root=str(root)).setup(),
    "gatt_paper/ba_shapes.npz": lambda root: BAShapes(source="authors", root=str(root)).setup(),
    "gatt_paper/gat_infection_3layer.npz": lambda root: load_authors_gat(root / "gatt_paper/gat_infection_3layer.npz"),
}


def outcome(read: Callable[[Path], Any], root: Path) -> AttreeError | None:
    """What reading comes to; any exception but attree's own fails the test."""
    try:
        read(root)
    except AttreeError as error:
        return error
    return None


@pytest.mark.parametrize("file", [pytest.param(file, marks=pytest.mark.needs(file)) for file in READERS])
def test_damaged_files_are_refused_in_a_sentence(data_root: str, tmp_path: Path, file: str) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / file).parent.mkdir(parents=True)
    refused = 0
    for attempt in range(48):
        shutil.copyfile(Path(data_root, file), tmp_path / file)
        DAMAGES[attempt % len(DAMAGES)](tmp_path / file, rng)
        error = outcome(READERS[file], tmp_path)
        assert "\n" not in str(error)
        refused += error is not None
    assert refused > 24


@pytest.mark.needs("hin/hin.npz")
@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("node_ptr", lambda old: old[::-1], r"hin.npz is damaged. .*`node_ptr` to be 1761 non-decreasing offsets"),
        ("edge_ptr", lambda old: old[:-1], r"hin.npz is damaged. .*`edge_ptr` to be 1761 non-decreasing offsets"),
        ("x", lambda old: old.astype(str), r"hin.npz is damaged. .*`x` to be 2-dimensional of float32, but got '<U"),
        ("edge_index", lambda old: old.T, r"hin.npz is damaged. .*`edge_index` to be of shape \[2, E\]"),
        ("edge_index", lambda old: old + 1, r"`graphs\[0\].edge_index` to be node ids in"),
        ("y", lambda old: old - 1, r"`graphs\[...\].y` to be labels in 0 .. 1, but got -1"),
        ("y", lambda old: old + 1, "a label 2 instead of at most 1"),
    ],
)
def test_what_does_not_fit_is_named(
    data_root: str, tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray], sentence: str
) -> None:
    with np.load(Path(data_root, "hin/hin.npz")) as archive:
        arrays = dict(archive)
    arrays[name] = change(arrays[name])
    (tmp_path / "hin").mkdir()
    np.savez(tmp_path / "hin" / "hin.npz", **arrays)
    with pytest.raises(AttreeError, match=sentence):
        HIN(root=str(tmp_path)).setup()


@pytest.mark.needs("hin/hin.npz")
def test_compressed_arrays_have_a_limit(data_root: str, tmp_path: Path) -> None:
    (tmp_path / "hin").mkdir()
    with np.load(Path(data_root, "hin/hin.npz")) as archive:
        np.savez_compressed(tmp_path / "hin" / "hin.npz", **{**archive, "further": np.zeros(2**28 + 1, dtype=np.uint8)})
    with pytest.raises(MissingDataError, match=r"it claims 269,\d+,\d+ bytes of arrays, where 268,435,456 are allowed"):
        HIN(root=str(tmp_path)).setup()


@pytest.mark.needs("hin/hin.npz")
def test_graphs_are_cut_as_the_pointers_say(data_root: str) -> None:
    with np.load(Path(data_root, "hin/hin.npz")) as archive:
        x, node_ptr = archive["x"], archive["node_ptr"]
        edge_index, edge_ptr, y = archive["edge_index"], archive["edge_ptr"], archive["y"]
    for k, graph in enumerate(HIN(root=data_root).graphs):
        assert np.array_equal(graph.x.numpy(), x[node_ptr[k] : node_ptr[k + 1]])
        assert np.array_equal(graph.edge_index.numpy(), edge_index[:, edge_ptr[k] : edge_ptr[k + 1]])
        assert torch.equal(graph.y, torch.tensor([y[k]]))
