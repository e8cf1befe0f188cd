"""The `attree` command."""

from attree.cli.commands import main

__all__ = ["main"]
