"""Makes the configuration reference from the parsers that read the command line, each time the site is built."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, get_args

from jsonargparse import ArgumentParser
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from attree.cli.commands import COMMANDS
from attree.cli.completion import training_parsers
from attree.cli.training_parser import CHOICES, HELP
from attree.io.config_files import config_names, first_sentence, read_shipped, sweep_names
from attree.sweep import plan

INTRO = """# Configuration reference

Made from attree's own parsers and docstrings when this site was built.

A setting is the same in a file and on the command line: `trainer: {max_epochs: 100}` under `--config`, or
`--trainer.max_epochs 100`. Several files and options may be given; what comes later wins. A class is chosen by its name
and takes its own arguments: `--data Infection --data.seed 1`, `--model.net GATv2 --model.net.heads 4`; in a file as
`class_path` and `init_args`. `attree fit ... --print_config` shows what a command comes to, and every run keeps it as
`config.yaml`."""

GROUPS = {
    "explain": "What is measured of the explanations, and how often: ExplainCallback's own arguments.",
    "checkpoint": "When the run's state is saved.",
    "trainer": "Lightning's own options; its "
    "[documentation](https://lightning.ai/docs/pytorch/stable/common/trainer.html) says more.",
}
"""Options of the training commands by their first word."""

KINDS = {
    "data": ("Datasets", "`--data NAME`, and the arguments as `--data.ARGUMENT`."),
    "model": ("Modules", "`--model NAME`, and the arguments as `--model.ARGUMENT`."),
    "net": ("Networks", "`--model.net NAME`, and the arguments as `--model.net.ARGUMENT`."),
}
"""Classes that are chosen by name: a heading, and how."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page; mkdocs calls this."""
    files.append(File.generated(config, "configuration.md", content=reference()))
    return files


def reference() -> str:
    """The page's Markdown."""
    return "\n\n".join([INTRO, *_configs(), *_training(), *_classes(), *_commands(), *_sweep_file()]) + "\n"


def _configs() -> Iterator[str]:
    yield "## Configs that come with attree"
    yield "`attree configs` lists them, `attree configs NAME` prints one."
    for command, names in {"attree fit --config": config_names(), "attree sweep": sweep_names()}.items():
        rows = [(f"`{name}`", first_sentence(read_shipped(name))) for name in names]
        yield _table((f"`{command}`", "what for"), rows)


def _training() -> Iterator[str]:
    actions = [action for action in training_parsers()["fit"]._actions if action.option_strings]
    yield "## fit, validate, test and predict"
    yield "### the run"
    grouped = (*GROUPS, "data", "model")
    yield _arguments(action for action in actions if _first_word(action) not in grouped)
    for name, what in GROUPS.items():
        yield f"### {name}"
        yield what
        yield _arguments(action for action in actions if action.dest.startswith(f"{name}."))


def _classes() -> Iterator[str]:
    for key, (heading, how) in KINDS.items():
        yield f"## {heading}"
        yield how
        for name, path in CHOICES[key][1].items():
            documented = getattr(import_module(path.rpartition(".")[0]), name)
            parser = ArgumentParser(exit_on_error=False)
            parser.add_class_arguments(documented, key, fail_untyped=False)
            yield f"### {name}"
            yield _summary(documented)
            yield _arguments((action for action in parser._actions if action.dest.startswith(f"{key}.")), f"{key}.")


def _commands() -> Iterator[str]:
    os.environ["COLUMNS"] = "100"
    yield "## Other commands"
    for name, command in COMMANDS.items():
        if command.parser is not None:
            yield f"### attree {name}"
            yield f"{command.summary.capitalize()}."
            yield f"```\n{command.parser().format_help().strip()}\n```"


def _sweep_file() -> Iterator[str]:
    _, _, text = inspect.cleandoc(plan.__doc__ or "").partition("\n\n")
    sentence, _, example = text.partition(":\n\n")
    yield "## Sweep files"
    yield f"{sentence}:"
    yield f"```yaml\n{inspect.cleandoc(example)}\n```"


def _arguments(actions: Iterable[argparse.Action], prefix: str = "") -> str:
    """A table of options."""
    rows = []
    for action in actions:
        if (
            action.dest == argparse.SUPPRESS
            or action.dest.endswith(".help")
            or action.option_strings[-1:] == ["--help"]
        ):
            continue
        help_text = " ".join((HELP.get(action.dest) or action.help or "").split())
        rows.append((f"`{action.dest.removeprefix(prefix)}`", _code(_kind(action)), _code(_default(action)), help_text))
    return _table(("argument", "type", "default", "what it is"), rows) if rows else "It has no arguments of its own."


def _kind(action: argparse.Action) -> str:
    kind = getattr(action, "_typehint", None)
    if kind is None:
        return ""
    text = kind.__name__ if inspect.isclass(kind) and not get_args(kind) else str(kind)
    return re.sub(r"(?<![\w'])(?:\w+\.)+(?=\w)", "", text).replace("NoneType", "None")


def _default(action: argparse.Action) -> str:
    default: Any = action.default
    if default is None or default is argparse.SUPPRESS:
        return "null" if default is None else ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, dict):
        return str(default.get("class_path", default)).rpartition(".")[2]
    return str(list(default)) if isinstance(default, tuple) else str(default)


def _first_word(action: argparse.Action) -> str:
    return action.option_strings[0].lstrip("-").partition(".")[0]


def _summary(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\nArgs:")[0]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
