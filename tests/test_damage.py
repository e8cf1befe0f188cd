"""Every file that attree resumes or loads: a single flipped bit is noticed, or harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import attree
from attree.attribution import Attribution, GAtt
from attree.data.datasets.third_party import open_dataset
from attree.errors import AttreeError
from attree.evaluation import Evaluation
from attree.explain_run.parts import PartFolder
from attree.paper.cache import Cache
from attree.runs.load_run import read_checkpoint
from helpers.cli import fit, refusal
from helpers.no_warnings import no_warnings
from helpers.small_fits import classifier, infection

FLIPS = 250

Read = Callable[[Path], Any]
"""Reads a file, or raises an `AttreeError`."""


class NoticedError(AttreeError):
    """What a reader that says nothing is turned into."""


def checkpoint(folder: Path) -> tuple[Path, Read]:
    path = fit(folder) / "checkpoints" / "last.ckpt"
    return path, read_checkpoint


def processed(folder: Path) -> tuple[Path, Read]:
    path = folder / "processed" / "data.pt"
    path.parent.mkdir()
    torch.save((infection().graph.to_dict(), {"x": torch.arange(300)}), path)
    return path, lambda path: open_dataset("Mini", folder, "raw", lambda: torch.load(path, weights_only=True), False)


def attribution(folder: Path) -> tuple[Path, Read]:
    data = infection()
    capture = attree.capture_attention(classifier(data).net.eval(), data.graph.x, data.graph.edge_index)
    path = GAtt().attribute(capture, [3, 7, 44]).save(folder / "gatt.npz")

    def read(path: Path) -> Any:
        loaded = Attribution.load(path)
        return [loaded.method, loaded.targets, loaded.ptr, loaded.edges, loaded.scores, loaded.graph.edge_index]

    return path, read


def evaluation(folder: Path) -> tuple[Path, Read]:
    data = infection()
    attree.evaluate(classifier(data).net.eval(), data.graph, targets=[3, 7]).save(folder)

    def read(path: Path) -> Any:
        loaded = Evaluation.load(folder)
        deltas = [[one.delta_pc, one.delta_ne, one.changed] for one in loaded.reductions.values()]
        return [list(loaded.reductions), deltas, loaded.pair_scores, loaded.pairs.edges, loaded.pairs.targets]

    return folder / "evaluation.npz", read


def parts(folder: Path) -> tuple[Path, Read]:
    rng = np.random.default_rng(0)
    columns = {"target": np.arange(3000) // 30, "gatt": rng.random(3000).astype(np.float32), "dpc": rng.random(3000)}
    made = PartFolder(folder / "scores", {"targets": "1"}, 1)
    made.open({})
    made.write(0, pa.table({**columns, "changed": rng.random(3000) < 0.1}))

    def read(path: Path) -> Any:
        with no_warnings():
            try:
                assert PartFolder(folder / "scores", {"targets": "1"}, 1).missing() == []
            except UserWarning as warning:
                raise NoticedError(str(warning)) from warning
        table = pq.read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names}

    return folder / "scores" / "part-000000.parquet", read


def cells(folder: Path) -> tuple[Path, Read]:
    key = {"kind": "cell", "code": "abc"}
    cache = Cache(folder)
    cache.put(key, {"auroc": 0.98765, "counts": [1, 2, 3], "undefined": float("nan")})

    def read(path: Path) -> Any:
        found = cache.get(key)
        if found is None:
            raise NoticedError(f"{path} is not used")
        return found

    return cache.path(key), read


def same(one: Any, other: Any) -> bool:
    """Whether two contents are equal to the bit."""
    if isinstance(one, torch.Tensor | np.ndarray):
        first, second = np.asarray(one), np.asarray(other)
        return type(one) is type(other) and first.dtype == second.dtype and first.tobytes() == second.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(repr(one) == repr(other))


@pytest.mark.parametrize(
    "make", [checkpoint, processed, attribution, evaluation, parts, cells], ids=lambda f: f.__name__
)
def test_a_flipped_bit_is_noticed_or_harmless(make: Callable[[Path], tuple[Path, Read]], tmp_path: Path) -> None:
    path, read = make(tmp_path)
    expected, content = read(path), path.read_bytes()
    rng = np.random.default_rng(0)
    # Half anywhere, half where directories and footers are, which few checksums cover.
    places = [
        *rng.integers(len(content), size=FLIPS // 2),
        *(-1 - rng.integers(min(len(content), 3000), size=FLIPS // 2)),
    ]
    sentences = []
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = read(path)
        except AttreeError as error:
            sentences.append(str(error))
        else:
            assert same(found, expected), f"byte {place} of {len(content)} gives other content"
    assert len(sentences) > FLIPS // 3
    assert [one for one in sentences if str(tmp_path) not in one] == []
    path.write_bytes(content)
    assert same(read(path), expected)


def test_a_damaged_checkpoint_is_refused_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path)
    path = run / "checkpoints" / "last.ckpt"
    content = bytearray(path.read_bytes())
    content[5000] ^= 4  # in the first file of the archive, which is the longest
    path.write_bytes(content)
    config = f"--config={run / 'config.yaml'}"
    for arguments in (
        *([command, config, f"--ckpt_path={path}"] for command in ("fit", "validate", "test", "predict")),
        ["explain", str(run)],
    ):
        said = refusal(arguments, capsys)
        assert str(path) in said
        assert "damaged" in said
