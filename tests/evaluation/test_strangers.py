"""Models that nobody here wrote: right against one pass with the edge reduced, or refused in a sentence."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import attree
from attree.errors import AttreeError
from attree.evaluation import Evaluation
from attree.source import TargetLabels
from attree.subject import Subject
from helpers import strangers
from helpers.graphs import randomize
from helpers.one_pass_each import edge_reduced

MODELS = strangers.models()

NOT_ROWS = {
    "adds its first row",
    "subtracts node 0",
    "a table cut to its rows",
    "users, then items",
    "halves",
    "one special row",
    "over the largest",
    "outputs over the largest",
    "a second edge set",
    "degrees",
    "a matrix of nodes",
    "an LSTM over nodes",
    "graphs that read one row",
}
"""Models that depend on the position of rows, or on more than rows: a slower engine serves them, and says so."""


def settled(model: nn.Module) -> nn.Module:
    return randomize(model, 3, scale=0.6).double().eval()


def explain(model: nn.Module, data: Data, **options: Any) -> Evaluation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attree.evaluate(model, data, methods=["gatt"], protocols=["weight", "removal"], **options)


def one_pass_each(model: nn.Module, data: Data, result: Evaluation, protocol: str) -> Tensor:
    """The decline of the predicted class's probability for every pair, by a pass of the model with its edge reduced."""
    subject = Subject.of_data(model, data)
    pairs = result.pairs
    rows, looped = subject.rows(pairs.targets)[pairs.owner], subject.graph.edge_index
    call, graph = subject.call.on_model(model), subject.graph  # the model itself, not its stand-in
    with torch.no_grad():
        before = call.run().softmax(-1)
        after = {}
        for edge in pairs.edges.unique().tolist():
            source, destination = looped[:, edge].tolist()
            # Where the rows of the output are the edges themselves, a deleted edge would have none.
            deletes = protocol == "removal" and (subject.level != "edge" or "edge_label_index" in data)
            left = call.without_edges((graph.position == edge).nonzero().view(-1)) if deletes else call
            hooked = not deletes or source == destination
            with edge_reduced(model, source, destination, 0, protocol) if hooked else nullcontext():
                after[edge] = left.run().softmax(-1)
    predicted = before.argmax(-1)
    changes = [
        before[row, predicted[row]] - after[edge][row, predicted[row]]
        for row, edge in zip(rows.tolist(), pairs.edges.tolist(), strict=True)
    ]
    return torch.stack(changes)


@pytest.mark.parametrize("name", list(MODELS))
def test_reductions_are_those_of_one_pass_for_each_edge_and_slow_engines_are_announced(name: str) -> None:
    model, data = MODELS[name]
    model = settled(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = attree.evaluate(model, data, methods=["gatt"], protocols=["weight", "removal"], targets="all")
    assert len(result.pairs) > 0
    for protocol, reduction in result.reductions.items():
        expected = one_pass_each(model, data, result, protocol)
        torch.testing.assert_close(reduction.delta_pc, expected, rtol=0, atol=1e-7)
        assert float(expected.abs().max()) > 1e-4
    slower = [str(one.message) for one in said if "times as long as exact updates" in str(one.message)]
    assert len(slower) == (1 if name in NOT_ROWS else 0), slower


LINKS = strangers.with_pairs(6)


def test_gatt_of_a_link_is_that_of_its_two_ends() -> None:
    model = settled(strangers.Links())
    result = explain(model, LINKS, targets="all")
    encoder = Subject.of(model.encoder, LINKS.x, LINKS.edge_index)
    nodes = attree.GAtt().attribute(encoder)
    links = attree.GAtt().attribute(Subject.of_data(model, LINKS))
    assert result.pairs.level == "edge"
    for pair, (u, v) in enumerate(LINKS.edge_label_index.t().tolist()):
        torch.testing.assert_close(links.dense(pair), nodes.dense(u) + nodes.dense(v))


def test_one_link_is_no_graph() -> None:
    model, data = settled(strangers.Links()), strangers.with_pairs(1)
    scores = attree.GAtt().attribute(Subject.of_data(model, data), "all")
    assert scores.scores.sum() == pytest.approx(4.0, rel=1e-6)  # two ends, two layers, rows that add up to 1


def test_as_many_rows_as_nodes_may_be_those_of_others() -> None:
    order = torch.arange(strangers.NODES).roll(11)
    model, data = settled(strangers.Reordered()), strangers.with_argument("order", order)
    plain = settled(strangers.TwoLayers())
    ours, expected = explain(model, data, targets="all"), explain(plain, data, targets="all")
    for protocol, reduction in ours.reductions.items():
        for node in (0, 5, 29):
            changes = reduction.delta_pc[ours.pairs.targets[ours.pairs.owner] == node]
            others = expected.pairs.targets[expected.pairs.owner] == node
            torch.testing.assert_close(changes, expected.reductions[protocol].delta_pc[others])
    assert explain(settled(strangers.OwnEdges()), strangers.ring(), targets=[3]).pairs.level == "edge"
    assert explain(plain, strangers.ring(), targets=[3]).pairs.level == "node"


def many_links() -> Data:
    data = strangers.with_pairs(strangers.NODES)
    data.src, data.dst = data.edge_label_index
    data.edge_label_index = data.edge_label_index.t()
    return data


def test_as_many_links_as_nodes_by_two_arguments_are_links() -> None:
    data = many_links()
    subject = Subject.of_data(strangers.SourcesAndDestinations().double(), data)
    assert subject.outputs.ends is not None
    assert torch.equal(subject.outputs.ends, torch.stack([data.src, data.dst]))


@pytest.mark.parametrize(
    ("model", "data", "sentence"),
    [
        (strangers.PairsInRows(), many_links(), r"pair of nodes that an argument holds as \[2, P\]"),
        (
            strangers.AnyKeywords(),
            strangers.graph(),
            r"AnyKeywords.forward .*, but it raised KeyError .*'weights'",
        ),
        (strangers.TwoLayers(), Data(x=torch.zeros(0, 4), edge_index=torch.zeros(2, 0).long()), "a graph with nodes"),
        (
            strangers.TwoLayers(),
            Data(x=torch.eye(4).double().to_sparse(), edge_index=torch.zeros(2, 1).long()),
            "dense tensor",
        ),
    ],
)
def test_refusals_say_why(model: nn.Module, data: Data, sentence: str) -> None:
    with pytest.raises(AttreeError, match=sentence):
        attree.evaluate(settled(model), data, targets="all")


def test_labels_of_links_are_not_those_of_nodes() -> None:
    data = strangers.with_pairs(strangers.NODES)
    data.edge_label = torch.arange(strangers.NODES) % 2
    subject = Subject.of_data(settled(strangers.Links(2)), data)
    labels = TargetLabels.of(data, subject).labels
    assert labels is not None
    assert torch.equal(labels, data.edge_label)


def test_a_tuple_is_refused_and_a_call_helps() -> None:
    model, data = settled(strangers.ReturnsTuple()), strangers.graph()
    with pytest.raises(AttreeError, match=r"one row of logits per node.*call="):
        attree.evaluate(model, data)
    ours = explain(model, data, targets="all", call=lambda model, data: model(data.x, data.edge_index)[0])
    plain = strangers.TwoLayers().double().eval()
    plain.load_state_dict(model.state_dict())
    for protocol, reduction in explain(plain, data, targets="all").reductions.items():
        torch.testing.assert_close(ours.reductions[protocol].delta_pc, reduction.delta_pc)


def test_messages_name_the_users_class() -> None:
    class Broken(strangers.TwoLayers):
        def forward(self, data: Data) -> dict[str, Tensor]:
            return {"out": super().forward(data.x, data.edge_index)}

    with pytest.raises(AttreeError, match="but got dict") as raised:
        attree.evaluate(settled(Broken()), strangers.graph())
    assert "DataForward" not in str(raised.value)


def test_the_level_is_asked_for_where_it_cannot_be_told() -> None:
    class Pairwise(strangers.TwoLayers):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out = super().forward(x, edge_index)
            return out[:10] + out[10:20] * out[20:30]

    with pytest.raises(AttreeError, match="`level`"):
        attree.evaluate(settled(Pairwise()), strangers.graph())
    with pytest.raises(AttreeError, match=r"`level` to be 'edge' only if one argument holds 30 pairs"):
        attree.evaluate(settled(strangers.TwoLayers()), strangers.graph(), level="edge")


def test_methods_that_are_trained_refuse_links_by_name() -> None:
    with pytest.raises(AttreeError, match=r"PGExplainer.*pair of nodes"):
        attree.evaluate(settled(strangers.Links()), LINKS, methods=["pg_explainer"], targets=[0])
