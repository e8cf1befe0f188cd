"""`attree explain` of runs on heterogeneous graphs and links: the numbers of `attree.evaluate`, in words of types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from torch_geometric.data import Data

import attree
from attree.data import Counts, HeteroInfection, LinkDataModule
from attree.evaluation import EvaluationConfig, Evaluator, TargetLabels
from attree.models import GAT, HGT, HeteroClassifier, LinkPredictor
from attree.report.case_study import draw_case_studies
from attree.subject import Subject
from helpers.cli import command

SIZES = {"num_people": 300, "num_mosquitoes": 200, "num_flies": 250, "seed": 1, "num_val": 10}


class Chords(LinkDataModule):
    """A ring of 40 nodes, each joined to the next two both ways."""

    name = "Chords"
    counts = Counts(40, 160, 3, 1)

    def load(self) -> Data:
        ids = torch.arange(40)
        edges = torch.cat([torch.stack([ids, (ids + step) % 40]) for step in (1, 2)], dim=1)
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.zeros(40, dtype=torch.long))


def finished(folder: Path, module: torch.nn.Module, config: dict[str, Any]) -> None:
    """What `attree fit` leaves of a run, with weights that nobody trained."""
    state = {"state_dict": module.state_dict(), "epoch": 1, "global_step": 1, "pytorch-lightning_version": "2.5.5"}
    (folder / "checkpoints").mkdir(parents=True)
    torch.save(state, folder / "checkpoints" / "last.ckpt")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def people(tmp_path: Path) -> tuple[HeteroInfection, HeteroClassifier]:
    torch.manual_seed(2)
    data = HeteroInfection(**SIZES)
    data.prepare_data()
    data.setup()
    net = {"class_path": "attree.models.HGT", "init_args": {"hidden_channels": 8, "edge_types": None}}
    module = HeteroClassifier(HGT(data.num_features, data.num_classes, hidden_channels=8)).eval()
    config = {
        "data": {"class_path": "attree.data.HeteroInfection", "init_args": SIZES},
        "model": {"class_path": "attree.models.HeteroClassifier", "init_args": {"net": net}},
    }
    finished(tmp_path, module, config)
    return data, module


def test_nodes_of_a_heterogeneous_run(
    people: tuple[HeteroInfection, HeteroClassifier], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, module = people
    chosen = data.truth.targets[:3].tolist() if data.truth is not None else []
    given = ("--methods=gatt", "--protocols=removal", "--figures=0", "--show=3")
    assert command("explain", str(tmp_path), f"--targets={','.join(map(str, chosen))}", *given) == 0
    table = pd.read_parquet(tmp_path / "explain" / "scores")
    expected = attree.evaluate(
        module, data.graph, targets=chosen, methods=["gatt"], protocols=["removal"], node_type="person"
    )
    torch.testing.assert_close(torch.tensor(table["gatt"].to_numpy()), expected.pair_scores["gatt"])
    torch.testing.assert_close(torch.tensor(table["dpc_removal"].to_numpy()), expected.reductions["removal"].delta_pc)
    names = ["target", "source_type", "relation", "target_type", "source", "destination"]
    own = expected.pairs.graph.types
    assert own is not None
    assert list(table.columns[:6]) == names
    ends = expected.pairs.graph.edge_index[:, expected.pairs.edges]
    for kind, number, side in (("source_type", "source", ends[0]), ("target_type", "destination", ends[1])):
        union = [own.nodes(one).start + int(node) for one, node in zip(table[kind], table[number], strict=True)]
        assert union == side.tolist()
    given_edges = table[table["relation"] != ""]
    assert len(given_edges) > 0
    kinds = set(zip(given_edges["source_type"], given_edges["relation"], given_edges["target_type"], strict=True))
    assert kinds <= set(own.edge_types)
    said = capsys.readouterr().out
    assert f"-> person {chosen[0]}" in said
    assert (tmp_path / "explain" / "page.html").stat().st_size > 10_000


def test_a_run_of_links(tmp_path: Path) -> None:
    torch.manual_seed(3)
    data = Chords(test_fraction=0.2)
    data.prepare_data()
    data.setup()
    module = LinkPredictor(GAT(3, 4, hidden_channels=4)).eval()
    net = {"class_path": "attree.models.GAT", "init_args": {"out_channels": 4, "hidden_channels": 4}}
    path = f"{Chords.__module__}.Chords"
    config = {
        "data": {"class_path": path, "init_args": {"test_fraction": 0.2}},
        "model": {"class_path": "attree.models.LinkPredictor", "init_args": {"encoder": net}},
    }
    finished(tmp_path, module, config)
    given = (f"--allow={path}", "--methods=gatt", "--protocols=weight", "--figures=1", "--show=0")
    assert command("explain", str(tmp_path), "--targets=1,4", *given) == 0
    table = pd.read_parquet(tmp_path / "explain" / "scores")
    expected = attree.evaluate(module, data.graph, targets=[1, 4], methods=["gatt"], protocols=["weight"])
    assert expected.pairs.level == "edge"
    torch.testing.assert_close(torch.tensor(table["gatt"].to_numpy()), expected.pair_scores["gatt"])
    torch.testing.assert_close(torch.tensor(table["dpc_weight"].to_numpy()), expected.reductions["weight"].delta_pc)
    drawn = {path.name for path in (tmp_path / "explain" / "figures").glob("*.png")}
    assert len(drawn & {"case_study_1.png", "case_study_4.png"}) == 1
    assert not any(name.startswith("tree_") for name in drawn)
    wrong = (module(data.graph.x, data.graph.edge_index, data.graph.edge_label_index) > 0) != data.graph.edge_label
    assert command("explain", str(tmp_path), "--targets=errors", "--overwrite", *given) == 0
    assert sorted(set(pd.read_parquet(tmp_path / "explain" / "scores")["target"])) == wrong.nonzero().view(-1).tolist()


def test_a_case_study_is_of_the_target_and_names_its_type(people: tuple[HeteroInfection, HeteroClassifier]) -> None:
    data, module = people
    subject = Subject.of_data(module, data.graph, node_type="person")
    assert data.truth is not None
    target = int(data.truth.targets[0])
    config = EvaluationConfig(["gatt"], ["removal"])
    labels = TargetLabels.of(data.graph, subject)
    evaluator = Evaluator(subject, torch.tensor([target]), config, data.truth, labels=labels)
    (figure,) = draw_case_studies(evaluator, 1, torch.tensor([target])).values()
    assert f"neighbourhood of person {target}" in str(figure.get_suptitle())
