"""The commands fit, validate, test and predict: LightningCLI with attree's callbacks, logger and checks."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger

from attree.callbacks import EpochProgress, ExplainCallback, LastCheckpoint
from attree.cli.failure import raised_on_purpose, user_message
from attree.cli.parser_internals import HookedCLI
from attree.cli.stop import StopBetweenBatches, StopSignal, exit_with_signal, is_first_process, was_interrupted
from attree.cli.subcommand_parsers import with_resumed
from attree.cli.training_parser import AttreeParser
from attree.errors import ArgumentError, UnsupportedModelError, expect
from attree.io.files import write_npz
from attree.io.terminal import next_command, plain_console
from attree.report.logged_metrics import metrics_table
from attree.runs.classes import LINKS, foreign_classes, search_working_folder
from attree.runs.load_run import check_same_run, mismatch, nothing_left, read_checkpoint, resume_logger
from attree.runs.run_folder import RunLock, SaveConfig, run_folder

DESCRIPTIONS = {
    "fit": "Train a network, and follow how well its attention explains it.",
    "validate": "Measure a trained network on the validation data.",
    "test": "Measure a trained network on the test data.",
    "predict": "Write a trained network's class probabilities to predictions.npz.",
}

USAGES = {"fit": "attree fit --config FILE [options]\n       attree fit --resume RUN [options]"}
"""Usage of commands that have another than the rest."""

POSITIVE = ("accumulate_grad_batches", "check_val_every_n_epoch", "val_check_interval")
"""Arguments of the trainer that Lightning divides by."""


class AttreeCLI(HookedCLI):
    """LightningCLI with attree's callbacks and logger, one run directory per run, and checked checkpoints.

    Args:
        arguments: The arguments after `attree`.
        stop: Receives the signals that stop the command.
    """

    def __init__(self, arguments: list[str], stop: StopSignal) -> None:
        self.arguments = arguments
        self.stop = stop
        self.config_text = ""
        self.resumed = False
        self.checkpoint: dict[str, Any] | None = None
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=AttreeParser,
            parser_kwargs={
                "prog": "attree",
                **{
                    name: {
                        "description": DESCRIPTIONS[name],
                        "usage": USAGES.get(name, f"attree {name} --config FILE [options]"),
                    }
                    for name in self.subcommands()
                },
            },
            trainer_defaults={"logger": default_logger(), "log_every_n_steps": 1, "enable_model_summary": False},
            save_config_callback=None,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning asks the object too
        """Return the commands, each with the arguments of the trainer's method that get no option.

        If the first argument names a command, only that command is returned, because building a parser is slow.
        """
        commands = {name: set(skipped) for name, skipped in LightningCLI.subcommands().items()}
        commands["predict"].add("return_predictions")
        commands["validate"].add("verbose")
        commands["test"].add("verbose")
        typed = self.arguments[0] if self.arguments else None
        return {name: skipped for name, skipped in commands.items() if typed not in commands or name == typed}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(ExplainCallback, "explain")
        parser.add_class_arguments(LastCheckpoint, "checkpoint")
        for part, links in LINKS.items():
            for target, source in links.items():
                place = f"model.init_args.{part}.init_args.{target}"
                parser.link_arguments(f"data.{source}", place, apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        assert isinstance(parser, AttreeParser)
        self.config = parser.parse_typed(self.arguments)
        seed = self.own_config.seed_everything
        expect(isinstance(seed, bool) or 0 <= seed < 2**32, "seed_everything", "an integer in [0, 2**32) or true", seed)
        for name in POSITIVE:
            value = self.own_config.trainer.get(name)
            expect(not isinstance(value, int | float) or value > 0, f"trainer.{name}", "greater than 0", value)
        only_scheduler = self.own_config.lr_scheduler is not None and self.own_config.optimizer is None
        expect(not only_scheduler, "optimizer", "given if `lr_scheduler` is (--optimizer Adam, say)", None)

    @property
    def own_config(self) -> Namespace:
        """The config of the command."""
        config: Namespace = self.config[self.config.subcommand]
        return config

    def read_checkpoint_argument(self) -> None:
        """Read and check the checkpoint before anything is built. The config is not changed by it."""
        command, config = self.config.subcommand, self.own_config
        if config.ckpt_path is None:
            example = "(--ckpt_path logs/infection/version_0/checkpoints/last.ckpt, say)"
            expect(command == "fit", "ckpt_path", f"the trained network to {command} {example}", None)
            return
        self.checkpoint = read_checkpoint(config.ckpt_path)
        if command == "fit":
            path = Path(config.ckpt_path)
            check_same_run(config.as_dict(), path, self.checkpoint)
            self.config_text = self._dumped_config()
            self.resumed = resume_logger(config.trainer.logger, path, int(self.checkpoint["global_step"]))

    def before_instantiate_classes(self) -> None:
        if not self.resumed:
            self.config_text = self._dumped_config()

    def _dumped_config(self) -> str:
        whole = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        return str(yaml.safe_dump(whole[self.config.subcommand], sort_keys=False))

    def instantiate_classes(self) -> None:
        """Build all objects. If a class refuses an argument, report the message of the class."""
        try:
            super().instantiate_classes()
        except Exception as error:
            if user_message(error) is None and raised_on_purpose(error):
                raise ArgumentError(f"{type(error).__name__}: {error}") from error
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Create the trainer with attree's callbacks: progress bar, stop on signals, saved config and checkpoint."""
        objects = self.config_init[self.config.subcommand]
        config = objects.trainer
        of_user = config.get("callbacks") or []
        callbacks: list[Callback] = list(of_user) if isinstance(of_user, list) else [of_user]
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if config.get("enable_progress_bar") is not False and not has_bar:
            callbacks.append(EpochProgress())
        callbacks.append(StopBetweenBatches(self.stop))
        if not config.get("fast_dev_run"):
            callbacks.append(SaveConfig(self.config_text))
        if config.get("enable_checkpointing") is not False:  # Lightning refuses both at once
            callbacks.append(objects.checkpoint)
        try:
            return super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except Exception as error:
            if user_message(error) is None:
                raise
            options = ", ".join(f"{name} {config.get(name)!r}" for name in ("accelerator", "devices", "strategy"))
            raise ArgumentError(f"The trainer cannot be created ({options}): {user_message(error)}") from error

    def fit(self, **kwargs: Any) -> None:
        """Train, or print that the run has already trained for all its epochs."""
        if self.checkpoint is not None and (sentence := nothing_left(self.checkpoint, self.trainer)):
            if is_first_process():
                print(sentence)
            return
        with self._locked_folder():
            self.trainer.fit(**kwargs)
        folder = run_folder(self.trainer)  # all processes must call this
        if folder is not None and self.trainer.is_global_zero:
            self._print_next_command(folder)

    def _print_next_command(self, folder: Path) -> None:
        """Print the command that explains this run, if it has explanations and a checkpoint."""
        trainer: Any = self.trainer
        explainers = [callback for callback in trainer.callbacks if isinstance(callback, ExplainCallback)]
        needed = (folder / "config.yaml", folder / "checkpoints" / "last.ckpt")
        if explainers and explainers[0].latest is not None and all(path.is_file() for path in needed):
            foreign = foreign_classes(yaml.safe_load(self.config_text))
            allow = ["--allow", ",".join(foreign)] if foreign else []
            line = next_command("attree", "explain", folder, "--targets", "random:20", *allow)
            plain_console(soft_wrap=True).print(line)

    def validate(self, **kwargs: Any) -> None:
        """Measure on the validation data, and print attree's table instead of Lightning's."""
        self._measure(self.trainer.validate, **kwargs)

    def test(self, **kwargs: Any) -> None:
        """Measure on the test data, and print attree's table instead of Lightning's."""
        self._measure(self.trainer.test, **kwargs)

    def _measure(self, method: Callable[..., Any], **kwargs: Any) -> None:
        with self._locked_folder():
            method(**kwargs, verbose=False)
        if self.trainer.is_global_zero:
            measured = self.trainer.callback_metrics.items()
            prefix = f"{self.subcommand}/explain/"
            plain_console().print(metrics_table({name.replace(prefix, "explain/"): value for name, value in measured}))

    def predict(self, **kwargs: Any) -> None:
        """Predict all nodes or graphs, and save the result. Raise before computing if there is no folder to save to."""
        expect(self.trainer.world_size == 1, "trainer.devices", "1 for predict", self.trainer.world_size)
        expect(bool(self.trainer.loggers), "trainer.logger", "one with a folder, for predict to write to", False)
        with self._locked_folder():
            predictions = self.trainer.predict(**kwargs)
            folder = run_folder(self.trainer)
            assert predictions is not None
            assert folder is not None
            print(f"Predictions: {save_predictions(predictions, folder / 'predictions.npz')}")

    @contextmanager
    def _locked_folder(self) -> Iterator[Path | None]:
        """Lock the run directory while a command runs. Yield its path to the first process, and None to the others."""
        if not is_first_process():
            yield None
            return
        folder = RunLock(self.trainer.loggers, str(self.subcommand), self.resumed)
        refused = False
        try:
            yield folder.path
        except Exception as error:
            does_not_fit = "Error(s) in loading state_dict" in str(error)
            refused = self.trainer.global_step == 0 and (does_not_fit or user_message(error) is not None)
            if isinstance(error, OSError) and error.filename is None and folder.path is not None:
                error.filename = str(folder.path)  # as of TensorBoard's writer on a full disk
            if does_not_fit:
                raise mismatch(error, str(self.own_config.ckpt_path)) from error
            raise
        except BaseException as error:
            if not was_interrupted(error):
                raise
            last = None if folder.path is None else folder.path / "checkpoints" / "last.ckpt"
            exit_with_signal(self.stop.received, self.arguments, last)
        finally:
            folder.release(discard=refused)


def default_logger() -> dict[str, Any]:
    """Return the default logger: TensorBoard in `logs/`, with one run directory per run."""
    path = f"{TensorBoardLogger.__module__}.{TensorBoardLogger.__qualname__}"
    return {"class_path": path, "init_args": {"save_dir": "logs", "name": "runs", "default_hp_metric": False}}


def silence_warnings() -> None:
    """Hide tips, messages that attree prints itself or that tell nothing, and deprecations inside libraries."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return not re.search(r"Tip:|Detected KeyboardInterrupt|Seed set to|^\wPU available: False", record.getMessage())

    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(is_wanted)
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")


def run(arguments: list[str]) -> int:
    """Run fit, validate, test or predict. Users' classes may be in the working directory."""
    arguments = with_resumed(arguments)
    search_working_folder()
    silence_warnings()
    stop = StopSignal()
    with stop.listening():
        try:
            AttreeCLI(arguments, stop)
        except KeyboardInterrupt:
            exit_with_signal(stop.received, arguments, None)
    return 0


def save_predictions(batches: Sequence[Any], path: Path) -> Path:
    """Write the class probabilities of all nodes or graphs, in the order of the data, to an `.npz` archive.

    The archive holds `index` [n], the node or graph; `predicted` [n], the most probable class; and `probabilities`
    [n, classes].

    Args:
        batches: Class probabilities of each batch, one row per node or graph, as `predict_step` returned them.
        path: The file.
    """
    for batch in batches:
        shape = list(batch.shape) if isinstance(batch, torch.Tensor) else []
        if len(shape) != 2:
            raise UnsupportedModelError(
                "Expected `predict_step` of the model to return class probabilities of shape [n, classes], but got "
                f"{type(batch).__name__}{shape or ''}."
            )
    probabilities = torch.cat(list(batches)).float().cpu()
    index, predicted = torch.arange(len(probabilities)), probabilities.argmax(dim=-1)
    return write_npz(path, index=index.numpy(), predicted=predicted.numpy(), probabilities=probabilities.numpy())
