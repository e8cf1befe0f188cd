"""The command `attree configs`: what comes with attree to start from."""

from __future__ import annotations

from attree.io.config_files import config_names, first_sentence, read_shipped, sweep_names


def configs(name: str | None) -> int:
    """Print one of the configs, or a list of all, and return the exit status."""
    print(_listed() if name is None else read_shipped(name), end="")
    return 0


def _listed() -> str:
    parts = {"attree fit --config NAME": config_names(), "attree sweep NAME": sweep_names()}
    width = max(len(name) for names in parts.values() for name in names)
    lines = []
    for command, names in parts.items():
        lines += [f"{command}", *(f"  {name:<{width}}  {first_sentence(read_shipped(name))}" for name in names), ""]
    return "\n".join([*lines, "attree configs NAME prints one.\n"])
