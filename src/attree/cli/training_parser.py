"""The parser of fit, validate, test and predict: jsonargparse with short names of classes and short errors."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn

import yaml
from jsonargparse import DefaultHelpFormatter, Namespace, get_loader, set_loader
from lightning.pytorch import LightningDataModule, LightningModule, callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn, optim

import attree.data
import attree.models
from attree.cli.failure import attree_error, fail
from attree.cli.parser_internals import HelpFormatterMixin, actions_of, command_parsers, grouped_actions
from attree.errors import did_you_mean, expect
from attree.io.config_files import config_hint, find_config
from attree.io.yaml_files import check_yaml, read_yaml


def subclasses(module: ModuleType, base: type, without: type | tuple[()] = ()) -> dict[str, str]:
    """Return the import path of each class of a module that derives from `base` and has no subclass, by class name.

    Args:
        module: The module; its `__all__` lists the classes.
        base: The base class.
        without: Leave out subclasses of this class.
    """
    exported = [getattr(module, name) for name in sorted(module.__all__)]
    classes = [
        kind
        for kind in exported
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base and not issubclass(kind, without)
    ]
    leaves = [kind for kind in classes if not any(issubclass(other, kind) and other is not kind for other in classes)]
    return {kind.__name__: f"{module.__name__}.{kind.__name__}" for kind in leaves}


CHOICES: dict[str, tuple[str, dict[str, str]]] = {
    "data": ("a dataset", subclasses(attree.data, LightningDataModule)),
    "model": ("a LightningModule", subclasses(attree.models, LightningModule)),
    "net": ("a network", subclasses(attree.models, nn.Module, LightningModule)),
    "encoder": ("a network", subclasses(attree.models, attree.models.AttentionNet)),
}
"""For each key that takes a class: the kind of class, and the import paths of attree's classes by name."""

PREFIXES = {"data": "data", "model": "model", "net": "model.net", "encoder": "model.encoder"}
"""For each of these keys, the prefix of the options that set the class's arguments."""

LISTS = ("--explain.methods", "--explain.protocols", "--data.num_neighbors")
"""Options that take a list. Users may write it as `a,b` or `[a,b]`."""


def names(key: str) -> str:
    """Return the class names that a key accepts, separated by commas."""
    return ", ".join(CHOICES[key][1])


def full_name(key: str, name: Any) -> Any:
    """Return the import path of attree's class with this name. Other values are returned unchanged.

    >>> full_name("net", "GAT"), full_name("net", "torch_geometric.nn.GAT")
    ('attree.models.GAT', 'torch_geometric.nn.GAT')
    """
    return CHOICES[key][1].get(name, name) if key in CHOICES and isinstance(name, str) else name


def expand_arguments(arguments: list[str]) -> list[str]:
    """Replace the names of attree's classes and configs in arguments by full paths, and put lists into brackets.

    Class names need full paths because PyG has classes of the same names, such as `GAT`.

    >>> expand_arguments(["--model.net", "GAT", "--data=Infection", "--model.net.heads=2"])
    ['--model.net', 'attree.models.GAT', '--data=attree.data.Infection', '--model.net.heads=2']
    >>> expand_arguments(["--explain.methods=gatt,random", "--explain.protocols", "[weight]"])
    ['--explain.methods=[gatt,random]', '--explain.protocols', '[weight]']
    """
    expanded: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if equals:
            argument = f"{option}={_expand_value(option, value)}"
        elif expanded:
            argument = _expand_value(expanded[-1], argument)
        expanded.append(argument)
    return expanded


def _expand_value(option: str, value: str) -> str:
    if option in ("--config", "-c"):
        return find_config(value)
    if option.removesuffix("+") in LISTS and not value.startswith(("[", "-")):
        return f"[{value}]"
    key = option.removeprefix("--").removesuffix(".class_path").rpartition(".")[2] if option.startswith("--") else ""
    return str(full_name(key, value))


def expand_config(content: Any, key: str = "") -> Any:
    """Replace the names of attree's classes in a config by import paths.

    >>> expand_config({"model": {"init_args": {"net": {"class_path": "GAT"}}}, "data": "Infection"})
    {'model': {'init_args': {'net': {'class_path': 'attree.models.GAT'}}}, 'data': 'attree.data.Infection'}
    """
    if isinstance(content, dict):
        return {name: expand_config(value, key if name == "class_path" else name) for name, value in content.items()}
    if isinstance(content, list):
        return [expand_config(value) for value in content]
    return full_name(key, content)


def class_options(*keys: str) -> dict[str, tuple[str, ...]]:
    """Return the options that set arguments of attree's classes, each with the names of the classes that have it.

    Args:
        keys: Keys of `CHOICES`; all if none is given.

    >>> class_options()["model.net.heads"], class_options()["model.readout"]
    (('GAT', 'GATv2', 'GPS', 'HGT', 'HeteroGAT', 'SGFormer', 'SuperGAT'), ('GraphClassifier',))
    """
    owners: dict[str, list[str]] = {}
    for key in keys or CHOICES:
        for class_name, path in CHOICES[key][1].items():
            for argument in _arguments(import_object(path)):
                owners.setdefault(f"{PREFIXES[key]}.{argument}", []).append(class_name)
    return {option: tuple(class_names) for option, class_names in owners.items()}


def import_object(path: str) -> Any:
    """Import a class or function by its path.

    >>> import_object("attree.models.GAT").__name__
    'GAT'
    """
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _arguments(kind: type) -> list[str]:
    """Return the names of the arguments of a class and its bases in attree, without arguments that take a class."""
    arguments = [
        argument
        for base in inspect.getmro(kind)
        if base.__module__.startswith("attree.") and "__init__" in vars(base)
        for argument in inspect.signature(base).parameters
    ]
    return [name for name in dict.fromkeys(arguments) if name not in CHOICES]


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

MAX_SUGGESTIONS = 3
"""Maximum number of suggestions for an unknown option."""


def one_sentence(message: str, options: Iterable[str] = (), typed: Sequence[str] = ()) -> str:
    r"""Reduce a message of jsonargparse to one line: the argument, the expected value and the given value.

    Args:
        message: The message.
        options: Dotted names of all options of the command, for suggestions.
        typed: The arguments as typed, because jsonargparse names options of classes only by their last word.

    >>> one_sentence('Parser key "lr":\n  Expected a <class \'float\'>. Got value: fast')
    "Expected argument `lr` to be a number, but got 'fast'."
    >>> one_sentence("Option 'lrr' is not accepted", ["trainer.max_epochs"], ["fit", "--model.lrr=1"])
    'There is no argument `--model.lrr`. Did you mean `--model.lr`?'
    """
    text = " ".join(line.strip(" -") for line in message.splitlines() if line.strip(" -"))
    sentence = _unknown_option(text, list(options), typed)
    for explain in (_class, _union, _wrong_type, _required, _config):
        sentence = sentence or explain(text)
    return sentence or text


def _unknown_option(text: str, options: list[str], typed: Sequence[str]) -> str | None:
    """Return the message for an unknown option or config key."""
    if match := re.match(r"unrecognized arguments: --([\w.+-]+)", text):
        name = match[1]
    elif match := re.search(r"(?:(?:Group|Subcommand) '([\w.]+)' does not accept option|Option) '([\w.-]+)'", text):
        group = "" if match[1] in (None, "fit", "validate", "test", "predict") else f"{match[1]}."
        name = f"{group}{match[2]}"
    else:
        return None
    typed_names = [argument[2:].partition("=")[0] for argument in typed if argument.startswith("--")]
    full = next((typed_name for typed_name in typed_names if f".{typed_name}".endswith(f".{name}")), None)
    dashes = "" if full is None else "--"
    name = (full or name).replace(".init_args.", ".")
    return f"There is no argument `{dashes}{name}`.{_suggestions(name, options, dashes)}"


def _suggestions(name: str, options: list[str], dashes: str) -> str:
    """Return a sentence that suggests full names for an unknown option; empty if no option is similar."""
    owners = class_options()
    if name.partition(".")[0] in ("optimizer", "lr_scheduler"):
        return f" See --{name.partition('.')[0]}.help with the class's name."
    if name in owners:
        return f" It is an argument of {' and '.join(owners[name])}, which was not chosen here."
    prefix, _, last = name.rpartition(".")
    by_last: dict[str, list[str]] = {}  # full names by their last word
    for option in dict.fromkeys([*options, *owners]):
        by_last.setdefault(option.rpartition(".")[2], []).append(option)
    beside = [word for word, paths in by_last.items() if f"{prefix}.{word}".removeprefix(".") in paths]
    words = [last] if last in by_last else get_close_matches(last, beside, n=1) or get_close_matches(last, by_last, n=2)
    paths = [path for word in words for path in by_last[word]]
    inside = [path for path in paths if path.rpartition(".")[0] == prefix]
    best = (inside or paths)[:MAX_SUGGESTIONS]
    return f" Did you mean {' or '.join(f'`{dashes}{path}`' for path in best)}?" if best else ""


def _class(text: str) -> str | None:
    """Return the message for a class that cannot be found or has the wrong type."""
    key = re.match(r'Parser key "([\w.]+)"', text)
    class_path = (
        re.search(r"Problem with given class_path '([^']*)'", text)
        or re.search(r"Expected a path but (\S+) either", text)
        or re.search(r"Expected a dot import path string: (\S+)", text)
    )
    if key is None or class_path is None:
        return None
    name, last = class_path[1], key[1].removesuffix(".class_path").rpartition(".")[2]
    if reason := _import_failure(name):
        return f"{name} of argument `{last if last in CHOICES else key[1]}` cannot be imported: {reason}"
    if refused := re.search(r"(?:the following arguments are required: \S+|Import of '?\S+ failed)", text):
        return f"{name} of argument `{key[1]}` cannot be used: {refused[0]}."
    if last in CHOICES:
        what, classes = CHOICES[last]
        hint = did_you_mean(name.rpartition(".")[2], classes)
        return f"Expected argument `{last}` to be {what} ({names(last)} or your own), but got {name!r}.{hint}"
    hint = did_you_mean(name.rpartition(".")[2], [*callbacks.__all__, *loggers.__all__, *optim.__all__])
    return f"Expected argument `{key[1]}` to name a class or one of its known values, but got {name!r}.{hint}"


def _import_failure(path: str) -> str | None:
    """Return why a user's class cannot be imported; None if it can be, or if `path` is not an import path."""
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")) or path.startswith("attree."):
        return None
    try:
        imported = import_module(module)
    except Exception as error:  # the user's code may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            return f"{Path.cwd()} and the installed packages have no module {module!r}."
        return f"importing it raised {type(error).__name__}: {error}."
    if hasattr(imported, name):
        return None
    hint = did_you_mean(name, [public for public in vars(imported) if not public.startswith("_")])
    return f"{getattr(imported, '__file__', None) or module} has no {name!r}.{hint}"


def _union(text: str) -> str | None:
    """Return the message for a value that fits none of several types."""
    match = re.match(
        r'Parser key "([\w.]+)": .*?Subtypes: \[(.*?)\] Errors: .*Given value: (.*)', text, flags=re.DOTALL
    )
    if match is None:
        return None
    kinds = [word for kind in re.split(r", (?![^\[]*\])", match[2]) for word in _type_words(kind)]
    return f"Expected argument `{match[1]}` to be {' or '.join(dict.fromkeys(kinds))}, but got {match[3]!r}."


def _type_words(kind: str) -> list[str]:
    """Return plain words for a type in a message, or the values of a `Literal`."""
    if kind.startswith("typing.Literal["):
        return kind.removeprefix("typing.Literal[").removesuffix("]").replace("'", "").split(", ")
    if kind.startswith("<class '") and kind not in TYPES:
        return [f"a {kind.removesuffix(chr(39) + '>').rpartition('.')[2]}"]
    return [TYPES.get(kind, TYPES.get(kind.partition("[")[0], kind))]


def _wrong_type(text: str) -> str | None:
    """Return the message for a value of the wrong type."""
    match = re.match(r'Parser key "([\w.]+)": (?:Expected (?:an? )?)(.*?)\.? Got value: (.*)', text)
    if match is None:
        return None
    kind = match[2]
    is_type = kind.startswith(("typing", "<class"))
    expected = TYPES.get(kind) or (" or ".join(_type_words(kind)) if is_type else f"a {kind}")
    return f"Expected argument `{match[1]}` to be {expected}, but got {match[3]!r}."


def _required(text: str) -> str | None:
    """Return the message for missing arguments."""
    # Older versions of jsonargparse name the first missing argument only.
    older = re.search(r'Key "([\w.]+)" is required but not included in config', text)
    match = older or re.match(r"the following arguments are required: (.*)", text)
    if match is None:
        return None
    missing = [f"`{re.sub(r'^(fit|validate|test|predict)[.]', '', name)}`" for name in match[1].split(", ")]
    return (
        f"Expected {' and '.join(missing)} to be given, in a file or as arguments. Try: attree fit --config infection "
        "(`attree configs` lists the configs)."
    )


def _config(text: str) -> str | None:
    """Return the message for a config file that does not exist or is not a file."""
    expected = "Expected argument `config` to be a YAML file or a name that `attree configs` lists, but got"
    if match := re.match(r'Parser key "config": (?:File does not exist|Path is not a file): (.*)', text):
        reason = "is a folder" if "not a file" in text else "does not exist"
        return f"{expected} {match[1]}, which {reason}.{config_hint(match[1].strip(chr(39)))}"
    if match := re.match(r"Unexpected config:(.*)", text):
        return f"{expected} {match[1].strip()!r}."
    return None


MODE = "attree"
"""Name of attree's YAML reader in jsonargparse."""

TITLES = {
    "data": f"data: one of {names('data')}, or your own LightningDataModule",
    "model": f"model: {names('model')}, or your own LightningModule; its net: {names('net')}, or your own",
    "explain": "explain: how explanations are measured, and how often",
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
    "weights_only": "Has no effect: attree reads only tensors and plain values from a checkpoint.",
}
"""Shorter help texts of some options."""


def load_yaml(text: str) -> Any:
    """Parse YAML as jsonargparse does, within a size limit, and replace attree's class names by import paths."""
    check_yaml(text)
    return expand_config(get_loader("yaml")(text))


set_loader(MODE, load_yaml, exceptions=(yaml.YAMLError,))


class HelpFormatter(HelpFormatterMixin, DefaultHelpFormatter):
    """jsonargparse's formatter with the texts of `HELP`."""

    texts = HELP


class AttreeParser(LightningArgumentParser):
    """jsonargparse's parser with one-sentence errors, no abbreviations, and attree's options first in the help."""

    _typed: ClassVar[tuple[list[str], list[str]]] = ([], [])
    """The typed arguments and all options, shared because jsonargparse makes further parsers for classes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Without abbreviations, `max_epoch` is an error, and a new option cannot make an old command ambiguous.
        super().__init__(*args, allow_abbrev=False, formatter_class=HelpFormatter, **{**kwargs, "parser_mode": MODE})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error in one sentence, then exit with status 2."""
        ours = None if ex is None else attree_error(ex)
        typed, options = self._typed
        fail(str(ours) if ours is not None else one_sentence(message, options, typed))

    def parse_typed(self, arguments: list[str]) -> Namespace:
        """Parse typed arguments, with short class names expanded. Error messages quote the arguments as typed."""
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
        """Return the help with one group of options for each of `TITLES`, in that order."""
        with grouped_actions(self, TITLES):
            return super().format_help()
