"""A table of what strangers got wrong: each is refused in one line, with status 2, and leaves nothing half-written."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from helpers.cli import CONFIGS, files, fit, only_line, refusal, tiny
from helpers.processes import WarmCommand
from helpers.versions import since

WORDS = since("jsonargparse", "4.50", "words refusals otherwise; they are passed on as they are")

INFECTION = CONFIGS / "infection.yaml"


@pytest.fixture
def checkpoint(trained: Path) -> Path:
    """A checkpoint of a tiny run."""
    return trained / "infection" / "version_0" / "checkpoints" / "last.ckpt"


@WORDS
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--data=Coraa"],
            "argument `data` to be a dataset (ACM, Arxiv, BAShapes, DBLP, HIN,",
        ),
        (["--data=Infectio"], "but got 'Infectio'. Did you mean `Infection`?"),
        (
            ["--model.net=attree.models.MLP"],
            "`net` to be a network (GAT, GATv2, GCN, GIN, GPS, HGT, HeteroGAT, SAGE, SGFormer, SuperGAT or your own)",
        ),
        (["--model.net=GATT"], "but got 'GATT'. Did you mean `GAT`?"),
        (["--model=NodeClassifer"], "but got 'NodeClassifer'. Did you mean `NodeClassifier`?"),
        (["--model.net.num_layers=-1"], "argument `num_layers` to be an integer in [1, 1000], but got -1."),
        (["--model.lrr=1"], "There is no argument `--model.lrr`. Did you mean `--model.lr`?"),
        (["--lr=1"], "There is no argument `--lr`. Did you mean `--model.lr`?"),
        (["--model.init_args.lrr=1"], "There is no argument `--model.lrr`. Did you mean `--model.lr`?"),
        (["--model.heads", "4"], "There is no argument `--model.heads`. Did you mean `--model.net.heads`"),
        (["--num_layers=2"], "`--model.net.num_layers`"),
        (
            ["--model.readout=sum"],
            "`--model.readout`. It is an argument of GraphClassifier, which was not chosen here.",
        ),
        (["--model.net.head=2"], "There is no argument `--model.net.head`. Did you mean `--model.net.heads`"),
        (["--model.lr=fast"], "argument `lr` to be a number, but got 'fast'."),
        (["--data.num_node=3"], "There is no argument `--data.num_node`. Did you mean `--data.num_nodes`?"),
        (["--data.num_nodes=many"], "argument `num_nodes` to be an integer, but got 'many'."),
        (["--explain.method=[gatt]"], "There is no argument `--explain.method`. Did you mean `--explain.methods`?"),
        (["--explain.subset=valid"], "`explain.subset` to be all or train or val or test, but got 'valid'."),
        (["--explain.methods=gatt,gat"], "argument `methods` to be names among gatt, gatt_sim"),
        (["--explain.methods=[gat]"], "argument `methods` to be names among gatt, gatt_sim"),
        (["--explain.save=perhaps"], "argument `explain.save` to be true or false, but got 'perhaps'."),
        (["--checkpoint.every_n_epochs=0"], "argument `every_n_epochs` to be an integer >= 1, but got 0."),
        (["--unheard-of=1"], "There is no argument `--unheard-of`."),
        (["--trainer.max_epoch=3"], "no argument `--trainer.max_epoch`. Did you mean `--trainer.max_epochs`?"),
        (["--optimizer=SDG"], "but got 'SDG'. Did you mean `SGD`?"),
        (["--optimizer=SGD", "--optimizer.lrr=1"], "There is no argument `--optimizer.lrr`. See --optimizer.help with"),
        (["--lr_scheduler=StepLR", "--lr_scheduler.step_size=1"], "`optimizer` to be given if `lr_scheduler` is"),
        (["--trainer.precision=7"], "argument `trainer.precision` to be 64 or 32 or 16 or"),
        (["--trainer.accelerator=gpux"], "accelerator 'gpux'"),
        (["--trainer.devices=0"], "devices '0'"),
        (["--trainer.strategy=foo"], "strategy 'foo'"),
        (["--trainer.callbacks+=EarlyStoppin"], "but got 'EarlyStoppin'. Did you mean `EarlyStopping`?"),
        (["--trainer.callbacks+=EarlyStopping"], "Expected `monitor` to be given"),
        (["--trainer.logger=WandbLoger"], "but got 'WandbLoger'. Did you mean `WandbLogger`?"),
        (["--seed_everything=-1"], "argument `seed_everything` to be an integer in [0, 2**32) or true, but got -1."),
        (["--seed_everything=4294967296"], "argument `seed_everything` to be an integer in [0, 2**32)"),
        (["--seed_everything=abc"], "argument `seed_everything` to be true or false or an integer, but got 'abc'."),
        (["--config=none.yaml"], "`config` to be a YAML file or a name that `attree configs` lists, but got "),
        (["--config=/"], "that `attree configs` lists, but got '/', which is a folder."),
        (["--ckpt_path=none.ckpt"], "`ckpt_path` to be a checkpoint file, but got 'none.ckpt', which does not exist."),
        (["--ckpt_path=best"], "but got 'best', which does not exist: in a new process a file has to be named."),
        (["--ckpt_path=last"], "but got 'last', which does not exist: in a new process a file has to be named."),
        (["--model=GraphClassifier"], "`data` to be of graphs, as GraphClassifier classifies, but got 'Infection'."),
        (
            ["--model.net.hidden_channels=2000000000", "--model.net.heads=10000"],
            "There is not enough memory for this: ",
        ),
        (["--model.net.hidden_channels=3000000000"], "to be an integer in [1, 2147483647], but got 3000000000."),
        (["--model.net.num_layers=10000000"], "`num_layers` to be an integer in [1, 1000], but got 10000000."),
        (["--data.num_layers=10000000"], "`num_layers` to be an integer in [1, 1000], but got 10000000."),
        (["--data.num_nodes=10000000000"], "`num_nodes` to be an integer in [2, 2147483647], but got 10000000000."),
        (["--trainer.accumulate_grad_batches=0"], "`trainer.accumulate_grad_batches` to be greater than 0, but got 0."),
        (["--trainer.check_val_every_n_epoch=0"], "`trainer.check_val_every_n_epoch` to be greater than 0, but got 0."),
        (["--trainer.val_check_interval=0"], "`trainer.val_check_interval` to be greater than 0, but got 0."),
        (["--trainer.logger.save_dir=a\0b"], "Expected a path without a NUL byte, but a given path has one."),
        (["--config=a\0b"], "Expected a path without a NUL byte, but a given path has one."),
        (["--ckpt_path=a\0b"], "`ckpt_path` to be a checkpoint file, but got 'a\\x00b', which does not exist."),
    ],
)
def test_arguments(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--trainer.accelerator=cpu", "--trainer.logger.save_dir=logs", *arguments]
    assert sentence in refusal(["fit", f"--config={INFECTION}", *given], capsys)
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("argument", "choices"), [("--data.name=Coraa", ("Cora", "CiteSeer")), ("--explain.subset=tset", ("train", "test"))]
)
def test_a_name_that_is_none_of_several_is_answered_with_all(
    argument: str, choices: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--trainer.accelerator=cpu", f"--trainer.logger.save_dir={tmp_path}", argument]
    line = refusal(["fit", f"--config={CONFIGS / 'cora.yaml'}", *given], capsys)
    assert all(choice in line for choice in (*choices, argument.rpartition("=")[2]))


@pytest.mark.needs("tu/MUTAG")
def test_a_model_for_nodes_on_data_of_graphs(
    data_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data=MUTAG", f"--data.root={data_root}", f"--trainer.logger.save_dir={tmp_path}"]
    line = refusal(["fit", f"--config={INFECTION}", "--trainer.accelerator=cpu", *data], capsys)
    assert "argument `data` to be of nodes, as NodeClassifier classifies, but got 'MUTAG'." in line
    assert files(tmp_path) == {}


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU")
def test_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(tiny("fit", tmp_path, "--trainer.accelerator=gpu"), capsys)
    assert "The trainer cannot be created (accelerator 'gpu'" in line
    assert not any(tmp_path.iterdir())


def bomb() -> str:
    """Forty lines that stand for a trillion values."""
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    return "\n".join(lines)


def with_value(change: Callable[[dict], None]) -> str:
    content = yaml.safe_load(INFECTION.read_text())
    change(content)
    return yaml.safe_dump(content)


@WORDS
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"model: [", "bad.yaml is no valid YAML: while parsing a flow node"),
        (b"- a\n- b\n", "argument `config` to be a file of keys and values"),
        (b"", "argument `config` to be a file of keys and values"),
        (INFECTION.read_bytes() + "# Größe\n".encode("latin-1"), "bad.yaml is no UTF-8 text: byte "),
        (bomb().encode(), "bad.yaml is no valid YAML: more than 100000 values"),
        (b"a: &a [*a]", "bad.yaml is no valid YAML: the alias *a refers to a value that contains it"),
        (b"[" * 100_000, "bad.yaml is no valid YAML: more than 50 lists or mappings in each other"),
        (b"seed_everything: 0\n", "Expected `data` and `model` to be given"),
        (
            with_value(lambda c: c["model"]["init_args"]["net"].update(class_path="attree.models.GATT")).encode(),
            "SuperGAT or your own), but got 'attree.models.GATT'. Did you",
        ),
        (
            with_value(lambda c: c["model"].update(class_path="attree.model.NodeClassifier")).encode(),
            "a LightningModule (GraphClassifier, HeteroClassifier, LinkPredictor, NodeClassifier or your own), but got",
        ),
        (
            with_value(lambda c: c["data"].update(class_path="Infecton")).encode(),
            "but got 'Infecton'. Did you mean `Infection`?",
        ),
        (
            with_value(lambda c: c["model"]["init_args"].update(lrr=1)).encode(),
            "There is no argument `lrr`. Did you mean `model.lr`?",
        ),
        (with_value(lambda c: c.update(modle=1)).encode(), "There is no argument `modle`. Did you mean `model`?"),
        (with_value(lambda c: c["trainer"].update(max_epoch=1)).encode(), "Did you mean `trainer.max_epochs`?"),
        (with_value(lambda c: c["explain"].update(method=["gatt"])).encode(), "Did you mean `explain.methods`?"),
        (with_value(lambda c: c["explain"].update(figures="two")).encode(), "to be an integer, but got 'two'."),
    ],
)
def test_config_files(content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    line = refusal(["fit", f"--config={path}", f"--trainer.logger.save_dir={tmp_path}"], capsys)
    assert sentence in line
    assert "Parser" not in line
    assert list(tmp_path.iterdir()) == [path]


def cut(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path, content: bytes) -> None:
    path.write_bytes(b"")


def noise(path: Path, content: bytes) -> None:
    path.write_bytes(bytes(range(256)) * 20)


def weights_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    torch.save(torch.load(path, weights_only=True)["state_dict"], path)


def tensor(path: Path, content: bytes) -> None:
    torch.save(torch.ones(3), path)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut, "cut off or damaged"),
        (empty, "which is empty, cut off or damaged."),
        (noise, "a checkpoint of tensors and plain values alone"),
        (weights_alone, "to be a checkpoint of Lightning, but got"),
        (tensor, "to be a checkpoint of Lightning, but got"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "test"])
def test_checkpoints(
    command: str,
    damage: Callable[[Path, bytes], None],
    sentence: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bad.ckpt"
    damage(path, checkpoint.read_bytes())
    line = refusal(tiny(command, tmp_path / "logs", f"--ckpt_path={path}"), capsys)
    assert "argument `ckpt_path`" in line
    assert sentence in line
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("--model.net=GATv2", "this network has net.convs.0.att, it has not."),
        ("--model.net.hidden_channels=4", "size mismatch for net.convs.0."),
    ],
)
def test_a_checkpoint_of_another_network(
    change: str, sentence: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tiny("test", tmp_path, change, f"--ckpt_path={checkpoint}"), capsys)
    assert f"{checkpoint} is of another one: {sentence}" in line
    assert f"Its own config is {checkpoint.parents[1] / 'config.yaml'}." in line
    assert files(tmp_path) == {}


def test_a_log_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file")
    line = refusal(tiny("fit", tmp_path / "logs"), capsys)
    assert f"The log folder {tmp_path / 'logs'}" in line
    assert "cannot be written to: " in line
    assert (tmp_path / "logs").read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_log_folder_that_is_read_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    try:
        assert "cannot be written to: Permission denied." in refusal(tiny("fit", tmp_path / "logs"), capsys)
    finally:
        tmp_path.chmod(0o700)


def fill_disk() -> None:
    """No file may grow beyond 6 KiB: enough for the config, too little for the curves and for a checkpoint."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6144, 6144))


def test_a_full_disk_ends_the_run_and_leaves_whole_files(tmp_path: Path) -> None:
    process = WarmCommand(tiny("fit", tmp_path, "--trainer.max_epochs=40"), before=fill_disk)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "File too large" in only_line(errors)
    (run,) = (tmp_path / "infection").glob("version_*")
    assert yaml.safe_load((run / "config.yaml").read_text())["seed_everything"] == 0
    assert not (run / "checkpoints" / "last.ckpt").exists()
    assert not (run / "metrics.json").exists()


@pytest.mark.parametrize("where", ["attree.io.files.FolderLock._sign", "torch.utils.tensorboard.SummaryWriter.flush"])
def test_a_full_disk_is_told_with_the_folder_of_the_run(
    where: str, logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of a write name no file: that of the lock of a resumed run, that of TensorBoard's curves at the end."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(where, full)
    run = logs / "infection" / "version_0"
    arguments = [f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}", "--trainer.max_epochs=3"]
    line = refusal(tiny("fit", logs, *arguments), capsys)
    assert str(run.parent) in line
    assert line.endswith(": No space left on device.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "{}"],
        ["serve", "{}"],
        ["sweep", "{}"],
        ["sweep", "networks", "--folder", "{}"],
        ["fit", "--config={}"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("path", ["loop/run", "a\0b", "x" * 5000], ids=["loop", "NUL", "long"])
def test_paths_that_are_none(
    arguments: list[str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    refusal([argument.format(path) for argument in arguments], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_the_paper_needs_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["paper", "faithfulness", "--epochs", "0", "--out", str(tmp_path / "out")], capsys)
    assert "epochs" in line
    assert not any(tmp_path.iterdir())


def test_true_bugs_show_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slip(self: object) -> None:
        raise KeyError("nobody gave this")

    monkeypatch.setattr("attree.cli.lightning_cli.AttreeCLI.before_instantiate_classes", slip)
    with pytest.raises(KeyError, match="nobody gave this"):
        fit(tmp_path)
