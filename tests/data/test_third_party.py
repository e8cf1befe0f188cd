"""A data folder runs nothing: planted code is refused in a sentence, honest files read as PyG and OGB read them."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric import datasets
from torch_geometric.io import planetoid

from attree.data import MUTAG, Arxiv, GraphDataModule, NodeDataModule, Planetoid, WebKB
from attree.data.datasets.third_party import RefusedPickle, guarded_reading, load_array_pickle
from attree.errors import MissingDataError

CORA, TEXAS, TU, OGB = "planetoid/Cora", "webkb/texas", "tu/MUTAG", "ogb/ogbn_arxiv"
MODULES: dict[str, Callable[..., NodeDataModule | GraphDataModule]] = {
    CORA: lambda **options: Planetoid("Cora", **options),
    TEXAS: lambda **options: WebKB("Texas", **options),
    TU: MUTAG,
    OGB: lambda **options: Arxiv(split="public", **options),
}


class Payload:
    """Makes a file when it is unpickled, and may be worth an honest object, so that nothing else looks wrong."""

    def __init__(self, mark: Path, worth: object = None) -> None:
        self.mark, self.worth = mark, worth

    def __reduce__(self) -> tuple[object, ...]:
        code = f"[open({str(self.mark)!r}, 'w').close(), None][1]"
        if self.worth is None:
            return eval, (code,)
        # The honest object rides along: a loader that unpickles in full goes on with it as if nothing had been.
        return eval, (f"({code}, worth)[1]", {"worth": self.worth})


def mirror(source: str, folder: str, root: Path) -> Path:
    """A private copy of one dataset's raw files, without what loaders made of them."""
    shutil.copytree(Path(source, folder), root / folder, ignore=shutil.ignore_patterns("processed"))
    return root / folder


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Where a payload that ran would leave its file."""
    return tmp_path / "executed"


def test_the_payload_is_live(mark: Path) -> None:
    assert pickle.loads(pickle.dumps(Payload(mark, {"honest": 1}))) == {"honest": 1}
    assert mark.exists()


@pytest.mark.parametrize("name", ["data.pt", "pre_transform.pt", "pre_filter.pt"])
@pytest.mark.parametrize(
    "folder",
    [pytest.param(folder, marks=pytest.mark.needs(f"{folder}/raw")) for folder in (CORA, TEXAS, TU)],
)
def test_planted_code_in_processed_files(data_root: str, tmp_path: Path, mark: Path, folder: str, name: str) -> None:
    place = mirror(data_root, folder, tmp_path)
    MODULES[folder](root=str(tmp_path)).setup()
    file = place / "processed" / name
    honest = torch.load(file, weights_only=True)
    torch.save(Payload(mark, honest), file)
    with pytest.raises(MissingDataError, match=rf"was not read: .*{name} is damaged, or .* could run code") as refusal:
        MODULES[folder](root=str(tmp_path)).setup()
    assert not mark.exists()
    assert "\n" not in str(refusal.value)
    file.unlink()
    MODULES[folder](root=str(tmp_path)).setup()
    assert not mark.exists()


@pytest.mark.needs(f"{CORA}/raw")
@pytest.mark.parametrize("name", ["x", "tx", "allx", "y", "ty", "ally", "graph"])
@pytest.mark.parametrize("intact", [False, True])
def test_planted_code_in_planetoid_pickles(data_root: str, tmp_path: Path, mark: Path, name: str, intact: bool) -> None:
    file = mirror(data_root, CORA, tmp_path) / "raw" / f"ind.cora.{name}"
    honest = pickle.loads(file.read_bytes(), encoding="latin1") if intact else None
    file.write_bytes(pickle.dumps(Payload(mark, honest), protocol=2))
    expected = (
        rf"Cora was not read: .*ind.cora.{name} is not a pickle of arrays alone: it names (__builtin__|builtins).eval"
    )
    with pytest.raises(MissingDataError, match=expected):
        Planetoid(root=str(tmp_path)).setup()
    assert not mark.exists()


@pytest.mark.needs(f"{TEXAS}/raw")
def test_planted_code_in_webkb_splits(data_root: str, tmp_path: Path, mark: Path) -> None:
    file = mirror(data_root, TEXAS, tmp_path) / "raw" / "texas_split_0.6_0.2_3.npz"
    np.savez(file, train_mask=np.array([Payload(mark)], dtype=object), val_mask=[1], test_mask=[1])
    with pytest.raises(MissingDataError, match=r"Texas could neither be read .* may be damaged"):
        WebKB("Texas", root=str(tmp_path)).setup()
    file.write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(MissingDataError, match=r"Texas could neither be read .* may be damaged"):
        WebKB("Texas", root=str(tmp_path)).setup()
    assert not mark.exists()


def test_planted_code_in_ogb_files(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # OGB does not ask for weights only
    place = tmp_path / OGB
    for path in ("RELEASE_v1.txt", "raw/edge.csv.gz", "raw/node-feat.csv.gz"):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).touch()
    (place / "processed").mkdir()
    for name in ("geometric_data_processed.pt", "pre_transform.pt", "pre_filter.pt"):
        torch.save((Payload(mark), None), place / "processed" / name)
        with pytest.raises(MissingDataError, match=rf"Arxiv was not read: .*{name} is damaged, or .* could run code"):
            Arxiv(root=str(tmp_path)).setup()
        (place / "processed" / name).unlink()
    assert not mark.exists()
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"


@pytest.mark.long
@pytest.mark.needs(f"{OGB}/raw")
def test_planted_code_in_ogb_splits(data_root: str, tmp_path: Path, mark: Path) -> None:
    Arxiv(root=data_root).setup()  # so that there is a processed file
    for file in Path(data_root, OGB).rglob("*"):
        if file.is_file():
            (tmp_path / file.relative_to(data_root)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file.relative_to(data_root)).symlink_to(file.resolve())
    torch.save({"train": Payload(mark)}, tmp_path / OGB / "split" / "time" / "split_dict.pt")
    with pytest.raises(MissingDataError, match=r"Arxiv was not read: .*split_dict.pt is damaged, or .* could run code"):
        Arxiv(split="public", root=str(tmp_path)).setup()
    assert not mark.exists()


@pytest.mark.needs(f"{CORA}/raw", "planetoid/CiteSeer/raw")
@pytest.mark.parametrize("name", ["Cora", "CiteSeer"])
def test_planetoid_reads_as_pyg_does(data_root: str, tmp_path: Path, name: str) -> None:
    mirror(data_root, f"planetoid/{name}", tmp_path)
    theirs = datasets.Planetoid(str(tmp_path / "planetoid"), name, force_reload=True)[0]
    ours = Planetoid(name, split="public", normalize_features=False, root=data_root).graph
    assert ours.to_dict().keys() == {*theirs.to_dict(), "class_names"}
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs.to_dict())


@pytest.mark.needs(f"{TEXAS}/raw", f"{TU}/raw")
def test_webkb_and_mutag_read_as_pyg_does(data_root: str, tmp_path: Path) -> None:
    mirror(data_root, TEXAS, tmp_path)
    mirror(data_root, TU, tmp_path)
    texas = datasets.WebKB(str(tmp_path / "webkb"), "Texas")[0]
    for _ in range(2):  # from the raw files, then from what was made of them
        ours = WebKB("Texas", root=data_root).graph
        assert all(torch.equal(ours[key], texas[key]) for key in ("x", "edge_index", "y"))
        mutag = datasets.TUDataset(str(tmp_path / "tu"), "MUTAG")
        for mine, theirs in zip(MUTAG(root=data_root).graphs, mutag, strict=True):
            assert all(torch.equal(mine[key], theirs[key]) for key in ("x", "edge_index", "y"))


def settings() -> tuple[object, ...]:
    """All that guarded reading changes."""
    names = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    return (planetoid.pickle, set(torch.serialization.get_safe_globals()), *map(os.environ.get, names))


@pytest.mark.parametrize("variable", [None, "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])
def test_everything_is_as_it_was_afterwards(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    before = settings()
    torch.save(Payload(mark), tmp_path / "planted.pt")
    with pytest.raises(pickle.UnpicklingError, match="eval"), guarded_reading(), guarded_reading():
        torch.load(tmp_path / "planted.pt", weights_only=False)
    assert settings() == before
    assert not mark.exists()


def test_threads_take_turns(tmp_path: Path) -> None:
    before, inside, seen = settings(), threading.Event(), []

    def read() -> None:
        inside.wait(10)
        with guarded_reading():
            seen.append(settings())

    other = threading.Thread(target=read)
    other.start()
    with guarded_reading():
        inside.set()
        other.join(0.2)
        assert not seen
    other.join(10)
    assert len(seen) == 1
    assert settings() == before


FORGED: dict[str, Callable[[Path], object]] = {
    "index beyond the matrix": lambda _: forged_matrix(indices=[0, 1_000_000]),
    "a matrix too large to be dense": lambda _: forged_matrix(shape=(2, 10**15)),
    "an array of objects": lambda _: np.array([{"a": 1}, None], dtype=object),
    "text": lambda _: "text",
    "a list of arrays": lambda _: [np.arange(3)],
    "a path": lambda path: path,
}


def forged_matrix(indices: list[int] | None = None, shape: tuple[int, int] | None = None) -> object:
    """A sparse matrix that SciPy would follow beyond its memory."""
    from scipy.sparse import csr_matrix

    matrix = csr_matrix(np.eye(2))
    if indices is not None:
        matrix.indices = np.array(indices, dtype=np.int32)
    if shape is not None:
        matrix._shape = shape
    return matrix


@pytest.mark.parametrize("kind", FORGED)
def test_forged_arrays_are_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "forged"
    file.write_bytes(pickle.dumps(FORGED[kind](tmp_path), protocol=4))
    with file.open("rb") as stream, pytest.raises(RefusedPickle, match="forged is not a pickle of arrays alone: "):
        load_array_pickle(stream)


@pytest.mark.needs(f"{CORA}/raw")
def test_damaged_pickles_are_refused_or_read(data_root: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("x", "y", "graph"):
        intact = Path(data_root, CORA, "raw", f"ind.cora.{name}").read_bytes()
        for _ in range(40):
            damaged = bytearray(intact)
            damaged[rng.integers(min(len(intact), 400))] = rng.integers(256)
            (tmp_path / name).write_bytes(damaged[: rng.integers(len(intact))] if rng.random() < 0.3 else damaged)
            with (tmp_path / name).open("rb") as stream, suppress(RefusedPickle):
                load_array_pickle(stream, encoding="latin1")
