"""Errors on the command line: one line for errors that users can fix, a traceback for bugs in attree."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from attree.errors import AttreeError

PREFIX = "attree: error: "

QUOTED_PACKAGES = ("lightning", "lightning_utilities", "pytorch_lightning", "jsonargparse")
"""Packages whose deliberate exceptions are shown as one line."""

OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Unable to allocate")
"""Phrases by which PyTorch and NumPy report a lack of memory, in exceptions of several types."""


def fail(message: str) -> NoReturn:
    """End the command with one line on standard error."""
    print(f"{PREFIX}{' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report errors that users can fix in one line, with exit status 2. Other exceptions pass through.

    If no command handles Ctrl-C, such as during imports, it is reported in one line with exit status 130.
    """
    before = threading.excepthook
    threading.excepthook = _ignore_writer
    try:
        yield
    except Exception as error:
        sentence = user_message(error)
        if sentence is None:
            raise
        fail(sentence)
    except KeyboardInterrupt:
        print("attree: stopped by Ctrl-C.", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        threading.excepthook = before


def _ignore_writer(failure: threading.ExceptHookArgs) -> None:
    """Ignore exceptions in TensorBoard's writer thread: the main thread raises them again."""
    if type(failure.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failure)


def attree_error(error: BaseException) -> AttreeError | None:
    """Return the attree error that caused an exception, even if other libraries wrapped it; None if there is none."""
    seen: set[int] = set()  # an exception that was raised again in another thread can be its own context
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, AttreeError):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def user_message(error: BaseException) -> str | None:
    """Return the message for an exception that users can fix; None for any other exception.

    Users can fix attree's errors, files that cannot be read or written, a lack of memory, and deliberate exceptions of
    Lightning and jsonargparse.

    >>> user_message(PermissionError(13, "Permission denied", "logs/runs"))
    'The system refused logs/runs: Permission denied.'
    >>> user_message(KeyError("a bug")) is None
    True
    """
    ours = attree_error(error)
    if ours is not None:
        return str(ours)
    text = str(error)
    if isinstance(error, ValueError) and text.startswith("embedded null"):
        return "Expected a path without a NUL byte, but a given path has one."
    if isinstance(error, UnicodeDecodeError):
        return f"A text file is not encoded in UTF-8: byte {error.start} is {error.object[error.start]:#x}."
    if "PytorchStreamWriter" in text or "unexpected pos" in text:  # torch.save on a full disk
        return f"A checkpoint could not be written: {text}"
    if isinstance(error, OSError):
        path = "a file" if error.filename is None else error.filename
        return f"The system refused {path}: {error.strerror or text}."
    if isinstance(error, MemoryError) or any(phrase in text for phrase in OUT_OF_MEMORY):
        return f"There is not enough memory for this: {text.splitlines()[0] if text else 'the system has none left'}"
    if not raised_on_purpose(error, QUOTED_PACKAGES):
        return None
    return text.partition("\nTip")[0].partition("HINT:")[0].strip()  # without the library's tips


def raised_on_purpose(error: BaseException, packages: tuple[str, ...] | None = None) -> bool:
    """Whether a `raise` statement in one of these packages raised an exception. None means any package but attree."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    package = last.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    line = traceback.extract_tb(last)[0].line or ""
    return line.startswith("raise") and (package != "attree" if packages is None else package in packages)
