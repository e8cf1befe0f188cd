"""The private members of Lightning and jsonargparse that the command line stands on, one by one."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

import jsonargparse
import pytest
from lightning.pytorch import Trainer, cli
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

import attree.cli
from attree.cli.parser_internals import actions_of, command_parsers


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (cli.LightningCLI, "_parse_ckpt_path"),
        (cli.LightningCLI, "_add_instantiators"),
        (cli.LightningCLI, "_dump_config"),
        (cli, "_InstantiatorFn"),
        (argparse, "_ArgumentGroup"),
        (argparse.HelpFormatter, "_fill_text"),
        (jsonargparse.DefaultHelpFormatter, "_get_help_string"),
    ],
)
def test_what_is_used_still_exists(owner: object, name: str) -> None:
    assert callable(getattr(owner, name, None)), f"{owner} has no {name} any more: see attree/cli/parser_internals.py"


def test_lightning_calls_what_is_overridden_when_it_did() -> None:
    body = inspect.getsource(cli.LightningCLI.__init__)
    order = [body.index(call) for call in ("parse_arguments(", "_parse_ckpt_path(", "_add_instantiators(")]
    assert order == sorted(order)
    assert "applied_instantiation_links" in inspect.signature(cli._InstantiatorFn.__call__).parameters
    assert "cluster_environment" in inspect.getsource(_AcceleratorConnector)
    assert "_accelerator_connector" in vars(Trainer(logger=False, accelerator="cpu"))


def test_parsers_know_their_commands_and_options() -> None:
    parser = jsonargparse.ArgumentParser()
    inner = jsonargparse.ArgumentParser()
    inner.add_argument("--width", type=int)
    parser.add_subcommands().add_subcommand("fit", inner)
    assert command_parsers(parser) == {"fit": inner}
    assert "width" in [action.dest for action in actions_of(inner)]


def test_no_other_file_of_the_command_line_uses_private_members() -> None:
    """Of other packages: `self._x`, `cls._x` and what attree's own modules define are its own."""
    folder = Path(attree.cli.__file__).parent
    used = re.compile(r"(?<![\w.])(?!self\b|cls\b|super\b)([A-Za-z]\w*(?:\.\w+|\[[^]]*\]|\(\))*)\._(?!_)\w+")
    allowed = {"AttreeParser._typed", "module._parser"}
    found = {
        f"{path.name}: {match[0]}"
        for path in sorted(folder.glob("*.py"))
        if path.name != "parser_internals.py"
        for match in used.finditer(path.read_text())
        if match[0] not in allowed
    }
    assert not found
