"""The parser of fit, validate, test and predict: jsonargparse's, with short names, help in order, and clear errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml
from jsonargparse import DefaultHelpFormatter, Namespace, get_loader, set_loader
from lightning.pytorch import callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser
from torch import optim

from attree.cli.choices import CHOICES, class_options, expand_arguments, expand_config, names
from attree.cli.failure import fail, own_error
from attree.cli.internals import HelpFormatterMixin, actions_of, command_parsers, grouped_actions
from attree.errors import did_you_mean, expect
from attree.io.config_files import config_hint
from attree.io.yaml_files import check_yaml, read_yaml

TYPES = {
    "<class 'int'>": "an integer",
    "<class 'float'>": "a number",
    "<class 'str'>": "text",
    "<class 'bool'>": "true or false",
    "<class 'NoneType'>": "null",
    "<class 'dict'>": "a mapping",
    "List": "a list",
    "list": "a list",
}
"""Plain words for the types in jsonargparse's messages."""

MOST_GUESSES = 3
"""Most suggestions for an unknown option."""


def one_sentence(message: str, options: Iterable[str] = (), given: Sequence[str] = ()) -> str:
    r"""Reduce jsonargparse's message to one line: the argument, what was expected and what was given.

    Args:
        message: The message of jsonargparse.
        options: Dotted names of all options of the command, for suggestions.
        given: What the user typed: jsonargparse names options of classes only by their last word.

    >>> one_sentence('Parser key "lr":\n  Expected a <class \'float\'>. Got value: fast')
    "Expected argument `lr` to be a number, but got 'fast'."
    >>> one_sentence("Option 'lrr' is not accepted", ["trainer.max_epochs"], ["fit", "--model.lrr=1"])
    'There is no argument `--model.lrr`. Did you mean `--model.lr`?'
    """
    text = " ".join(line.strip(" -") for line in message.splitlines() if line.strip(" -"))
    sentence = _unknown_option(text, list(options), given)
    for explain in (_class, _union, _wrong_type, _required, _config):
        sentence = sentence or explain(text)
    return sentence or text


def _unknown_option(text: str, options: list[str], given: Sequence[str]) -> str | None:
    """The message for unknown options and config keys."""
    if found := re.match(r"unrecognized arguments: --([\w.+-]+)", text):
        name = found[1]
    elif found := re.search(r"(?:(?:Group|Subcommand) '([\w.]+)' does not accept option|Option) '([\w.-]+)'", text):
        group = "" if found[1] in (None, "fit", "validate", "test", "predict") else f"{found[1]}."
        name = f"{group}{found[2]}"
    else:
        return None
    typed = [one[2:].partition("=")[0] for one in given if one.startswith("--")]
    full = next((one for one in typed if one == name or one.endswith(f".{name}")), None)
    dashes = "" if full is None else "--"
    name = (full or name).replace(".init_args.", ".")
    return f"There is no argument `{dashes}{name}`.{_meant(name, options, dashes)}"


def _meant(name: str, options: list[str], dashes: str) -> str:
    """Suggestions for an unknown option, with full names."""
    own = class_options()
    if name.partition(".")[0] in ("optimizer", "lr_scheduler"):
        return f" See --{name.partition('.')[0]}.help with the class's name."
    if name in own:
        return f" It is an argument of {' and '.join(own[name])}, which was not chosen here."
    prefix, _, last = name.rpartition(".")
    by_last: dict[str, list[str]] = {}  # full names by their last word
    for option in dict.fromkeys([*options, *own]):
        by_last.setdefault(option.rpartition(".")[2], []).append(option)
    beside = [word for word, paths in by_last.items() if f"{prefix}.{word}".removeprefix(".") in paths]
    words = [last] if last in by_last else get_close_matches(last, beside, n=1) or get_close_matches(last, by_last, n=2)
    paths = [path for word in words for path in by_last[word]]
    inside = [path for path in paths if path.rpartition(".")[0] == prefix]
    best = (inside or paths)[:MOST_GUESSES]
    return f" Did you mean {' or '.join(f'`{dashes}{path}`' for path in best)}?" if best else ""


def _class(text: str) -> str | None:
    """The message for classes that cannot be found or have the wrong type."""
    key = re.match(r'Parser key "([\w.]+)"', text)
    given = (
        re.search(r"Problem with given class_path '([^']*)'", text)
        or re.search(r"Expected a path but (\S+) either", text)
        or re.search(r"Expected a dot import path string: (\S+)", text)
    )
    if key is None or given is None:
        return None
    name, last = given[1], key[1].removesuffix(".class_path").rpartition(".")[2]
    if reason := _import_failure(name):
        return f"{name} of argument `{last if last in CHOICES else key[1]}` cannot be imported: {reason}"
    if refused := re.search(r"(?:the following arguments are required: \S+|Import of '?\S+ failed)", text):
        return f"{name} of argument `{key[1]}` cannot be used: {refused[0]}."
    if last in CHOICES:
        what, own = CHOICES[last]
        hint = did_you_mean(name.rpartition(".")[2], own)
        return f"Expected argument `{last}` to be {what} ({names(last)} or your own), but got {name!r}.{hint}"
    hint = did_you_mean(name.rpartition(".")[2], [*callbacks.__all__, *loggers.__all__, *optim.__all__])
    return f"Expected argument `{key[1]}` to name a class or one of its known values, but got {name!r}.{hint}"


def _import_failure(path: str) -> str | None:
    """Return why a user's class cannot be imported; None if it can be, or if the path is no import path."""
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")) or path.startswith("attree."):
        return None
    try:
        found = import_module(module)
    except Exception as error:  # the user's code may raise anything
        where = f"{Path.cwd()} and the installed packages have" if _is_absent(error, module) else "importing it raised"
        what = f"no module {module!r}" if _is_absent(error, module) else f"{type(error).__name__}: {error}"
        return f"{where} {what}."
    if hasattr(found, name):
        return None
    hint = did_you_mean(name, [one for one in vars(found) if not one.startswith("_")])
    return f"{getattr(found, '__file__', None) or module} has no {name!r}.{hint}"


def _is_absent(error: Exception, module: str) -> bool:
    """Whether a module, rather than something that it imports, does not exist."""
    return isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")


def _union(text: str) -> str | None:
    """The message for values that fit none of several types."""
    found = re.match(
        r'Parser key "([\w.]+)": .*?Subtypes: \[(.*?)\] Errors: .*Given value: (.*)', text, flags=re.DOTALL
    )
    if found is None:
        return None
    kinds = [word for kind in re.split(r", (?![^\[]*\])", found[2]) for word in _kind(kind)]
    return f"Expected argument `{found[1]}` to be {' or '.join(dict.fromkeys(kinds))}, but got {found[3]!r}."


def _kind(kind: str) -> list[str]:
    if kind.startswith("typing.Literal["):
        return kind.removeprefix("typing.Literal[").removesuffix("]").replace("'", "").split(", ")
    if kind.startswith("<class '") and kind not in TYPES:
        return [f"a {kind.removesuffix(chr(39) + '>').rpartition('.')[2]}"]
    return [TYPES.get(kind, TYPES.get(kind.partition("[")[0], kind))]


def _wrong_type(text: str) -> str | None:
    """The message for values of a wrong type."""
    found = re.match(r'Parser key "([\w.]+)": (?:Expected (?:an? )?)(.*?)\.? Got value: (.*)', text)
    if found is None:
        return None
    kind = found[2]
    expected = TYPES.get(kind) or (" or ".join(_kind(kind)) if kind.startswith(("typing", "<class")) else f"a {kind}")
    return f"Expected argument `{found[1]}` to be {expected}, but got {found[3]!r}."


def _required(text: str) -> str | None:
    """The message for missing arguments."""
    found = re.match(r"the following arguments are required: (.*)", text)
    if found is None:
        return None
    missing = [f"`{re.sub(r'^(fit|validate|test|predict)[.]', '', one)}`" for one in found[1].split(", ")]
    return f"Expected {' and '.join(missing)} to be given, in a file (--config infection) or as arguments."


def _config(text: str) -> str | None:
    """The message for config files that do not exist or are not files."""
    expected = "Expected argument `config` to be a YAML file or a name that `attree configs` lists, but got"
    if found := re.match(r'Parser key "config": (?:File does not exist|Path is not a file): (.*)', text):
        reason = "is a folder" if "not a file" in text else "does not exist"
        return f"{expected} {found[1]}, which {reason}.{config_hint(found[1].strip(chr(39)))}"
    if found := re.match(r"Unexpected config:(.*)", text):
        return f"{expected} {found[1].strip()!r}."
    return None


MODE = "attree"
"""Name of attree's YAML reader in jsonargparse."""

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
"""Headings of the help, in order, by the first word of their options."""


HELP = {
    "data": "A class, by name or import path, and its arguments: --data Infection --data.seed 1 (all of them: "
    "--data.help Infection).",
    "model": "A class, by name or import path, and its arguments: --model.lr 0.01 --model.net GATv2 "
    "--model.net.heads 4 (all of them: --model.help NodeClassifier).",
    "optimizer": "A class, by name or import path, and its arguments: --optimizer SGD --optimizer.lr 0.1 (all of them: "
    "--optimizer.help SGD).",
    "lr_scheduler": "A class, by name or import path, and its arguments: --lr_scheduler StepLR "
    "--lr_scheduler.step_size 50; needs --optimizer.",
    "seed_everything": "Seed of all random generators; true draws a seed.",
    "ckpt_path": "A checkpoint file: of the run to resume, or of the trained network.",
    "weights_only": "Has no effect: only tensors and plain values are ever read from a checkpoint.",
}
"""Shorter help for some options."""


def load_yaml(text: str) -> Any:
    """Read YAML as jsonargparse does, with a limit on its size, and replace attree's class names by import paths."""
    check_yaml(text)
    return expand_config(get_loader("yaml")(text))


set_loader(MODE, load_yaml, exceptions=(yaml.YAMLError,))


class HelpFormatter(HelpFormatterMixin, DefaultHelpFormatter):
    """jsonargparse's formatter with the texts of `HELP`."""

    texts = HELP


class AttreeParser(LightningArgumentParser):
    """jsonargparse's parser with one-sentence errors, no abbreviations, and attree's options first in the help."""

    _typed: ClassVar[tuple[list[str], list[str]]] = ([], [])
    """What the user typed, and all options: shared, because jsonargparse makes further parsers for classes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Without abbreviations, `max_epoch` is a typo, and a new option cannot make an old command ambiguous.
        super().__init__(*args, allow_abbrev=False, formatter_class=HelpFormatter, **{**kwargs, "parser_mode": MODE})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, then exit with status 2."""
        ours = None if ex is None else own_error(ex)
        given, options = self._typed
        fail(str(ours) if ours is not None else one_sentence(message, options, given))

    def parse_typed(self, arguments: list[str]) -> Namespace:
        """Parse what a user typed, with short class names expanded. Error messages quote what was typed."""
        parsers = [self, *command_parsers(self).values()]
        options = [action.dest for parser in parsers for action in actions_of(parser)]
        AttreeParser._typed = list(arguments), list(dict.fromkeys(options))
        return self.parse_args(expand_arguments(arguments))

    def parse_path(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Namespace:
        """Read a config file; errors name the file."""
        if Path(path).is_file():
            content = read_yaml(Path(path))
            expect(isinstance(content, dict), "config", f"a file of keys and values ({path})", content)
        return super().parse_path(path, *args, **kwargs)

    def format_help(self) -> str:
        """The help with one group of options for each of `TITLES`, in their order."""
        with grouped_actions(self, TITLES):
            return super().format_help()
