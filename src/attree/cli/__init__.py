"""The `attree` command."""

from attree.cli.dispatch import main

__all__ = ["main"]
