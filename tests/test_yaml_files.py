from __future__ import annotations

import pytest
import yaml

from attree.yaml_files import MAX_VALUES, check_yaml


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1",
        "a: &x {b: [1, 2]}\nc: *x\nd: {<<: *x, e: 3}",
        "- &x 1\n" + "- *x\n" * 1000,
        yaml.safe_dump(list(range(MAX_VALUES - 1))),
    ],
)
def test_ordinary_text_passes(text: str) -> None:
    check_yaml(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (yaml.safe_dump(list(range(MAX_VALUES))), "more than 100000 values"),
        ("a: &x [" + "1," * 1000 + "]\nb: [" + "*x," * 100 + "]", "more than 100000 values"),
        ("a: &a {b: *a}", "the alias *a stands for something that it is in"),
        ("[" * 51 + "]" * 51, "more than 50 lists"),
        ("a: [", "did not find expected node content"),
    ],
)
def test_what_would_never_end_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(yaml.YAMLError) as raised:
        check_yaml(text)
    assert complaint in str(raised.value)
