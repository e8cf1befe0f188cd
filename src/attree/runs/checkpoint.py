"""Checkpoints that users name: looked at before anything is built, refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch

from attree.errors import ArgumentError
from attree.io.files import zip_damage

NEEDED = ("state_dict", "epoch", "global_step", "pytorch-lightning_version")
"""What Lightning reads of every checkpoint."""


def read_checkpoint(path: str | Path, needed: tuple[str, ...] = NEEDED) -> dict[str, Any]:
    """Read a checkpoint without running code from it, and check that it is a whole one."""
    if not Path(path).is_file():
        _refuse(path, "a checkpoint file", "which does not exist" + _why_not(str(path)))
    with Path(path).open("rb") as stream:  # what the system refuses is not the file's fault
        is_zip = stream.read(2) == b"PK"
    damage = zip_damage(Path(path)) if is_zip else None
    if damage is not None:
        _refuse(path, "a whole checkpoint file", f"which is cut off or damaged ({damage}): use another checkpoint")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        _refuse(path, "a checkpoint of tensors and plain values alone", cause=error)
    except Exception as error:  # torch raises whatever the damage leads to, OSError among others
        _refuse(path, "a checkpoint file", "which is empty, cut off or damaged", cause=error)
    missing = [name for name in needed if not isinstance(content, Mapping) or name not in content]
    if missing:
        _refuse(path, "a checkpoint of Lightning", f"which has no `{missing[0]}`")
    return dict(content)


def run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that wrote a checkpoint; None if it does not lie in one."""
    return checkpoint.resolve().parent.parent if checkpoint.parent.name == "checkpoints" else None


def mismatch(error: Exception, path: str) -> ArgumentError:
    """What to say when a checkpoint's weights do not fit the network."""
    first = next((line.strip() for line in str(error).splitlines()[1:]), str(error))
    if found := re.match(r'(Missing|Unexpected) key\(s\) in state_dict: "([^"]+)"', first):
        has, has_not = ("this network", "it") if found[1] == "Missing" else ("it", "this network")
        first = f"{has} has {found[2]}, {has_not} has not."
    config = (run_of(Path(path)) or Path()) / "config.yaml"
    hint = f" Its own config is {config}." if config.is_file() else ""
    return ArgumentError(
        f"Expected argument `ckpt_path` to be a checkpoint of this network, but {path} is of another one: {first}{hint}"
    )


def _why_not(path: str) -> str:
    """Lightning's words for checkpoints that only the process which wrote them knows."""
    return ": in a new process a file has to be named" if path in ("best", "last", "hpc") else ""


def _refuse(path: str | Path, expected: str, reason: str = "", cause: Exception | None = None) -> NoReturn:
    got = f"{str(path)!r}, {reason}" if reason else f"{str(path)!r}"
    raise ArgumentError(f"Expected argument `ckpt_path` to be {expected}, but got {got}.") from cause
