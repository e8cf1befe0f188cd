"""A stranger's run is opened without running code that it brings; what the caller allows by name is made."""

from __future__ import annotations

import inspect
import pkgutil
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule

import attree
from attree.cli import main
from attree.errors import ArgumentError, MissingDataError
from attree.runs.classes import foreign_classes
from helpers.cli import fit, refusal

Change = Callable[[dict[str, Any]], Any]

MODULE = """
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path

import torch
from attree.data import Infection
from attree.models import GAT, NodeClassifier

Path("{trace}").touch()

class Size(Enum):
    small = 1

def act(x):
    return x

class Data(Infection):
    pass

class Module(NodeClassifier):
    def __init__(
        self,
        net: torch.nn.Module,
        optimizer: Callable[[Iterable], torch.optim.Optimizer] = torch.optim.Adam,
        act: Callable[[torch.Tensor], torch.Tensor] | None = None,
        size: Size | None = None,
        pair: tuple[int, int] = (0, 0),
        file: Path | None = None,
        cls: type | None = None,
        small: float = 0.0,
    ):
        super().__init__(net)
        self.options = optimizer, act, size, pair, file, cls, small
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears if the module `stranger` is imported."""
    trace = tmp_path / "trace"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "stranger.py").write_text(MODULE.format(trace=trace))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return trace


def change(run: Path, change: Change) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    change(config)
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def sequential(trace: Path) -> dict[str, Any]:
    """PyG evaluates the annotations of these arguments."""
    code = f"x: __import__('pathlib').Path('{trace}').touch()"
    arguments = {"input_args": code, "modules": [], "out_channels": 2}
    return {"class_path": "torch_geometric.nn.Sequential", "init_args": arguments}


STRANGER = {"class_path": "stranger.Module"}
REFUSED: dict[str, Callable[[Path], Change]] = {
    "data": lambda trace: lambda config: config["data"].update(class_path="stranger.Data"),
    "model": lambda trace: lambda config: config["model"].update(class_path="stranger.Module"),
    "net": lambda trace: lambda config: config["model"]["init_args"]["net"].update(STRANGER),
    "sequential": lambda trace: lambda config: config["model"]["init_args"].update(net=sequential(trace)),
    "a name": lambda trace: lambda config: config["model"]["init_args"].update(net="stranger.Module"),
    "a text": lambda trace: lambda config: config["model"]["init_args"].update(net=yaml.dump(sequential(trace))),
    "a bare class": lambda trace: lambda config: config.update(model="stranger.Module"),
    "dict_kwargs": lambda trace: lambda config: config["model"].update(dict_kwargs={"lr": STRANGER}),
    "dict_kwargs of data": lambda trace: lambda config: config["data"].update(dict_kwargs={"any": [STRANGER]}),
    "a number": lambda trace: lambda config: config["data"]["init_args"].update(num_nodes=STRANGER),
    "a list": lambda trace: lambda config: config["data"]["init_args"].update(num_neighbors=[[STRANGER]]),
    "a mapping": lambda trace: lambda config: config["model"]["init_args"].update(lr={"deep": {"deeper": STRANGER}}),
    "a function": lambda trace: lambda config: config["model"].update(class_path="os.system", init_args={}),
    "a foreign name": lambda trace: (
        lambda config: config["model"].update(class_path="attree.models.conv_nets.GATConv", init_args={})
    ),
    "attree's command": lambda trace: (
        lambda config: config["model"].update(class_path="attree.cli.lightning_cli.AttreeCLI", init_args={})
    ),
    "no text": lambda trace: lambda config: config["model"].update(class_path={"class_path": "stranger.A"}),
    "no such class": lambda trace: (
        lambda config: config["model"]["init_args"]["net"].update(class_path="attree.models.NoSuchClass")
    ),
}


@pytest.mark.parametrize("door", REFUSED)
def test_a_stranger_s_config_is_refused_and_runs_nothing(
    door: str, run: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run, REFUSED[door](trace))
    with pytest.raises(ArgumentError, match=r"config\.yaml|`net`"):
        attree.load_run(run)
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(run), "--targets=1", "--figures=0"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not trace.exists()
    assert "stranger" not in sys.modules


def test_tags_and_pickles_run_nothing(run: Path, trace: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config + f"\nx: !!python/object/apply:os.system ['touch {trace}']\n")
    with pytest.raises(ArgumentError, match="valid YAML"):
        attree.load_run(run)
    (run / "config.yaml").write_text(config)

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (trace,)

    file = run / "checkpoints" / "last.ckpt"
    torch.save({**torch.load(file), "more": Attack()}, file)
    with pytest.raises(ArgumentError, match="tensors and plain values alone"):
        attree.load_run(run)
    assert not trace.exists()


def test_what_opening_a_run_does_not_need_is_not_made(run: Path, trace: Path) -> None:
    def attack(config: dict[str, Any]) -> None:
        config["trainer"]["callbacks"] = [STRANGER, sequential(trace)]
        config["trainer"]["logger"] = STRANGER
        config["optimizer"] = config["lr_scheduler"] = sequential(trace)

    expected = attree.load_run(run).net.state_dict()
    change(run, attack)
    loaded = attree.load_run(run).net.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())
    assert not trace.exists()


def test_what_is_allowed_by_name_is_made_as_declared(run: Path, trace: Path) -> None:
    def mine(config: dict[str, Any]) -> None:
        config["data"]["class_path"] = "stranger.Data"
        net = config["model"]["init_args"]["net"]
        sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.25}}
        arguments = {"net": net, "optimizer": sgd, "act": "stranger.act", "size": "small", "pair": [3, 4]}
        arguments |= {"file": "a/b", "cls": "stranger.Size", "small": "1e-3"}
        config["model"] = {"class_path": "stranger.Module", "init_args": arguments}

    expected = attree.load_run(run)
    change(run, mine)
    with pytest.raises(ArgumentError, match=r'names stranger\.Data, stranger\.Module.*allow=\["stranger\.Data", "str'):
        attree.load_run(run)
    for one in ("act", "cls"):  # functions and classes that are arguments
        names = ["stranger.Data", "stranger.Module", "stranger.Size" if one == "act" else "stranger.act"]
        with pytest.raises(ArgumentError, match=rf"`model\.{one}`.*allowed by name"):
            attree.load_run(run, allow=names)
    names = [f"stranger.{name}" for name in ("Data", "Module", "act", "Size")]
    loaded = attree.load_run(run, allow=names)
    optimizer, act, size, pair, file, cls, small = loaded.module.options
    assert optimizer([torch.zeros(1)]).defaults["lr"] == 0.25
    assert (act(5), size.name, pair, file, cls, small) == (5, "small", (3, 4), Path("a/b"), type(size), 1e-3)
    graph = expected.data.graph
    assert torch.equal(loaded.net(graph.x, graph.edge_index), expected.net(graph.x, graph.edge_index))
    arguments = [f"--allow={','.join(names[:2])}", "--allow", names[2], "--allow", names[3]]
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(run), "--targets=1", "--figures=0", *arguments])
    assert stop.value.code == 0


def test_arguments_that_are_none_are_refused(run: Path) -> None:
    for given in (None, 3):
        with pytest.raises(ArgumentError, match="`path`"):
            attree.load_run(given)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`allow`"):
        attree.load_run(run, allow="mypkg.MyModule")
    change(run, lambda config: config["model"]["init_args"]["net"]["init_args"].update(no_such=1))
    with pytest.raises(ArgumentError, match=r"attree\.models\.GAT of .*config\.yaml cannot be made.*no_such"):
        attree.load_run(run)


def test_the_working_folder_is_searched_for_what_is_allowed_alone(
    run: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(trace.parent / "modules")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != folder])
    monkeypatch.chdir(folder)
    change(run, lambda config: config["data"].update(class_path="stranger.Data"))
    call = ["explain", str(run), "--targets=1", "--figures=0"]
    assert "stranger.Data" in refusal(call, capsys)
    assert folder not in sys.path
    with pytest.raises(SystemExit) as stop:
        main([*call, "--allow=stranger.Data"])
    assert stop.value.code == 0
    assert sys.path[-1] == folder


def reexported() -> list[str]:
    """Classes of other packages that attree's modules import, by the path that a config could give."""
    import attree.models as models  # each module that a config may name
    import attree.penalties as penalties

    found = []
    for package in (attree.data, models, penalties):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, value in vars(import_module(module.name)).items():
                is_module = inspect.isclass(value) and issubclass(value, torch.nn.Module | LightningDataModule)
                if is_module and not value.__module__.startswith("attree."):
                    found.append(f"{module.name}.{name}")
    return found


def test_classes_of_others_that_attree_imports_are_not_its_own(run: Path) -> None:
    paths = reexported()
    assert paths, "attree imports no such class: the guard has no case left"
    for path in paths:
        assert foreign_classes({"data": {}, "model": {"class_path": path}}) == [path]
    change(run, lambda config: config["model"].update(class_path=paths[0], init_args={}))
    with pytest.raises(ArgumentError, match="allowed by name"):
        attree.load_run(run)


def test_a_forged_number_of_layers_is_refused_at_once(run: Path) -> None:
    change(run, lambda config: config["model"]["init_args"]["net"]["init_args"].update(num_layers=10_000_000))
    with pytest.raises(ArgumentError, match="`num_layers` to be an integer in"):
        attree.load_run(run)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "loop"])
def test_paths_that_are_none_are_missing_runs(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(MissingDataError, match="Expected"):
        attree.load_run(path)
