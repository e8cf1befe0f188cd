"""LightningCLI's fit, validate, test and predict, with the wiring done for the user."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console

from attree.callbacks import EpochProgress, ExplainCallback, LastCheckpoint
from attree.cli.checkpoint import mismatch, read_checkpoint
from attree.cli.choices import expand_arguments
from attree.cli.claimed_folder import ClaimedFolder
from attree.cli.failure import raised_on_purpose, sentence_of
from attree.cli.parser import AttreeParser
from attree.cli.predictions import save_predictions
from attree.cli.resume import check_same_run, resume_logger
from attree.cli.save_config import SaveConfig
from attree.cli.stop import StopBetweenBatches, StopSignal, end_by, is_first_process, was_interrupted
from attree.errors import ArgumentError, expect
from attree.report.table import metrics_table

DESCRIPTIONS = {
    "fit": "Train a network, and follow how well its attention explains it.",
    "validate": "Measure a trained network on the validation data.",
    "test": "Measure a trained network on the test data.",
    "predict": "Write a trained network's class probabilities to predictions.npz.",
}


class AttreeCLI(LightningCLI):
    """LightningCLI with attree's links, callbacks and logger, a folder for each run, and checks of checkpoints.

    Args:
        arguments: What follows `attree` on the command line.
        stop: What was told to stop the command.
    """

    def __init__(self, arguments: list[str], stop: StopSignal) -> None:
        self.arguments = arguments
        self.stop = stop
        self.config_text = ""
        self.resumed = False
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            parser_class=AttreeParser,
            parser_kwargs={
                "prog": "attree",
                **{
                    name: {"description": what, "usage": f"attree {name} --config FILE [options]"}
                    for name, what in DESCRIPTIONS.items()
                },
            },
            trainer_defaults={"logger": default_logger(), "log_every_n_steps": 1, "enable_model_summary": False},
            save_config_callback=None,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The commands, and the arguments of the trainer's methods that are no options."""
        commands = {name: set(skipped) for name, skipped in LightningCLI.subcommands().items()}
        commands["predict"].add("return_predictions")
        return commands

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(ExplainCallback, "explain")
        parser.add_lightning_class_args(LastCheckpoint, "checkpoint")
        for source, target in (("num_features", "in_channels"), ("num_classes", "out_channels")):
            parser.link_arguments(f"data.{source}", f"model.init_args.net.init_args.{target}", apply_on="instantiate")

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Leave out Lightning's table of results for one by method."""
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand in ("validate", "test"):
            parser.set_defaults(verbose=False)
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(expand_arguments(self.arguments))

    def _parse_ckpt_path(self) -> None:
        """Check a checkpoint before anything is built. Nothing of it goes into the config, class names least of all."""
        command = self.config.subcommand
        config = self.config[command]
        if config.ckpt_path is None:
            what = f"the trained network to {command} (--ckpt_path logs/infection/version_0/checkpoints/last.ckpt, say)"
            expect(command == "fit", "ckpt_path", what, None)
            return
        checkpoint = read_checkpoint(config.ckpt_path)
        if command == "fit":
            path = Path(config.ckpt_path)
            check_same_run(config.as_dict(), path, checkpoint)
            self.config_text = self._parser(command).dump(config, skip_none=False)
            self.resumed = resume_logger(config.trainer.logger, path, int(checkpoint["global_step"]))

    def _set_seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        expect(isinstance(seed, bool) or 0 <= seed < 2**32, "seed_everything", "an integer in [0, 2**32) or true", seed)
        super()._set_seed()

    def before_instantiate_classes(self) -> None:
        if not self.resumed:
            self.config_text = self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)

    def instantiate_classes(self) -> None:
        """Whatever a class refuses of its arguments is said as its own words."""
        try:
            super().instantiate_classes()
        except Exception as error:
            if sentence_of(error) is None and raised_on_purpose(error):
                raise ArgumentError(f"{type(error).__name__}: {error}") from error
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self._get(self.config_init, "trainer")
        given = config.get("callbacks") or []
        callbacks: list[Callback] = list(given) if isinstance(given, list) else [given]
        if config.get("enable_progress_bar") is not False and not any(
            isinstance(one, ProgressBar) for one in callbacks
        ):
            callbacks.append(EpochProgress())
        callbacks.append(StopBetweenBatches(self.stop))
        if not config.get("fast_dev_run"):
            callbacks.append(SaveConfig(self.config_text))
        try:
            return super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except Exception as error:
            if sentence_of(error) is None:
                raise
            asked = ", ".join(f"{name} {config.get(name)!r}" for name in ("accelerator", "devices", "strategy"))
            raise ArgumentError(f"The trainer cannot be set up ({asked}): {sentence_of(error)}") from error

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Leave out `LastCheckpoint` where checkpoints are switched off: Lightning refuses both at once."""
        if config.get("enable_checkpointing") is False:
            callbacks = [one for one in callbacks if not isinstance(one, LastCheckpoint)]
        return super()._instantiate_trainer(config, callbacks)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run a command in a folder of its own; only the first of several processes claims it."""
        if not is_first_process():
            super()._run_subcommand(subcommand)
            return
        folder = ClaimedFolder(self.trainer.loggers, subcommand, self.resumed)
        refused = False
        try:
            super()._run_subcommand(subcommand)
        except Exception as error:
            does_not_fit = "Error(s) in loading state_dict" in str(error)
            refused = self.trainer.global_step == 0 and (does_not_fit or sentence_of(error) is not None)
            if does_not_fit:
                raise mismatch(error, str(self._get(self.config, "ckpt_path"))) from error
            raise
        except BaseException as error:
            if not was_interrupted(error):
                raise
            last = None if folder.path is None else folder.path / "checkpoints" / "last.ckpt"
            end_by(self.stop.received, self.arguments, last)
        finally:
            folder.release(discard=refused)

    def after_validate(self) -> None:
        """Show what was measured; after a fit `ExplainCallback` does."""
        if self.trainer.is_global_zero:
            measured = self.trainer.callback_metrics.items()
            prefix = f"{self.subcommand}/explain/"
            Console().print(metrics_table({name.replace(prefix, "explain/"): value for name, value in measured}))

    def after_test(self) -> None:
        """Show what was measured."""
        self.after_validate()

    def before_predict(self) -> None:
        """Refuse what could not be saved before it is computed."""
        expect(self.trainer.world_size == 1, "trainer.devices", "1 for predict", self.trainer.world_size)
        expect(bool(self.trainer.loggers), "trainer.logger", "one with a folder, for predict to write to", False)

    def predict(self, **kwargs: Any) -> None:
        """Predict all nodes or graphs, and save what was predicted."""
        predictions = self.trainer.predict(**kwargs)
        assert predictions is not None
        log_dir = self.trainer.log_dir
        assert log_dir is not None
        print(f"Predictions: {save_predictions(predictions, Path(log_dir) / 'predictions.npz')}")


def default_logger() -> dict[str, Any]:
    """TensorBoard under `logs/`, one folder a run."""
    path = f"{TensorBoardLogger.__module__}.{TensorBoardLogger.__qualname__}"
    return {"class_path": path, "init_args": {"save_dir": "logs", "name": "runs", "default_hp_metric": False}}


def hush() -> None:
    """Keep advertisements, what attree says itself, and libraries' internal deprecations out of a user's terminal."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return not any(words in record.getMessage() for words in ("Tip:", "Detected KeyboardInterrupt"))

    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch"):
        logging.getLogger(name).addFilter(is_wanted)
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")


def run(arguments: list[str]) -> None:
    """Run fit, validate, test or predict."""
    hush()
    stop = StopSignal()
    with stop.listening():
        try:
            AttreeCLI(arguments, stop)
        except KeyboardInterrupt:
            end_by(stop.received, arguments, None)
