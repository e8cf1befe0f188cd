"""What jsonargparse says of a mistake, in one sentence without its internals."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lightning.pytorch import callbacks, loggers

from attree.cli.choices import CHOICES, known_arguments, names
from attree.config_files import config_hint
from attree.hints import did_you_mean

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
"""What a user calls the types that a parser names."""


def one_sentence(message: str, options: Iterable[str] = ()) -> str:
    r"""Reduce a parser's message to one line that names the argument, what it takes and what came.

    Args:
        message: What jsonargparse says.
        options: All options of the command, as dotted names; unknown ones are compared with them.

    >>> one_sentence('Parser key "lr":\n  Expected a <class \'float\'>. Got value: fast')
    "Expected argument `lr` to be a number, but got 'fast'."
    >>> one_sentence("Option 'lrr' is not accepted", ["trainer.max_epochs"])
    'There is no argument `lrr`. Did you mean `lr`?'
    """
    text = " ".join(line.strip(" -") for line in message.splitlines() if line.strip(" -"))
    for explain in (_unknown_option, _class, _union, _wrong_type, _required, _config):
        sentence = explain(text, list(options))
        if sentence is not None:
            return sentence
    return text


def _unknown_option(text: str, options: list[str]) -> str | None:
    """Options and config keys that nothing takes."""
    if found := re.match(r"unrecognized arguments: --([\w.+-]+)", text):
        return f"There is no argument `{found[1]}`.{_closest(found[1], options)}"
    if found := re.search(r"(?:(?:Group|Subcommand) '([\w.]+)' does not accept option|Option) '([\w.-]+)'", text):
        group = "" if found[1] in (None, "fit", "validate", "test", "predict") else f"{found[1]}."
        name = f"{group}{found[2]}"
        return f"There is no argument `{name}`.{_closest(name, options)}"
    return None


def _closest(name: str, options: list[str]) -> str:
    """Compare a whole dotted name, then its last word."""
    last = name.rpartition(".")[2]
    words = [option.rpartition(".")[2] for option in options] + list(known_arguments())
    return did_you_mean(name, options) or did_you_mean(last, words)


def _class(text: str, options: list[str]) -> str | None:
    """Classes that cannot be found, or are of another kind."""
    key = re.match(r'Parser key "([\w.]+)"', text)
    given = (
        re.search(r"Problem with given class_path '([^']*)'", text)
        or re.search(r"Expected a path but (\S+) either", text)
        or re.search(r"Expected a dot import path string: (\S+)", text)
    )
    if key is None or given is None:
        return None
    name, last = given[1], key[1].removesuffix(".class_path").rpartition(".")[2]
    if reason := re.search(r"(?:the following arguments are required: \S+|Import of '?\S+ failed)", text):
        return f"{name} of argument `{key[1]}` cannot be used: {reason[0]}."
    if last in CHOICES:
        what, own = CHOICES[last]
        hint = did_you_mean(name.rpartition(".")[2], own)
        return f"Expected argument `{last}` to be {what} ({names(last)} or your own), but got {name!r}.{hint}"
    hint = did_you_mean(name.rpartition(".")[2], [*callbacks.__all__, *loggers.__all__])
    return f"Expected argument `{key[1]}` to name a class or one of its known values, but got {name!r}.{hint}"


def _union(text: str, options: list[str]) -> str | None:
    """Values that fit none of several types."""
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


def _wrong_type(text: str, options: list[str]) -> str | None:
    """Values of another type than the only one that fits."""
    found = re.match(r'Parser key "([\w.]+)": (?:Expected (?:an? )?)(.*?)\.? Got value: (.*)', text)
    if found is None:
        return None
    kind = found[2]
    expected = TYPES.get(kind) or (_kind(kind)[0] if kind.startswith(("typing", "<class")) else f"a {kind}")
    return f"Expected argument `{found[1]}` to be {expected}, but got {found[3]!r}."


def _required(text: str, options: list[str]) -> str | None:
    """Arguments that nothing gave."""
    found = re.match(r"the following arguments are required: (.*)", text)
    if found is None:
        return None
    missing = [f"`{re.sub(r'^(fit|validate|test|predict)[.]', '', one)}`" for one in found[1].split(", ")]
    return f"Expected {' and '.join(missing)} to be given, in a file (--config infection) or as arguments."


def _config(text: str, options: list[str]) -> str | None:
    """Config files that are none."""
    expected = "Expected argument `config` to be a YAML file or a name that `attree configs` lists, but got"
    if found := re.match(r'Parser key "config": (?:File does not exist|Path is not a file): (.*)', text):
        reason = "is a folder" if "not a file" in text else "does not exist"
        return f"{expected} {found[1]}, which {reason}.{config_hint(found[1].strip(chr(39)))}"
    if found := re.match(r"Unexpected config:(.*)", text):
        return f"{expected} {found[1].strip()!r}."
    return None
