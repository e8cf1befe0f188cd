"""Predictions that are no classes: one of several labels is named, and numbers have no confidence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GAT

import attree
from attree.faithfulness.effect_measures import Prediction
from attree.report.page.content import page_content

NAMES = ["tall", "old", "rich", "kind"]


@pytest.fixture(scope="module")
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    x, edge_index = torch.randn(12, 4, generator=generator), torch.randint(0, 12, (2, 30), generator=generator)
    return Data(x=x, edge_index=edge_index, y=torch.randint(0, 2, (12, 4), generator=generator).float())


def net(columns: int) -> GAT:
    torch.manual_seed(0)
    return GAT(4, 8, 2, out_channels=columns).eval()


@pytest.mark.parametrize("label", [None, 0, 3])
def test_a_label_is_named_with_its_probability(data: Data, label: int | None) -> None:
    model, target = net(4), 5
    probability = model(data.x, data.edge_index).sigmoid()[target]
    measured = int(probability.argmax()) if label is None else label
    explanation = attree.explain(model, data, target, mode="binary_classification", label=label)
    has_label = bool(probability[measured] > 0.5)
    assert (explanation.label, explanation.predicted) == (measured, int(has_label))
    assert explanation.probability == pytest.approx(
        float(torch.maximum(probability[measured], 1 - probability[measured])), abs=1e-6
    )
    assert explanation.true_class == int(data.y[target, measured])
    value = "yes" if has_label else "no"
    assert explanation.sentence.startswith(f"The network predicts {value} for label {measured} (")
    edge = next(edge for edge in explanation.edges if edge.source != edge.destination)
    gone = (data.edge_index[0] == edge.source) & (data.edge_index[1] == edge.destination)
    after = model(data.x, data.edge_index[:, ~gone]).sigmoid()[target, measured]
    assert edge.probability == pytest.approx(float(torch.maximum(after, 1 - after)), abs=1e-6)
    assert edge.predicted == int(after > 0.5)


def test_labels_have_names_everywhere(data: Data) -> None:
    named = Data(**data.to_dict(), class_names=NAMES)
    result = attree.evaluate(net(4), named, [2, 5], ["gatt"], mode="binary_classification", label=1)
    assert "for label old (" in result.explain(5).sentence
    content = page_content(result)
    assert content["classNames"] == ["no", "yes"]
    assert {target["label"] for target in content["targets"]} == {"label old"}
    assert all(target["true"] == int(data.y[target["id"], 1]) for target in content["targets"])
    assert result.target_labels.prediction(result.subject, 1).startswith("label old: predicted ")  # type: ignore[arg-type]


def test_numbers_have_no_confidence(data: Data, tmp_path: Path) -> None:
    numbers = Data(x=data.x, edge_index=data.edge_index, y=torch.randn(12))
    result = attree.evaluate(net(1), numbers, num_targets=8, mode="regression")
    loaded = type(result).load(result.save(tmp_path))
    for evaluation in (result, loaded):
        text = evaluation.table("full")
        assert "predicted number, Pearson" in text
        assert not {word for word in ("confidence", "entropy", "faithfulness") if word in text}
        assert "confidence" not in evaluation._repr_html_()
        content = page_content(evaluation)
        assert content["predictsNumbers"]
        assert {metric["name"] for metric in content["metrics"] if "method" in metric} == {
            *("within_pearson", "pc_pearson", "pc_kendall", "pc_spearman")
        }
        labels = [label.get_text() for label in evaluation.plot().axes[0].get_xticklabels()]
        names = [f"predicted number\n{name}" for name in ("Pearson", "Kendall", "Spearman")]
        assert labels == ["within targets\nPearson", *names]
    explanation = attree.explain(net(1), numbers, 3, mode="regression")
    assert {edge.side for edge in explanation.edges} == {"raises", "lowers", ""}
    assert not attree.evaluate(net(3), Data(x=data.x, edge_index=data.edge_index), [1], ["gatt"]).predicts_numbers


def test_the_entropy_of_an_undefined_prediction_is_undefined() -> None:
    undefined, certain = torch.tensor([[torch.nan, 1.0]]), torch.tensor([[0.0, -torch.inf]])
    for before, after in ((undefined, certain), (certain, undefined)):
        changes: tuple[Tensor, ...] = Prediction.of(before).compare(after)
        assert changes[0].isnan().all()
        assert changes[1].isnan().all()
    assert float(Prediction.of(certain).compare(certain)[1]) == 0
