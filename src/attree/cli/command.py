"""The `attree` command: LightningCLI's fit, validate, test and predict, with the wiring done for the user."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import warnings
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

import attree.data
import attree.models
from attree.callbacks import EpochProgress, ExplainCallback, LastCheckpoint
from attree.errors import ArgumentError, AttreeError
from attree.sweep.command import main as sweep

DESCRIPTION = """Train attention GNNs and measure, while they train, how well their attention explains them.

Start with:  attree fit --config configs/infection.yaml
Then look:   tensorboard --logdir logs
Grids:       attree sweep configs/sweeps/regularization.yaml   (attree sweep --help)"""


def subclasses(module: ModuleType, base: type) -> list[str]:
    """Names of the classes that a module offers to be chosen from: subclasses of `base` that have none of their own."""
    classes = [getattr(module, name) for name in sorted(module.__all__)]
    found = [one for one in classes if inspect.isclass(one) and issubclass(one, base) and one is not base]
    return [one.__name__ for one in found if not any(issubclass(other, one) and other is not one for other in found)]


class AttreeParser(LightningArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, then exit with status 2."""
        ours = None if ex is None else own_error(ex)
        fail(str(ours) if ours is not None else one_sentence(message))


CHOICES: dict[str, tuple[str, list[str]]] = {
    "data": ("a dataset", subclasses(attree.data, LightningDataModule)),
    "net": ("a network", subclasses(attree.models, attree.models.AttentionNet)),
    "model": ("a LightningModule", subclasses(attree.models, LightningModule)),
}
"""For the keys that take a class: what it is, and the names of attree's own."""


def one_sentence(message: str) -> str:
    r"""Reduce a parser's message to one line that names the argument, what it takes and what came.

    >>> one_sentence('Parser key "lr":\n  Expected a number. Got value: fast')
    "Expected argument `lr` to be a number, but got 'fast'."
    """
    text = " ".join(line.strip(" -") for line in message.splitlines() if line.strip(" -"))
    if found := re.match(r'Parser key "(?:\w+\.)*(data|net|model)": Expected a path but (\S+) either', text):
        what, names = CHOICES[found[1]]
        return f"Expected argument `{found[1]}` to be {what} ({', '.join(names)} or your own), but got {found[2]!r}."
    if found := re.match(r'Parser key "([\w.]+)": (Expected .*?)\.? Got value: (.*)', text):
        return f"{found[2].replace('Expected', f'Expected argument `{found[1]}` to be', 1)}, but got {found[3]!r}."
    if found := re.match(r'Parser key "config": File does not exist: (.*)', text):
        return f"Expected argument `config` to be a YAML file, but got {found[1]}, which does not exist."
    return text


def own_error(error: BaseException) -> AttreeError | None:
    """The attree error that an exception is, or that other libraries have wrapped; None if there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AttreeError):
        cause = cause.__cause__ or cause.__context__
    return cause


def fail(message: str) -> NoReturn:
    """End the command with one line on standard error."""
    print(f"attree: error: {message}", file=sys.stderr)
    raise SystemExit(2)


class AttreeCLI(LightningCLI):
    """LightningCLI with attree's links, default callbacks and default logger."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(ExplainCallback, "explain")
        parser.add_lightning_class_args(LastCheckpoint, "checkpoint")
        for source, target in (("num_features", "in_channels"), ("num_classes", "out_channels")):
            parser.link_arguments(f"data.{source}", f"model.init_args.net.init_args.{target}", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Refuse, in one sentence, a checkpoint that holds objects which could run code when read."""
        try:
            super()._parse_ckpt_path()
        except UnpicklingError as error:
            path = str(self.config[self.config.subcommand].ckpt_path)
            raise ArgumentError(
                f"Expected argument `ckpt_path` to be a checkpoint of tensors and plain values alone, but got {path!r}."
            ) from error

    def before_instantiate_classes(self) -> None:
        """A resumed fit goes on in its own folder, and TensorBoard forgets what came after its checkpoint."""
        config = self.config if self.subcommand is None else self.config[self.subcommand]
        if self.subcommand == "fit" and config.ckpt_path and config.ckpt_path not in ("last", "best", "hpc"):
            resume_logger(config.trainer.logger, Path(config.ckpt_path))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config if self.subcommand is None else self.config[self.subcommand]
        callbacks: list[Callback] = list(kwargs.pop("callbacks", None) or [])
        shows_progress = config.trainer.enable_progress_bar is not False
        given = self._get(self.config_init, "trainer.callbacks", default=[]) or []
        if shows_progress and not any(isinstance(callback, ProgressBar) for callback in given):
            callbacks.append(EpochProgress())
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Leave out `LastCheckpoint` where checkpoints are switched off: Lightning refuses both at once."""
        if config.get("enable_checkpointing") is False:
            callbacks = [one for one in callbacks if not isinstance(one, LastCheckpoint)]
        return super()._instantiate_trainer(config, callbacks)


class SaveConfig(SaveConfigCallback):
    """Saves the resolved config beside the run, and shows it as a text card in TensorBoard."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and stage == "fit":
                text = self.parser.dump(self.config, skip_none=False)
                logger.experiment.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()))


def resume_logger(logger: Any, checkpoint: Path) -> None:
    """Point a TensorBoard logger's config at the run that a checkpoint `.../checkpoints/*.ckpt` belongs to."""
    if not checkpoint.is_file():
        raise ArgumentError(f"Expected argument `ckpt_path` to be a checkpoint file, but got {str(checkpoint)!r}.")
    run = checkpoint.resolve().parent.parent
    if checkpoint.parent.name != "checkpoints" or not str(getattr(logger, "class_path", "")).endswith(
        "TensorBoardLogger"
    ):
        return
    step = int(torch.load(checkpoint, map_location="cpu", weights_only=True)["global_step"])
    logger.init_args.save_dir, logger.init_args.name = str(run.parent.parent), run.parent.name
    logger.init_args.version = run.name
    logger["dict_kwargs"] = {"purge_step": step}


def hush() -> None:
    """Keep advertisements and other libraries' internal deprecations out of a user's terminal."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch"):
        logging.getLogger(name).addFilter(lambda record: "Tip:" not in record.getMessage())
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")


def default_logger() -> dict[str, Any]:
    """TensorBoard under `logs/`, one folder a run."""
    path = f"{TensorBoardLogger.__module__}.{TensorBoardLogger.__qualname__}"
    return {"class_path": path, "init_args": {"save_dir": "logs", "name": "runs", "default_hp_metric": False}}


def main(args: list[str] | None = None) -> None:
    """Run the command line."""
    hush()
    given = sys.argv[1:] if args is None else args
    if given[:1] == ["sweep"]:
        raise SystemExit(sweep(given[1:]))
    try:
        AttreeCLI(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            parser_class=AttreeParser,
            parser_kwargs={"description": DESCRIPTION},
            trainer_defaults={"logger": default_logger(), "log_every_n_steps": 1, "enable_model_summary": False},
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},
            args=args,
        )
    except Exception as error:
        ours = own_error(error)
        if ours is None:
            raise
        fail(str(ours))
