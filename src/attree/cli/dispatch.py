"""The front door of `attree`: find out which command is meant, and import only then what it needs.

PyTorch and Lightning take seconds to import, which is too long to wait for a list of commands.
"""

from __future__ import annotations

import sys
from importlib import import_module

from attree import __version__
from attree.cli.failure import fail, failing_in_sentences
from attree.cli.text_cache import show
from attree.hints import did_you_mean
from attree.processes import end_with_parent

COMMANDS = {
    "fit": "train a network, and follow how well its attention explains it",
    "validate": "measure a trained network on the validation data",
    "test": "measure a trained network on the test data",
    "predict": "write a trained network's class probabilities to a file",
    "explain": "look at the explanations of a finished run: scores, figures, a page",
    "sweep": "fit one config many times, with different settings and seeds, and sum up",
    "paper": "make the paper's tables and figures, beside the numbers that it prints",
    "configs": "list the configs that come with attree, or print one",
    "completion": "print a script with which bash or zsh completes commands and options",
}

MODULES = {
    "explain": "attree.explain.command",
    "sweep": "attree.sweep.command",
    "paper": "attree.paper.command",
    "configs": "attree.cli.configs",
    "completion": "attree.cli.completion",
}
"""Where the commands are that are not LightningCLI's."""

HELP = f"""usage: attree COMMAND [options]

Train attention GNNs and measure, while they train, how well their attention explains them.

commands:
{chr(10).join(f"  {name:<11}{what}" for name, what in COMMANDS.items())}

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
            if first == "completion" or given[1:] in (["-h"], ["--help"]):
                show(given, lambda: _run(first, given))
            _run(first, given)
    else:
        got = f"but got {first!r}.{did_you_mean(first, COMMANDS)}" if first else "but got none; see attree --help."
        fail(f"Expected a command ({', '.join(COMMANDS)}), {got}")


def _run(command: str, given: list[str]) -> None:
    """Import a command and run it."""
    if command in MODULES:
        raise SystemExit(import_module(MODULES[command]).main(given[1:]))
    from attree.cli.command import run

    run(given)
