"""What captions say of a target: predicted and true class, and what atoms are called."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GATConv, HeteroConv, global_add_pool

import attree
from attree.attribution import subject_pairs
from attree.attribution.baselines import hashed_uniform
from attree.data import MUTAG, Planetoid
from attree.evaluation import EvaluationConfig, Evaluator
from attree.report.case_study import contrast, draw_case_studies, draw_score_histograms
from attree.source import TargetLabels
from attree.subject import Head, Subject


class Nodes(nn.Module):
    def __init__(self, width: int = 3, out: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = GATConv(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class Graphs(Nodes):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(self.conv(x, edge_index), batch)


def graph(**more: object) -> Data:
    generator = torch.Generator().manual_seed(1)
    x, edge_index = torch.randn(6, 3, generator=generator), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    return Data(x=x, edge_index=edge_index, **more)


def subject(data: Data, model: nn.Module | None = None) -> Subject:
    return Subject.of_data(Nodes() if model is None else model, data, head=Head("multiclass_classification", "raw"))


def test_prediction_and_truth_in_words() -> None:
    data = graph(y=torch.tensor([0, 1, 2, 3, -1, 2]))
    of = subject(data)
    shares = of.attention.output.detach().double().softmax(-1).numpy()
    odd = ["$a$", "b\n$", "<c>", "_d"]
    facts = TargetLabels.of(data, of, odd)
    for node, true in enumerate([0, 1, 2, 3, -1, 2]):
        best = int(shares[node].argmax())
        named = ["$a$", "b $", "<c>", "_d"]
        expected = f"predicted {named[best]} ({shares[node].max():.0%})"
        if true >= 0:
            expected += f", labelled {named[true]}" + ("" if best == true else ": wrong")
        assert facts.prediction(of, node) == expected
    assert TargetLabels().prediction(of, 0) == f"predicted {shares[0].argmax()} ({shares[0].max():.0%})"
    evaluator = Evaluator(of, [5], EvaluationConfig(["gatt", "random"], ["removal"]), labels=facts)
    evaluator.evaluate()
    (figure,) = draw_case_studies(evaluator, 1).values()
    assert facts.prediction(of, 5) in figure.get_suptitle()
    figure.savefig(BytesIO())


def test_numbers_and_logits_of_two_classes() -> None:
    data = graph(y=torch.full((6,), 0.25))
    number = Subject.of_data(Nodes(out=1), data, head=Head("regression"))
    value = float(number.attention.output[2])
    assert TargetLabels.of(data, number).prediction(number, 2) == f"predicted {value:.4g}, true 0.25"
    binary = Subject.of_data(Nodes(out=1), graph(y=torch.ones(6)), head=Head("binary_classification", "raw"))
    share = float(binary.attention.output[2].sigmoid())
    best = int(share > 0.5)
    said = TargetLabels.of(graph(y=torch.ones(6)), binary).prediction(binary, 2)
    assert said == f"predicted {best} ({max(share, 1 - share):.0%}), labelled 1" + ("" if best else ": wrong")


def test_names_that_the_data_itself_has() -> None:
    names = ["Ann", "Bob\nB.", "a name that is long", "$", "_e", "f"]
    data = graph(node_names=names)
    assert TargetLabels.of(data, subject(data)).node_names == names
    assert TargetLabels.of(graph(node_names=names[:2]), subject(graph())).node_names is None
    assert TargetLabels.of(graph(y=torch.tensor([1])), subject(graph())).labels is None
    of = subject(data)
    evaluator = Evaluator(of, [5], EvaluationConfig(["gatt"], ["removal"]), labels=TargetLabels.of(data, of))
    evaluator.evaluate()
    (figure,) = draw_case_studies(evaluator, 1).values()
    assert {text.get_text() for text in figure.axes[0].texts} == {"_e", "f"}
    figure.savefig(BytesIO())
    both = Batch.from_data_list([graph(node_names=names), graph(node_names=names[::-1])])
    batched = subject(both, Graphs())
    assert TargetLabels.of(both, batched).node_names == [*names, *names[::-1]]


def test_a_graph_of_one_node() -> None:
    alone = Data(x=torch.ones(1, 3), edge_index=torch.zeros(2, 0, dtype=torch.int64), y=torch.tensor([2]))
    batch = Batch.from_data_list([graph(y=torch.tensor([1])), alone])
    of = subject(batch, Graphs())
    facts = TargetLabels.of(batch, of, node_types=("C", "N", "O"), ids=torch.tensor([20, 150]))
    evaluator = Evaluator(of, [1], EvaluationConfig(["gatt", "avgatt", "random"], ["removal"]), labels=facts)
    evaluation = evaluator.evaluate()
    figures = draw_case_studies(evaluator, 1) | draw_score_histograms(evaluation)
    assert list(figures) == ["case_study_150", "scores_removal"]
    assert "Graph 150: 1 node, 1 edge" in figures["case_study_150"].get_suptitle()
    assert "labelled 2" in figures["case_study_150"].get_suptitle()
    for figure in figures.values():
        figure.savefig(BytesIO())


@pytest.mark.needs("tu/MUTAG/raw")
def test_atoms_and_classes_of_mutag(data_root: str) -> None:
    data = MUTAG(root=data_root)
    chosen = [data.graphs[4], data.graphs[7]]
    batch = Batch.from_data_list(chosen)
    of = subject(batch, Graphs(7, 2))
    facts = TargetLabels.of(batch, of, data.class_names, data.node_types)
    assert facts.node_names is not None
    assert len(facts.node_names) == batch.num_nodes
    symbols = [name.rstrip("0123456789") for name in facts.node_names]
    assert symbols == [data.node_types[int(one)] for one in batch.x.argmax(1)]
    assert facts.node_names[chosen[0].num_nodes].endswith("0")  # each molecule counts its own atoms
    every = torch.cat([one.x for one in data.graphs]).sum(0)
    # Debnath's compounds: carbon, oxygen and nitrogen; few halogens, iodine the rarest.
    assert every.argsort(descending=True)[:3].tolist() == [data.node_types.index(atom) for atom in ("C", "O", "N")]
    assert sum(int(one.y) for one in data.graphs) == 125  # mutagenic, as the original publication counts


@pytest.mark.needs("planetoid/Cora/raw")
def test_topics_of_cora_are_told_by_their_numbers_of_papers(data_root: str) -> None:
    data = Planetoid("Cora", root=data_root)
    assert data.class_names is not None
    papers = dict(zip(data.class_names, data.graph.y.bincount().tolist(), strict=True))
    assert papers == {
        "neural networks": 818,
        "probabilistic methods": 426,
        "genetic algorithms": 418,
        "theory": 351,
        "case based": 298,
        "reinforcement learning": 217,
        "rule learning": 180,
    }


def test_the_picture_of_random_shows_what_is_judged_and_is_no_blob() -> None:
    of = subject(graph())
    evaluator = Evaluator(of, [3], EvaluationConfig(["random"], ["removal"], random_draws=3))
    evaluation = evaluator.evaluate()
    pairs = subject_pairs(of, [3])
    expected = hashed_uniform(0, pairs.targets[pairs.owner], pairs.edges, torch.float32)
    assert torch.equal(evaluation.pair_scores["random"], expected)
    (figure,) = draw_case_studies(evaluator, 1).values()
    highest = float(figure.axes[1].get_xlim()[1])
    assert highest == pytest.approx(float(expected.max()))

    uniform = np.linspace(0, 1, 200)
    assert (uniform ** contrast(uniform)).sum() == pytest.approx(20, rel=0.01)
    few = np.array([1.0, 0.9, *np.zeros(300)])
    assert contrast(few) == 1.0
    assert contrast(np.zeros(5)) == 1.0


class Papers(nn.Module):
    """Classifies papers by their authors and terms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        relations = [("author", "writes", "paper"), ("term", "in", "paper")]
        self.conv = HeteroConv({relation: GATConv((2, 2), 2, add_self_loops=False) for relation in relations})

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        return self.conv(x_dict, edge_index_dict)["paper"]


def test_names_of_node_types_and_of_the_classes_of_one() -> None:
    data = HeteroData()
    for kind, count in (("paper", 3), ("author", 2), ("term", 2)):
        data[kind].x = torch.eye(2)[torch.arange(count) % 2]
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
    data["term", "in", "paper"].edge_index = torch.tensor([[0, 1, 0], [0, 0, 1]])
    data["author"].node_names = ["Ada", "Grace"]
    data["paper"].node_names = ["On engines", "On compilers", "On bugs"]
    data["paper"].class_names = ["hardware", "software"]
    model = Papers().eval()
    explanation = attree.explain(model, data, 0)
    predicted = int(model(data.x_dict, data.edge_index_dict)[0].argmax())
    assert f"The network predicts {['hardware', 'software'][predicted]} " in explanation.sentence
    table = str(explanation)
    for edge in ("Ada -> On engines", "term 0 -> On engines", "term 1 -> On engines"):
        assert edge in table
    data["author"].node_names = ["Ada"]  # too few: these authors are numbered
    assert "author 0 -> On engines" in str(attree.explain(model, data, 0))
    data.class_names = ["first", "second"]  # the data's own names come before those of a type
    assert f"predicts {['first', 'second'][predicted]} " in attree.explain(model, data, 0).sentence
