"""The command `attree completion`: print a script that makes bash or zsh complete commands, options and values.

The script contains all words, so that the shell never waits for attree. (jsonargparse's own completion is too slow:
argcomplete imports PyTorch on every Tab, and shtab searches all subclasses of each option's class.)
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from jsonargparse import capture_parser

from attree.cli.commands import COMMANDS
from attree.cli.lightning_cli import DESCRIPTIONS, AttreeCLI
from attree.cli.parser_internals import actions_of, command_parsers, type_of
from attree.cli.stop import StopSignal
from attree.cli.training_parser import CHOICES, PREFIXES, class_options
from attree.errors import expect
from attree.io.config_files import config_names, sweep_names
from attree.paper.command import CONTENTS

SHELLS = {
    "bash": "",
    "zsh": "(( $+functions[compdef] )) || { autoload -U compinit && compinit }\n"
    "autoload -U bashcompinit && bashcompinit\n",
}
"""Lines that each shell needs before the bash script."""

SCRIPT = """# attree's commands, options and values, printed by `attree completion`.
_attree() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words="" word
  if [[ "$cur" == "=" ]]; then cur=""; elif [[ "$prev" == "=" ]]; then prev="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    case "$word" in {commands}) command="$word"; break ;; esac
  done
  case "$command $prev" in
{values}
  *)
    if [[ -z "$command" ]]; then
      words={front}
    elif [[ "$cur" == -* ]]; then
      case "$command" in
{options}
      esac
    else
      case "$command" in
{positionals}
      esac
    fi ;;
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$cur") )
  case "$command $prev" in
  *" --config"|*" -c"|"sweep sweep") COMPREPLY+=( $(compgen -f -X '!*.yaml' -- "$cur") ) ;;
  esac
}}
complete -o default -F _attree attree"""
"""The bash script. If nothing matches, the shell completes file names."""


def completion(shell: str) -> int:
    """Print the script for a shell, and return the exit status."""
    expect(shell in SHELLS, "SHELL", " or ".join(SHELLS), shell)
    print(SHELLS[shell] + script())
    return 0


def script() -> str:
    """Return the bash script."""
    options: dict[str, list[str]] = {}
    values: dict[str, list[str]] = {}
    for command, parser in all_parsers().items():
        values_of = {option: words for action in actions_of(parser) for option, words in _words(action)}
        if command in DESCRIPTIONS:
            for key, option in PREFIXES.items():  # the options that take a class, and those of attree's classes
                values_of |= {f"--{option}": list(CHOICES[key][1]), **{f"--{name}": [] for name in class_options(key)}}
        options[command] = [option for option in values_of if option.startswith("--")]
        for option, words in values_of.items():
            if words:
                values.setdefault(_quoted(words), []).append(f'"{command} {option}"')
    positionals = {
        "sweep": sweep_names(),
        "configs": [*config_names(), *sweep_names()],
        "completion": list(SHELLS),
        "paper": ["list", "all", *CONTENTS],
    }
    return SCRIPT.format(
        commands="|".join(COMMANDS),
        values="\n".join(f"  {'|'.join(places)}) words={words} ;;" for words, places in values.items()),
        front=_quoted([*COMMANDS, "--help", "--version"]),
        options="\n".join(f"      {command}) words={_quoted(words)} ;;" for command, words in options.items()),
        positionals="\n".join(f"      {command}) words={_quoted(words)} ;;" for command, words in positionals.items()),
    )


def all_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    parsers: dict[str, argparse.ArgumentParser] = dict(training_parsers())
    parsers |= {name: command.parser() for name, command in COMMANDS.items() if command.parser is not None}
    return parsers


def training_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of fit, validate, test and predict."""
    parsers = command_parsers(capture_parser(AttreeCLI, [], StopSignal()))
    return {name: parser for name, parser in parsers.items() if name in DESCRIPTIONS}


def _words(action: argparse.Action) -> Iterator[tuple[str, list[str]]]:
    """Yield the options of an action, each with its possible values if they can be listed."""
    for option in action.option_strings:
        if option in ("--config", "-c"):
            yield option, config_names()
        elif action.choices is not None:
            yield option, [str(choice) for choice in action.choices]
        else:
            yield option, list(_values(type_of(action)))


def _values(kind: Any) -> Iterator[str]:
    if kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from (str(value) for value in get_args(kind))
    elif get_origin(kind) in (Union, UnionType):
        for option in get_args(kind):
            yield from _values(option)


def _quoted(words: Sequence[str]) -> str:
    return shlex.quote(" ".join(words))
