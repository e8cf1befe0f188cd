"""Write files atomically, and read arrays and metrics safely from files that may be damaged."""

from __future__ import annotations

import json
import math
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from attree.errors import ArgumentError

INTERVALS, VERDICT, HEADLINE = "intervals", "verdict", "headline"
"""Keys of a metrics file that are no metrics: the intervals, and the sentences and the headline of the verdict."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to. On success it replaces `path`; on failure it is removed.

    The file has the permissions that the umask gives to new files. An error of the system, such as a full disk, names
    `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = new_file(path)
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)  # the writer may have replaced the file
        temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def new_file(path: Path) -> Path:
    """Make an empty hidden file beside `path`, with a unique name and the usual permissions (umask)."""
    while True:
        file = path.with_name(f".{path.name}.{secrets.token_hex(6)}{path.suffix}")
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        return file


def give_usual_rights(path: Path) -> None:
    """Give a file the permissions that the umask gives to any new file."""
    usual = new_file(path)
    try:
        path.chmod(usual.stat().st_mode)
    finally:
        usual.unlink(missing_ok=True)


def write_npz(path: Path, **arrays: Any) -> Path:
    """Write arrays to an uncompressed `.npz` archive, atomically."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write text to a file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def zip_damage(path: Path) -> str | None:
    """Return what is wrong with a ZIP archive, such as a file of `torch.save`; None if all checksums are right.

    `torch.load` ignores the checksums, so it reads wrong numbers from a damaged file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # No checksum covers the folder flag, and torch reads uninitialised memory for a file that has it.
            marked = [file.filename for file in archive.infolist() if file.file_size and file.external_attr & 0x10]
            damaged = archive.testzip() or next(iter(marked), None)
        return None if damaged is None else f"{damaged} in it is not as it was written"
    except Exception as error:  # damaged bytes raise any error
        return (str(error).splitlines() or [type(error).__name__])[0]


def read_npz(path: Path, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of an `.npz` archive safely: no code in it is run, and damage raises an error.

    Sizes are checked before memory is allocated: the total against `max_bytes`, and each array's shape against its
    bytes. All bytes are checked against their checksum.

    Args:
        path: The file.
        max_bytes: Most bytes of all arrays together; None for the size of the file, which suits uncompressed archives.

    Raises:
        ArgumentError: The file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size, allowed = sum(member.file_size for member in members), max_bytes or path.stat().st_size
            if size > allowed:
                raise ValueError(f"it claims {size:,} bytes of arrays, where {allowed:,} are allowed")
            arrays = {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}
            if len(arrays) < len(members):
                raise ValueError("it holds two arrays of one name")
            return arrays
    except Exception as error:  # damaged bytes raise any error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(f"The file {path} is no intact .npz archive of plain arrays ({reason}).") from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Return one array of an `.npz` archive; raise if the array holds Python objects or has the wrong size."""
    with archive.open(member) as stream:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, fortran, dtype = readers[npy.read_magic(stream)](stream)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        if math.prod(shape) * dtype.itemsize != member.file_size - stream.tell():
            raise ValueError(f"{member.filename} has not the size that its shape {shape} needs")
        # A bytearray, because arrays over bytes cannot be written to. The zip module checks the checksum at the end.
        return np.ndarray(shape, dtype, bytearray(stream.read()), order="F" if fortran else "C")


def write_metrics(
    path: Path,
    metrics: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    verdict: Sequence[str] | None = None,
    headline: str = "",
) -> Path:
    """Write metrics by name. NaN and infinity become `null`, because JSON has neither.

    Args:
        path: The file.
        metrics: Numbers by name.
        intervals: Low and high end of some metrics, written under the key `intervals`.
        verdict: Sentences on the metrics, written under the key `verdict`.
        headline: What the verdict comes to, written first, under the key `headline`.
    """
    content: dict[str, Any] = {HEADLINE: headline} if headline else {}
    content |= metrics
    if intervals:
        content[INTERVALS] = dict(intervals)
    if verdict:
        content[VERDICT] = list(verdict)
    return write_text(path, json.dumps(json_ready(content), indent=2, allow_nan=False) + "\n")


def read_metrics(path: Path) -> dict[str, float]:
    """Read metrics that `write_metrics` wrote; `null` becomes NaN. Any other file raises an `ArgumentError`."""
    try:
        content = json.loads(path.read_bytes())
        return {name: _number(value) for name, value in content.items() if name not in (INTERVALS, VERDICT, HEADLINE)}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(path, error) from error


def read_intervals(path: Path) -> dict[str, tuple[float, float]]:
    """Read the intervals that `write_metrics` wrote; empty if it wrote none."""
    try:
        content = json.loads(path.read_bytes())
        return {name: (_number(low), _number(high)) for name, (low, high) in content.get(INTERVALS, {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(path, error) from error


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """Read the arguments of methods by name; any file but a JSON object of objects raises an `ArgumentError`."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"Expected {path} to hold settings of methods as JSON, but it does not ({error})."
        ) from error
    is_whole = isinstance(content, dict) and all(isinstance(settings, dict) for settings in content.values())
    if not is_whole:
        raise ArgumentError(f"Expected {path} to hold settings of methods as JSON, but it holds something else.")
    return dict(content)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _refusal(path: Path, error: Exception) -> ArgumentError:
    return ArgumentError(f"Expected {path} to hold metrics as JSON, but it does not ({error}).")


def json_ready(content: Any) -> Any:
    """Replace NaN and infinity by None at any depth: JSON has neither.

    >>> json_ready({"values": [0.5, float("nan")]})
    {'values': [0.5, None]}
    """
    if isinstance(content, dict):
        return {name: json_ready(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [json_ready(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
