from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from attree.errors import ArgumentError, MissingDataError
from attree.io.config_files import read_shipped, sweep_names
from attree.sweep import Plan, fit_arguments, load_plan

REPOSITORY = Path(__file__).parents[2]


def write_plan(folder: Path, content: dict[str, Any], config: str = "model: {}\n") -> Path:
    (folder / "base.yaml").write_text(config)
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "study", "config": "base.yaml", **content}, sort_keys=False))
    return path


def ids(plan: Plan) -> list[str]:
    return [run.id for run in plan.runs]


def test_grid_is_the_product_of_its_lists_and_the_seeds(tmp_path: Path) -> None:
    plan = load_plan(
        write_plan(tmp_path, {"seeds": [3, 4], "runs": [{"grid": {"model.lr": [0.1, 0.2], "net": ["A"]}}]})
    )
    assert ids(plan) == [
        "lr=0.1-net=A-seed=3",
        "lr=0.1-net=A-seed=4",
        "lr=0.2-net=A-seed=3",
        "lr=0.2-net=A-seed=4",
    ]
    assert plan.runs[1].overrides == {"model.lr": 0.1, "net": "A", "seed_everything": 4}
    assert plan.blocks[0].name == "lr, net"


def test_list_runs_exactly_what_it_names(tmp_path: Path) -> None:
    runs = [{"list": [{"a": 1}, {"a": 2, "b": "x y/z"}], "name": "tuned"}]
    plan = load_plan(write_plan(tmp_path, {"runs": runs}))
    assert ids(plan) == ["tuned-a=1-seed=0", "tuned-a=2-b=x_y_z-seed=0"]
    assert plan.blocks[0].name == "tuned"


def test_short_names_set_several_keys_and_blocks_override_what_all_set(tmp_path: Path) -> None:
    content = {
        "set": {"epochs": 5, "d": 0.9},
        "keys": {"d": ["x.d", "y.d"], "seed": ["seed_everything", "data.seed"]},
        "runs": [{"grid": {"d": [0.5]}, "set": {"epochs": 7}}],
    }
    (run,) = load_plan(write_plan(tmp_path, content)).runs
    assert run.id == "d=0.5-seed=0"
    assert run.overrides == {"epochs": 7, "x.d": 0.5, "y.d": 0.5, "seed_everything": 0, "data.seed": 0}


def test_keys_with_the_same_last_word_are_told_apart(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, {"runs": [{"grid": {"x.d": [1], "y.d": [1, 2]}}]}))
    assert ids(plan) == ["x.d=1-y.d=1-seed=0", "x.d=1-y.d=2-seed=0"]


def test_points_with_the_same_config_share_a_run(tmp_path: Path) -> None:
    runs = [{"grid": {"a": [0, 1]}, "set": {"b": 0}}, {"grid": {"b": [0, 1]}, "set": {"a": 0}}]
    plan = load_plan(write_plan(tmp_path, {"runs": runs}))
    assert ids(plan) == ["a=0-seed=0", "a=1-seed=0", "b=1-seed=0"]
    assert plan.blocks[1].points[0].run is plan.blocks[0].points[0].run


def test_fingerprint_changes_with_config_and_overrides_only(tmp_path: Path) -> None:
    content = {"runs": [{"grid": {"a": [1]}}]}
    first = load_plan(write_plan(tmp_path, content)).runs[0]
    again = load_plan(write_plan(tmp_path, {**content, "metrics": ["val/acc"], "name": "other"})).runs[0]
    other_config = load_plan(write_plan(tmp_path, content, config="model: {x: 1}\n")).runs[0]
    other_value = load_plan(write_plan(tmp_path, {**content, "set": {"epochs": 2}})).runs[0]
    assert first.fingerprint == again.fingerprint
    assert len({first.fingerprint, other_config.fingerprint, other_value.fingerprint}) == 3
    assert first.id == other_value.id


def test_exponents_without_a_point_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("")
    path = tmp_path / "sweep.yaml"
    path.write_text("name: s\nconfig: base.yaml\nruns: [{grid: {lr: [1e-4, 5E+1, e5, 0x1]}}]\n")
    assert [run.overrides["lr"] for run in load_plan(path).runs] == [1e-4, 50.0, "e5", 1]


def test_values_are_written_as_the_command_line_reads_them(tmp_path: Path) -> None:
    settings = {"text": "it's $HOME; x", "list": ["gatt", "random"], "flag": True, "none": None, "lr": 1e-5}
    plan = load_plan(write_plan(tmp_path, {"runs": [{"list": [settings], "name": "odd"}]}))
    fit = fit_arguments(plan, plan.runs[0], Path("out folder"))
    parsed = dict(argument.removeprefix("--").split("=", 1) for argument in fit[1:])
    assert parsed["text"] == settings["text"]
    for key in ("list", "flag", "none"):
        assert yaml.safe_load(parsed[key]) == settings[key]
    assert float(parsed["lr"]) == 1e-5
    assert parsed["trainer.logger.init_args.save_dir"] == "out folder"
    assert parsed["trainer.logger.init_args.version"] == plan.runs[0].id


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"runs": []}, "`runs`"),
        ({"runs": [{"grid": {"a": 1}}]}, "`grid.a` to be a list"),
        ({"runs": [{"grid": {}}]}, "at least one key"),
        ({"runs": [{"grid": {"a": [1]}, "list": [{"a": 1}]}]}, "either `grid` or `list`"),
        ({"runs": [{"a": [1]}]}, r"only the keys grid, list, name, search, set, but got \['a'\]"),
        ({"runs": [{"grid": {"a": [1]}}], "seeds": [0, 0]}, "`seeds`"),
        ({"runs": [{"grid": {"a": [1]}}], "seeds": 3}, "`seeds`"),
        ({"runs": [{"grid": {"seed": [1]}}]}, "seeds to be given by `seeds`"),
        ({"runs": [{"list": [{"run": 1}]}], "keys": {"run": "data.run"}}, r"columns sweep, .* but got \['run'\]"),
        ({"runs": [{"grid": {"seed_everything": [1]}}]}, r"`seeds` sets, but got \['seed_everything'\]"),
        (
            {"runs": [{"grid": {"data.seed": [1]}}], "keys": {"seed": ["seed_everything", "data.seed"]}},
            r"`seeds` sets, but got \['data.seed'\]",
        ),
        ({"runs": [{"grid": {"a": [1]}}], "keys": {"a": 3}}, "`keys.a`"),
        ({"runs": [{"grid": {"a": [1]}}], "name": "../x"}, "`name`"),
        ({"runs": [{"grid": {"a": [1]}}], "metrics": "val/acc"}, "`metrics`"),
        ({"runs": [{"grid": {"a": [1]}, "set": {"b": i}} for i in range(2)]}, "`name`"),
        ({"runs": [{"grid": {"a": ["x y", "x/y"]}}]}, "run ids to differ"),
        ({"run": []}, r"only the keys .* Did you mean `runs`\?"),
        ({}, "the key `runs`"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, content: dict[str, Any], complaint: str) -> None:
    path = write_plan(tmp_path, content)
    with pytest.raises(ArgumentError, match=complaint) as raised:
        load_plan(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"nowhere.yaml"):
        load_plan(tmp_path / "nowhere.yaml")
    path = write_plan(tmp_path, {"config": "absent.yaml", "runs": [{"grid": {"a": [1]}}]})
    with pytest.raises(MissingDataError, match=r"absent.yaml"):
        load_plan(path)
    path.write_text("name: [")
    with pytest.raises(ArgumentError, match="no valid YAML"):
        load_plan(path)


def test_regularisation_study_is_the_papers() -> None:
    plan = load_plan(REPOSITORY / "configs/sweeps/regularization.yaml")
    net = "model.init_args.net.init_args."
    decay, dropout = plan.blocks
    assert [point.settings["weight_decay"] for point in decay.points[::3]] == [0, 0.0005, 0.001, 0.005, 0.01]
    assert [point.settings["dropout"] for point in dropout.points[::3]] == [0, 0.2, 0.4, 0.6, 0.8]
    for point in decay.points:
        assert point.run.overrides[f"{net}dropout"] == point.run.overrides[f"{net}attention_dropout"] == 0
    for point in dropout.points:
        value = point.settings["dropout"]
        assert point.run.overrides[f"{net}dropout"] == point.run.overrides[f"{net}attention_dropout"] == value
        assert point.run.overrides["model.init_args.weight_decay"] == 0
    assert {point.seed for point in decay.points} == {0, 1, 2}
    assert len(plan.runs) == 27  # 30 points, of which 3 are in both blocks


def test_files_that_are_no_text_or_never_end(tmp_path: Path) -> None:
    path = write_plan(tmp_path, {"runs": [{"grid": {"a": [1]}}]})
    content = path.read_bytes()
    path.write_bytes(content + b"# \xe9\n")
    with pytest.raises(ArgumentError, match=rf"{path} is no UTF-8 text"):
        load_plan(path)
    path.write_bytes(content)
    (tmp_path / "base.yaml").write_bytes(b"# \xe9\n")
    with pytest.raises(ArgumentError, match=r"base.yaml is no UTF-8 text"):
        load_plan(path)
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    path.write_text("\n".join(lines))
    with pytest.raises(ArgumentError, match=r"sweep.yaml is no valid YAML: more than 100000 values"):
        load_plan(path)


@pytest.mark.parametrize("name", sweep_names())
def test_a_copy_of_a_shipped_sweep_is_the_same_sweep(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "mine.yaml"  # attree configs NAME > mine.yaml
    copy.write_text(read_shipped(name))
    assert [(task.key, task.fingerprint) for task in load_plan(copy).tasks] == [
        (task.key, task.fingerprint) for task in load_plan(name).tasks
    ]


@pytest.mark.parametrize("within", [-0.1, "0.1", float("nan"), True])
def test_a_distance_that_is_none_is_refused(within: object, tmp_path: Path) -> None:
    path = write_plan(tmp_path, {"runs": [{"grid": {"model.lr": [0.1]}}], "accuracy_within": within})
    with pytest.raises(ArgumentError, match="`accuracy_within` to be a number >= 0"):
        load_plan(path)
