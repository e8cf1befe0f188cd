"""One part of a call at a time, as other schedulers want it."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import torch

from attree.errors import ArgumentError
from attree.explain_run import ExplainCall, missing_parts, write_part
from helpers.cli import command, files, fit

METHODS = ("gatt", "random")
TYPED = ("--targets=all", "--methods=gatt,random", "--protocols=none", "--part_rows=500", "--figures=0", "--show=0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def expected(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of one process."""
    out = tmp_path_factory.mktemp("expected")
    assert command("explain", str(run), f"--out={out}", *TYPED) == 0
    return contents(out)


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: content for path, content in files(out / "scores").items()}


def part_call(run: Path, out: Path) -> ExplainCall:
    return ExplainCall(run, targets="all", methods=METHODS, protocols=(), part_rows=500, out=out)


def test_parts_in_any_order_are_those_of_the_command(run: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    call = part_call(run, tmp_path)
    numbers = missing_parts(call)
    assert len(numbers) == len(expected) - 1 > 3  # and the manifest
    written = [write_part(call, number) for number in reversed(numbers)]
    assert [part.part for part in written] == numbers[::-1]
    assert {part.host for part in written} == {socket.gethostname()}
    assert sum(part.targets for part in written) == 200
    assert contents(tmp_path) == expected
    assert missing_parts(call) == []
    again = write_part(call, 2)
    assert again == written[::-1][2]._replace(seconds=0.0)
    (tmp_path / "scores" / "part-000002.parquet").unlink()
    assert missing_parts(call) == [2]
    write_part(call, 2)
    assert contents(tmp_path) == expected


def test_a_folder_that_was_not_begun_is_refused(run: Path, tmp_path: Path) -> None:
    call = part_call(run, tmp_path)
    with pytest.raises(ArgumentError, match=f"on {socket.gethostname()} to be the folder of this call, but it has no"):
        write_part(call, 0)
    assert list(tmp_path.iterdir()) == []
    missing_parts(call)
    with pytest.raises(ArgumentError, match="`number`"):
        write_part(call, 100)


def test_a_run_that_was_trained_again_is_read_again(tmp_path: Path) -> None:
    run = fit(tmp_path)
    call = part_call(run, tmp_path / "out")
    missing_parts(call)
    write_part(call, 0)
    checkpoint = run / "checkpoints" / "last.ckpt"
    content = torch.load(checkpoint, weights_only=True)
    next(iter(content["state_dict"].values())).add_(1.0)
    torch.save(content, checkpoint)
    with pytest.raises(ArgumentError, match="other weights"):
        missing_parts(call)
    again = ExplainCall(call.run, call.targets, call.methods, call.protocols, part_rows=500, out=tmp_path / "out")
    assert missing_parts(again, overwrite=True)[0] == 0
    write_part(again, 0)
    assert 0 not in missing_parts(again)


def test_a_call_is_plain_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call = ExplainCall("run", methods=["gatt"], out="out")
    assert (call.run, call.out) == (str(tmp_path / "run"), str(tmp_path / "out"))
    assert hash(call) == hash(ExplainCall(tmp_path / "run", methods=("gatt",), out=tmp_path / "out"))
    with pytest.raises(ArgumentError, match=r"`methods`.*list of names"):
        ExplainCall("run", methods="gatt")
    with pytest.raises(ArgumentError, match=r"`run`.*path"):
        ExplainCall(3)  # type: ignore[arg-type]


@pytest.mark.long
def test_another_scheduler(run: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """The block of docs/how_to/scaling.md, with two processes in place of a cluster."""
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "scaling.md").read_text()
    (block,) = re.findall(r"```\n(from concurrent.futures .*?)```", page, flags=re.S)
    call = part_call(run, tmp_path)
    exec(block, {"call": call, "missing_parts": missing_parts, "write_part": write_part})
    assert contents(tmp_path) == expected
