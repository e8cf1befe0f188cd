from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attree.paper import fingerprint
from attree.paper.cache import Cache

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


def test_code_is_known_by_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "PACKAGE", tmp_path)

    def hash_of(text: str) -> str:
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "models" / "net.py").write_text(text)
        fingerprint.code_hash.cache_clear()
        return fingerprint.code_hash(("models", "absent.py"))

    try:
        plain = hash_of("lr = 0.01\n")
        assert hash_of("# faster\nlr  =  0.01\n") == plain
        assert hash_of("lr = 0.02\n") != plain
    finally:
        fingerprint.code_hash.cache_clear()


def test_every_part_of_the_code_that_is_named_exists() -> None:
    for part in fingerprint.EVALUATION_CODE:
        assert (fingerprint.PACKAGE / part).exists(), part


def test_data_is_known_by_its_files(tmp_path: Path) -> None:
    raw = tmp_path / "hin"
    raw.mkdir()
    (raw / "hin.npz").write_bytes(b"one")
    first = fingerprint.data_hash("HIN", str(tmp_path))
    fingerprint.data_hash.cache_clear()
    (raw / "hin.npz").write_bytes(b"two")
    assert fingerprint.data_hash("HIN", str(tmp_path)) != first
