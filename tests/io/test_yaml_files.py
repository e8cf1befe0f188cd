from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from attree.errors import ArgumentError
from attree.io.yaml_files import MAX_VALUES, check_yaml, read_yaml


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1",
        "a: &x {b: [1, 2]}\nc: *x\nd: {<<: *x, e: 3}",
        "- &x 1\n" + "- *x\n" * 1000,
        "- 1\n" * (MAX_VALUES - 1),
    ],
)
def test_ordinary_text_passes(text: str) -> None:
    check_yaml(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- 1\n" * MAX_VALUES, "more than 100000 values"),
        ("a: &x [" + "1," * 1000 + "]\nb: [" + "*x," * 100 + "]", "more than 100000 values"),
        ("a: &a {b: *a}", "the alias *a refers to a value that contains it"),
        ("[" * 51 + "]" * 51, "more than 50 lists"),
        ("a: [", "did not find expected node content"),
    ],
)
def test_what_would_never_end_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(yaml.YAMLError) as raised:
        check_yaml(text)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb: 2\na: 3\n", "1 and 3"),
        ('a: {b: 1, "b": 2}\n', "1 and 1"),
        ("a:\n- b: 1\n  c: [1, 2]\n  b: 2\n", "2 and 4"),
        ("a: &x {b: 1}\nc: *x\nd: {e: {f: 1},\n e: 2}\n", "3 and 4"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(text: str, lines: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=f"a.yaml is no valid YAML: the key '[abe]' is in lines {lines}"):
        read_yaml(tmp_path / "a.yaml")


def test_keys_that_differ_or_are_of_other_mappings_are_read(tmp_path: Path) -> None:
    text = "a: {a: a, b: a}\nb: [{a: 1}, {a: 2}, a, a]\nc: &x {a: 1}\nd: {<<: *x, b: 1}\n? [1, 2]\n: 1\n"
    (tmp_path / "a.yaml").write_text(text.replace("? [1, 2]\n: 1\n", "e: a\n"))
    found = read_yaml(tmp_path / "a.yaml")
    assert found == {"a": {"a": "a", "b": "a"}, "b": [{"a": 1}, {"a": 2}, "a", "a"], "c": {"a": 1}, **found}
    assert found["d"] == {"a": 1, "b": 1}
    check_yaml(text)
