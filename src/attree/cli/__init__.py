"""The `attree` command."""

from attree.cli.command import main

__all__ = ["main"]
