"""Members that other packages do not promise: all that attree uses are listed here, and each still exists.

A new version of a package that renames one fails here, by name, and not in the middle of somebody's run. What these
members are expected to do is tested where they are used (`callbacks/test_private.py`, `cli/test_internals.py`, ...).
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jsonargparse
import optuna
import pytest
import torch
from lightning.pytorch import Callback, Trainer, cli
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.tensorboard import SummaryWriter
from torch_geometric.data import Batch, Data
from torch_geometric.nn import RGATConv

import attree

SOURCE = Path(attree.__file__).parent
NAMEDTUPLES = {"_asdict", "_fields", "_replace"}
"""Public in spite of their names: Python documents them so."""


@cache
def trainer() -> Trainer:
    return Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)


@cache
def parser() -> jsonargparse.ArgumentParser:
    made = jsonargparse.ArgumentParser()
    made.add_subcommands().add_subcommand("fit", jsonargparse.ArgumentParser())
    return made


def batch() -> Batch:
    return Batch.from_data_list([Data(x=torch.zeros(1, 1))])


USED: dict[str, Callable[[], bool]] = {
    # PyTorch
    "_version": lambda: (
        isinstance(torch.zeros(1)._version, int)
        and hasattr(TensorBoardLogger("."), "_version")
        and hasattr(CSVLogger("."), "_version")
    ),
    "_values": lambda: torch.eye(2).to_sparse()._values().numel() == 2,
    "_schema": lambda: len(torch.ops.aten.add.Tensor._schema.arguments) == 3,
    "_make_wrapper_subclass": lambda: callable(torch.Tensor._make_wrapper_subclass),
    "_pytree": lambda: callable(torch.utils._pytree.tree_map),
    "_C": lambda: callable(torch._C.DisableTorchFunctionSubclass),
    "_orig_mod": lambda: isinstance(torch.compile(nn.Linear(1, 1))._orig_mod, nn.Linear),
    "_python_dispatch": lambda: callable(_python_dispatch.TorchDispatchMode),
    "_get_current_dispatch_mode": lambda: callable(_python_dispatch._get_current_dispatch_mode),
    "_get_current_dispatch_mode_stack": lambda: callable(_python_dispatch._get_current_dispatch_mode_stack),
    "_pop_mode": lambda: callable(_python_dispatch._pop_mode),
    "_push_mode": lambda: callable(_python_dispatch._push_mode),
    "_forward_pre_hooks": lambda: len(nn.Linear(1, 1)._forward_pre_hooks) == 0,
    "_forward_hooks": lambda: len(nn.Linear(1, 1)._forward_hooks) == 0,
    "_get_file_writer": lambda: callable(SummaryWriter._get_file_writer),
    # PyTorch Geometric
    "_alpha": lambda: "_alpha" in vars(RGATConv(1, 1, num_relations=1)),
    "_user_args": lambda: "x_j" in RGATConv(1, 1, num_relations=1)._user_args,
    "_num_graphs": lambda: batch()._num_graphs == 1,
    # Lightning
    "_batches_that_stepped": lambda: trainer().fit_loop.epoch_loop._batches_that_stepped == 0,
    "_accelerator_connector": lambda: hasattr(trainer()._accelerator_connector, "cluster_environment"),
    "_generate_state_key": lambda: callable(Callback._generate_state_key),
    "_InstantiatorFn": lambda: callable(cli._InstantiatorFn),
    "_dump_config": lambda: callable(cli.LightningCLI._dump_config),
    # jsonargparse, argparse
    "_link_arguments": lambda: callable(jsonargparse._link_arguments.ActionLink),
    "_subcommands_action": lambda: parser()._subcommands_action is not None,
    "_name_parser_map": lambda: "fit" in parser()._subcommands_action._name_parser_map,
    "_actions": lambda: len(parser()._actions) > 0,
    "_action_groups": lambda: len(parser()._action_groups) > 0,
    "_group_actions": lambda: isinstance(parser()._action_groups[0]._group_actions, list),
    "_ArgumentGroup": lambda: callable(argparse._ArgumentGroup),
    "_typehint": lambda: parser().add_argument("--width", type=int | None)._typehint is not None,
    # Optuna
    "_storage": lambda: hasattr(optuna.create_study(), "_storage"),
    "_trial_id": lambda: isinstance(optuna.create_study().ask()._trial_id, int),
}
"""Every such member by name, and whether it is still there."""


@pytest.mark.parametrize("name", USED)
def test_it_still_exists(name: str) -> None:
    assert USED[name](), f"{name} has changed: see where attree uses it (git grep -n {name} src)"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NAMEDTUPLES


def defined(tree: ast.Module) -> set[str]:
    """Names that a file defines, or uses of `self`: they are attree's own, or listed where they are inherited."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {one.id for one in targets if isinstance(one, ast.Name)}
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                found.add(name)
    return found


def reached(tree: ast.Module) -> set[str]:
    """Private names that a file reads of something else than `self`, or imports of other packages."""
    found: set[str] = set()
    own = defined(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if name not in own:
                found.add(name)
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                found |= {name} - own
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith("attree"):
                found |= {*module.split("."), *(one.name for one in names)}
    return {name for name in found if is_private(name)}


def test_no_other_is_used() -> None:
    used = {path: reached(ast.parse(path.read_text())) for path in sorted(SOURCE.rglob("*.py"))}
    unlisted = {str(path.relative_to(SOURCE)): names - USED.keys() for path, names in used.items()}
    assert {path: names for path, names in unlisted.items() if names} == {}
    assert USED.keys() - set().union(*used.values()) <= {"_generate_state_key", "_orig_mod"}, "no longer used"
