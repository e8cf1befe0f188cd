"""Tests of what older, allowed versions of a package cannot do, or say in other words."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def is_older(package: str, than: str) -> bool:
    return Version(version(package)) < Version(than)


def since(package: str, first: str, why: str) -> pytest.MarkDecorator:
    """Skip a test with versions before `first`; `why` says what they do."""
    return pytest.mark.skipif(is_older(package, first), reason=f"{package} before {first} {why}")
