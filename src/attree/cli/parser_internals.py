"""All uses of private members of Lightning and jsonargparse by the command line.

Neither package has a public way to do these things. When a new version changes a member, `tests/cli/test_internals.py`
fails and names it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser
from jsonargparse._link_arguments import ActionLink
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI, _InstantiatorFn


class HookedCLI(LightningCLI):
    """LightningCLI with a hook for reading the checkpoint. Links to arguments that do not exist are ignored."""

    def read_checkpoint_argument(self) -> None:
        """Read `--ckpt_path`. Called after the arguments are parsed and before anything is built."""

    def _parse_ckpt_path(self) -> None:
        """Call the hook. Lightning would copy the checkpoint's hyperparameters, with any class that they name."""
        self.read_checkpoint_argument()

    def _add_instantiators(self) -> None:
        for key, base in (("model", LightningModule), ("data", LightningDataModule)):
            self.parser.add_instantiator(_Instantiator(cli=self, key=key), base, subclasses=True)


class _Instantiator(_InstantiatorFn):
    """Lightning's instantiator, which records arguments for `load_from_checkpoint`, without links to missing arguments.

    The target of a link may not exist: a user's module may have no `net` whose width could be set. jsonargparse ignores
    such a link; Lightning fails on it. A module that is an argument of another one (`OnDisk.source`) is only made:
    Lightning would record the other one's arguments as its own.
    """

    def __call__(self, class_type: type, *args: Any, applied_instantiation_links: dict[str, Any], **kwargs: Any) -> Any:
        self.cli._dump_config()
        home, _, name = str((self.cli.config_dump.get(self.key) or {}).get("class_path", "")).rpartition(".")
        if home and getattr(import_module(home), name, class_type) is not class_type:
            return class_type(*args, **kwargs)
        links = {key: value for key, value in applied_instantiation_links.items() if _has(self.cli.config_dump, key)}
        return super().__call__(class_type, *args, applied_instantiation_links=links, **kwargs)


def _has(content: Any, path: str) -> bool:
    """Whether nested mappings contain a dotted name."""
    for word in path.split("."):
        if not isinstance(content, dict) or word not in content:
            return False
        content = content[word]
    return True


def cluster_environment(trainer: Trainer) -> ClusterEnvironment:
    """Return the cluster environment of a trainer, which knows what started its processes."""
    return trainer._accelerator_connector.cluster_environment


def command_parsers(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of a parser's commands, by name."""
    action = parser._subcommands_action
    return {} if action is None else dict(action._name_parser_map)


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the actions of a parser, without jsonargparse's links between arguments."""
    return [action for action in parser._actions if not isinstance(action, ActionLink)]


def type_of(action: argparse.Action) -> Any:
    """Return the type of an option's value, if jsonargparse knows it."""
    return getattr(action, "_typehint", None)


@contextmanager
def grouped_actions(parser: argparse.ArgumentParser, titles: dict[str, str]) -> Iterator[None]:
    """Group the options in the help of a parser by titles, inside the block.

    Args:
        parser: The parser.
        titles: Headings by the first word of their options; `""` is for all other options.
    """
    before = parser._action_groups
    titled = {title: argparse._ArgumentGroup(parser, title) for title in titles.values()}
    for action in [action for group in before for action in group._group_actions]:
        if isinstance(action, ActionLink) or "subclass of Tensor" in (action.help or ""):  # nobody types a tensor
            continue
        stores = action.dest != argparse.SUPPRESS or not action.option_strings
        first = (action.dest if stores else action.option_strings[0].removeprefix("--")).partition(".")[0]
        titled[titles[first if first in titles else ""]]._group_actions.append(action)
    parser._action_groups = [group for group in titled.values() if group._group_actions]
    try:
        yield
    finally:
        parser._action_groups = before


class HelpFormatterMixin:
    """Keeps the line breaks of descriptions, and takes help texts from `texts` where it has one."""

    texts: dict[str, str]

    def _get_help_string(self, action: argparse.Action) -> str:
        inherited: str = super()._get_help_string(action)  # type: ignore[misc]
        # The known subclasses of a type, such as all tensor classes of PyTorch, say nothing to a user.
        return self.texts.get(action.dest) or re.sub(r", known subclasses: [\w., ]*", "", inherited)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in text.splitlines())
