"""The parser of the training commands: jsonargparse's, with attree's sentences, short names and order of help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml
from jsonargparse import DefaultHelpFormatter, Namespace, get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser

from attree.cli.choices import expand_arguments, expand_config, names
from attree.cli.failure import fail, own_error
from attree.cli.internals import HelpFormatterMixin, actions_of, command_parsers, grouped_actions
from attree.cli.parse_errors import one_sentence
from attree.errors import expect
from attree.io.yaml_files import check_yaml, read_yaml

MODE = "attree"
"""The name under which jsonargparse knows how attree reads YAML."""

TITLES = {
    "data": f"data: one of {names('data')}, or your own LightningDataModule",
    "model": f"model: {names('model')}, or your own LightningModule; its net: {names('net')}, or your own",
    "explain": "explain: what is measured of the explanations, and how often",
    "checkpoint": "checkpoint: when the run's state is saved",
    "optimizer": "optimizer: one of PyTorch's, instead of the model's own with its --model.lr and --model.weight_decay",
    "lr_scheduler": "lr_scheduler: how that optimizer's learning rate changes",
    "": "the run",
    "trainer": "trainer: Lightning's own options",
}
"""Headings of the help, by the first word of the options under them, in the order in which they are shown."""


HELP = {
    "data": "A class, by name or import path, and its arguments: --data Infection --data.seed 1 (all of them: "
    "--data.help Infection).",
    "model": "A class, by name or import path, and its arguments: --model.lr 0.01 --model.net GATv2 "
    "--model.net.heads 4 (all of them: --model.help NodeClassifier).",
    "optimizer": "A class, by name or import path, and its arguments: --optimizer SGD --optimizer.lr 0.1 (all of them: "
    "--optimizer.help SGD).",
    "lr_scheduler": "A class, by name or import path, and its arguments: --lr_scheduler StepLR "
    "--lr_scheduler.step_size 50; needs --optimizer.",
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


class HelpFormatter(HelpFormatterMixin, DefaultHelpFormatter):
    """jsonargparse's, with the texts of `HELP`."""

    texts = HELP


class AttreeParser(LightningArgumentParser):
    """A parser whose errors are one sentence, whose options are written out, and whose help begins with attree's."""

    _typed: ClassVar[tuple[list[str], list[str]]] = ([], [])
    """What the user typed, and the options of all commands: parsers that jsonargparse makes of classes know neither."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation that fits today may fit two options tomorrow, and hides that `max_epoch` is a slip.
        super().__init__(*args, allow_abbrev=False, formatter_class=HelpFormatter, **{**kwargs, "parser_mode": MODE})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, then exit with status 2."""
        ours = None if ex is None else own_error(ex)
        given, options = self._typed
        fail(str(ours) if ours is not None else one_sentence(message, options, given))

    def parse_typed(self, arguments: list[str]) -> Namespace:
        """Parse what a user typed, with attree's own class names written out; messages speak of what was typed."""
        parsers = [self, *command_parsers(self).values()]
        options = [action.dest for parser in parsers for action in actions_of(parser)]
        AttreeParser._typed = list(arguments), list(dict.fromkeys(options))
        return self.parse_args(expand_arguments(arguments))

    def parse_path(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Namespace:
        """Read a config file; what is wrong with the file as a whole is said with its name."""
        if Path(path).is_file():
            content = read_yaml(Path(path))
            expect(isinstance(content, dict), "config", f"a file of keys and values ({path})", content)
        return super().parse_path(path, *args, **kwargs)

    def format_help(self) -> str:
        """The help with one group of options for each of `TITLES`, in their order."""
        with grouped_actions(self, TITLES):
            return super().format_help()
