"""The front door of `attree`: find out which command is meant, and import only then what it needs.

PyTorch and Lightning take seconds to import, which is too long to wait for a list of commands.
"""

from __future__ import annotations

import sys
from functools import partial

from attree import __version__
from attree.cli.commands import COMMANDS
from attree.cli.failure import fail, failing_in_sentences
from attree.cli.text_cache import show
from attree.errors import did_you_mean
from attree.io.processes import end_with_parent

HELP = f"""usage: attree COMMAND [options]

Train attention GNNs and measure, while they train, how well their attention explains them.

commands:
{chr(10).join(f"  {name:<11}{command.summary}" for name, command in COMMANDS.items())}

options:
  -h, --help   show this text; `attree COMMAND --help` shows a command's options
  --version    show attree's version

Start with:  attree fit --config infection
Then look:   tensorboard --logdir logs
Go on:       attree fit --config infection --ckpt_path logs/infection/version_0/checkpoints/last.ckpt
Test:        attree test --config infection --ckpt_path logs/infection/version_0/checkpoints/last.ckpt
Explain:     attree explain logs/infection/version_0 --targets random:20
Grids:       attree sweep regularization
The paper:   attree paper list"""


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: What follows `attree`; the arguments of the process if None.
    """
    end_with_parent()
    given = sys.argv[1:] if args is None else list(args)
    first = given[0] if given else ""
    if first in ("-h", "--help", "help"):
        print(HELP)
    elif first == "--version":
        print(f"attree {__version__}")
    elif first in COMMANDS or (first.startswith("-") and not COMMANDS.keys().isdisjoint(given)):
        with failing_in_sentences():
            name = first if first in COMMANDS else "fit"  # options of LightningCLI may come before its command
            command = partial(COMMANDS[name].run, given)
            if _is_kept(name, given):
                show(given, command)
            status = command()
            if COMMANDS[name].parser is not None:
                raise SystemExit(status)
    else:
        got = f"but got {first!r}.{did_you_mean(first, COMMANDS)}" if first else "but got none; see attree --help."
        fail(f"Expected a command ({', '.join(COMMANDS)}), {got}")


def _is_kept(name: str, given: list[str]) -> bool:
    """Whether what a command prints takes seconds to make, and is the same the next time."""
    if given[1:] in (["-h"], ["--help"]):
        return COMMANDS[name].parser is None
    return name == "completion" or given == ["paper", "list"]
