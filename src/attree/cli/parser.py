"""The parser of the training commands: jsonargparse's, with attree's sentences, short names and order of help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import DefaultHelpFormatter, Namespace, get_loader, set_loader
from jsonargparse._link_arguments import ActionLink
from lightning.pytorch.cli import LightningArgumentParser

from attree.cli.choices import expand_config, names
from attree.cli.failure import fail, own_error
from attree.cli.parse_errors import one_sentence
from attree.errors import expect
from attree.yaml_files import check_yaml, read_yaml

MODE = "attree"
"""The name under which jsonargparse knows how attree reads YAML."""

TITLES = {
    "data": f"data: one of {names('data')}, or your own LightningDataModule",
    "model": f"model: {names('model')}, or your own LightningModule; its net: {names('net')}, or your own",
    "explain": "explain: what is measured of the explanations, and how often",
    "checkpoint": "checkpoint: when the run's state is saved",
    "": "the run",
    "trainer": "trainer: Lightning's own options",
}
"""Headings of the help, by the first word of the options under them, in the order in which they are shown."""


HELP = {
    "data": "A class, by name or import path, and its arguments: --data Infection --data.seed 1 (all of them: "
    "--data.help Infection).",
    "model": "A class, by name or import path, and its arguments: --model.lr 0.01 --model.net GATv2 "
    "--model.net.heads 4 (all of them: --model.help NodeClassifier).",
    "seed_everything": "Seed of all random generators; true draws one.",
    "ckpt_path": "A checkpoint file: the run to go on with, or the trained network.",
    "weights_only": "Nothing but tensors and plain values is ever read from a checkpoint.",
}
"""What is said of options whose own help says too much."""


def load_yaml(text: str) -> Any:
    """Read YAML as jsonargparse does, but never without end, and with attree's own class names written out."""
    check_yaml(text)
    return expand_config(get_loader("yaml")(text))


set_loader(MODE, load_yaml, exceptions=(yaml.YAMLError,))


class HelpFormatter(DefaultHelpFormatter):
    """Keeps the line breaks of descriptions, and says of some options no more than `HELP`."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return HELP.get(action.dest) or super()._get_help_string(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in text.splitlines())


class AttreeParser(LightningArgumentParser):
    """A parser whose errors are one sentence, whose options are written out, and whose help begins with attree's."""

    _action_groups: list[argparse._ArgumentGroup]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation that fits today may fit two options tomorrow, and hides that `max_epoch` is a slip.
        super().__init__(*args, allow_abbrev=False, formatter_class=HelpFormatter, **{**kwargs, "parser_mode": MODE})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, then exit with status 2."""
        ours = None if ex is None else own_error(ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        options = [action.dest for one in (parser, *_commands(parser)) for action in one._actions]
        fail(str(ours) if ours is not None else one_sentence(message, dict.fromkeys(options)))

    def parse_path(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Namespace:
        """Read a config file; what is wrong with the file as a whole is said with its name."""
        if Path(path).is_file():
            content = read_yaml(Path(path))
            expect(isinstance(content, dict), "config", f"a file of keys and values ({path})", content)
        return super().parse_path(path, *args, **kwargs)

    def format_help(self) -> str:
        """The help with one group of options for each of `TITLES`, in their order."""
        with self._in_order():
            return super().format_help()

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        before = self._action_groups
        titled = {title: argparse._ArgumentGroup(self, title) for title in TITLES.values()}
        for action in [action for group in before for action in group._group_actions]:
            if isinstance(action, ActionLink):
                continue
            first = action.dest.partition(".")[0] if action.dest != argparse.SUPPRESS else _option(action)
            titled[TITLES[first if first in TITLES else ""]]._group_actions.append(action)
        self._action_groups = [group for group in titled.values() if group._group_actions]
        try:
            yield
        finally:
            self._action_groups = before


def _option(action: argparse.Action) -> str:
    """The first word of an option that stores nothing, such as `--model.help`."""
    return action.option_strings[0].removeprefix("--").partition(".")[0] if action.option_strings else ""


def _commands(parser: LightningArgumentParser) -> list[LightningArgumentParser]:
    """The parsers of a parser's subcommands."""
    action = parser._subcommands_action
    return [] if action is None else list(action._name_parser_map.values())
