from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from attree.paper import cache as fingerprint
from attree.paper.cache import Cache
from attree.paper.cells import FaithfulnessCell
from helpers.processes import fork_server

KEY = {"kind": "faithfulness", "cell": {"seed": 0, "protocols": ("weight",)}, "code": "abc"}


def test_a_result_is_found_by_its_whole_key_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, {"auroc": 0.5, "undefined": float("nan")})
    found = Cache(tmp_path).get(KEY)
    assert found is not None
    assert found["auroc"] == 0.5
    assert np.isnan(found["undefined"])
    for other in ({**KEY, "code": "abd"}, {**KEY, "cell": {"seed": 1, "protocols": ("weight",)}}, {**KEY, "more": 1}):
        assert cache.get(other) is None


def test_a_file_of_another_key_is_not_used(tmp_path: Path) -> None:
    cache, other = Cache(tmp_path), {**KEY, "code": "other"}
    cache.put(KEY, {"auroc": 0.5})
    cache.path(KEY).rename(cache.path(other))
    assert cache.get(other) is None


@pytest.mark.parametrize("keep", [0, 10, 60])
def test_a_file_cut_short_is_not_used(tmp_path: Path, keep: int) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, {"auroc": 0.5})
    path = cache.path(KEY)
    path.write_text(path.read_text()[:keep])
    assert cache.get(KEY) is None


def test_arrays_come_back_or_not_at_all(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    arrays = {"convs.0.weight": np.arange(6.0).reshape(2, 3)}
    cache.put_arrays(KEY, arrays, {"accuracy": 0.8})
    found = cache.get_arrays(KEY)
    assert found is not None
    np.testing.assert_array_equal(found["convs.0.weight"], arrays["convs.0.weight"])
    stored = cache.path(KEY).with_suffix(".npz")
    stored.write_bytes(stored.read_bytes()[:-40])
    assert cache.get_arrays(KEY) is None


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package whose files may be changed."""
    copy = Path(shutil.copytree(fingerprint.PACKAGE, tmp_path / "attree", ignore=shutil.ignore_patterns("static")))
    monkeypatch.setattr(fingerprint, "PACKAGE", copy)
    yield copy
    fingerprint.code_hash.cache_clear()


def hashes() -> tuple[str, str]:
    """Of training, and of a cell."""
    fingerprint.code_hash.cache_clear()
    return fingerprint.code_hash("attree.paper.networks"), fingerprint.code_hash(FaithfulnessCell.__module__)


@pytest.mark.long
def test_code_is_known_by_what_it_does_and_by_what_it_imports(package: Path) -> None:
    """Of both hashes, those change that depend on the file: found by name, whichever room it is in."""
    before = hashes()
    for name, training, cell in (
        ("tensors/memory.py", True, True),
        ("files.py", True, True),
        ("tensors/arrays.py", True, True),
        ("tensors/precision.py", True, True),
        ("data/splits.py", True, True),
        ("paper/networks.py", True, True),
        ("exact/convolution_algebra.py", None, True),
        ("metrics/functional/correlation.py", False, True),
        ("metrics/functional/influence.py", False, True),
        ("report/page/write.py", False, False),
        ("report/logged_metrics.py", False, False),
        ("cli/lightning_cli.py", False, False),
        ("callbacks/explain.py", False, False),
        ("paper/tables/figures.py", False, False),
    ):
        (file,) = [path for path in package.rglob(Path(name).name) if str(path).endswith(f"/{name}")]
        original = file.read_text()
        if name.startswith("tensors/"):
            file.write_text(original + '\n# A comment.\n"""A text."""\n')
            assert hashes() == before, name
        file.write_text(original + "\nANOTHER = 1\n")
        after = hashes()
        assert training is None or (after[0] != before[0]) == training, name
        assert (after[1] != before[1]) == cell, name
        file.write_text(original)
    assert hashes() == before


def import_again(module: str, found: Path) -> None:
    """Import a module where nothing of attree is in memory, and note what of attree is then."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "attree"]:
        del sys.modules[name]
    import_module(module)
    found.write_text(" ".join(name for name in sys.modules if name.partition(".")[0] == "attree"))


def test_what_is_imported_is_what_python_imports(tmp_path: Path) -> None:
    """Whatever is in memory after a process has imported a module is among what its hash covers."""
    module, found = FaithfulnessCell.__module__, tmp_path / "found"
    process = fork_server().Process(target=import_again, args=(module, found))
    process.start()
    process.join(120)
    loaded = {name for name in found.read_text().split() if name.split(".")[1:2] != ["report"]}
    assert module in loaded
    assert loaded <= fingerprint.imported_modules(module)


def test_data_is_known_by_its_files(tmp_path: Path) -> None:
    raw = tmp_path / "hin"
    raw.mkdir()
    (raw / "hin.npz").write_bytes(b"one")
    first = fingerprint.data_hash("HIN", str(tmp_path))
    fingerprint.data_hash.cache_clear()
    (raw / "hin.npz").write_bytes(b"two")
    assert fingerprint.data_hash("HIN", str(tmp_path)) != first
