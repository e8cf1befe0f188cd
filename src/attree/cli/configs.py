"""The command `attree configs`: what comes with attree to start from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attree.config_files import config_names, first_sentence, read_shipped, sweep_names

DESCRIPTION = """List the configs that come with attree, with a sentence each, or print one of them.

They are found by name wherever attree is installed; a local file of the same name wins."""

EPILOG = """Run one:         attree fit --config infection
Make it your own:  attree configs infection > mine.yaml, edit it, attree fit --config mine.yaml"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `attree configs` with the arguments that follow it, and return its exit status."""
    name = _parser().parse_args(argv).name
    print(_listed() if name is None else read_shipped(name), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attree configs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="the one to print (default: list all)")
    return parser


def _listed() -> str:
    parts = {"attree fit --config NAME": config_names(), "attree sweep NAME": sweep_names()}
    width = max(len(name) for names in parts.values() for name in names)
    lines = []
    for command, names in parts.items():
        lines += [f"{command}", *(f"  {name:<{width}}  {first_sentence(read_shipped(name))}" for name in names), ""]
    return "\n".join([*lines, "attree configs NAME prints one.\n"])
