"""Heterogeneous graphs: GAtt equals a plain walk over types, and results speak in types."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.explain import Explainer, HeteroExplanation
from torch_geometric.nn import GATConv, GATv2Conv, HANConv, HGTConv, TransformerConv, to_hetero

import attree
import reference
from attree.attribution import Attribution, AvgAtt, GAtt, GAttAvg, GAttExplainer, GAttSim, Uniform, subject_pairs
from attree.subject import Head, Part, Subject
from attree.subject.missed_by_attention import bypass_of
from helpers.hetero import (
    CHANNELS,
    METADATA,
    RELATIONS,
    SIZES,
    HeteroNet,
    Stacked,
    han_calls,
    hetero_calls,
    hetero_graph,
    hgt_calls,
)

DATA = hetero_graph()


class Plain(nn.Module):
    """What `to_hetero` makes a heterogeneous network of."""

    def __init__(self, conv: type[Any], **options: Any) -> None:
        super().__init__()
        self.first, self.second = (conv((-1, -1), CHANNELS, **options) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return nn.functional.elu(self.second(nn.functional.elu(self.first(x, edge_index)), edge_index))


def ready(model: nn.Module, **asked: Any) -> Any:
    """In float64, with the sizes of lazy layers known."""
    torch.manual_seed(1)
    model = model.double().eval()
    with torch.no_grad():
        model(DATA.x_dict, DATA.edge_index_dict, **asked)
    return model


def subject_of(model: nn.Module) -> Subject:
    return Subject.of_data(model, DATA, node_type="paper")


def by_name(subject: Subject, scores: Attribution, target: int) -> dict[reference.TypedEdge, float]:
    """Scores by relation and number; loops by node."""
    types, one = subject.graph.types, scores[target]
    assert types is not None
    found = {}
    for edge, score in zip(one.edges.tolist(), one.scores.tolist(), strict=True):
        if edge < subject.graph.num_proper_edges:
            kind = types.edge_types[int(types.type_of_edges(torch.tensor([edge])))]
            found[kind[1], edge - types.edges(kind).start] = score
        else:
            found["loop", int(types.local(torch.tensor([edge - subject.graph.num_proper_edges])))] = score
    return found


def check(model: nn.Module, calls: Any, fed_by: Any, output: Any) -> None:
    subject = subject_of(model)
    scores = GAtt().attribute(subject)
    assert scores.targets.tolist() == list(range(SIZES["paper"]))
    for target in range(SIZES["paper"]):
        expected = reference.gatt_by_calls(calls, fed_by, output, [(("paper", target), 1.0)])
        assert by_name(subject, scores, target) == pytest.approx(expected, rel=1e-10, abs=1e-14)
    pairs = subject_pairs(subject)
    torch.testing.assert_close(GAtt().score_pairs(subject, pairs), pairs.scores(scores))
    again = subject.with_current_weights().attention
    assert all(torch.equal(*pair) for pair in zip(again.weights, subject.attention.weights, strict=True))


@pytest.mark.parametrize("aggr", ["sum", "mean", "cat"])
@pytest.mark.parametrize(
    ("conv", "options"),
    [(GATConv, {"heads": 2, "concat": False}), (GATv2Conv, {"add_self_loops": False}), (TransformerConv, {})],
)
def test_one_convolution_per_relation(conv: type[Any], options: dict[str, Any], aggr: str) -> None:
    model = ready(HeteroNet(conv, aggr, **options))
    layers = [{kind: layer.convs[kind] for kind in RELATIONS} for layer in model.convs]
    check(model, *hetero_calls(layers, DATA, aggr))


@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_networks_of_to_hetero(aggr: str) -> None:
    model = ready(to_hetero(Plain(GATv2Conv, add_self_loops=False), METADATA, aggr))
    layers = [{kind: layer["__".join(kind)] for kind in RELATIONS} for layer in (model.first, model.second)]
    check(model, *hetero_calls(layers, DATA, aggr))


def test_one_softmax_over_all_relations() -> None:
    model = ready(Stacked(HGTConv(CHANNELS, CHANNELS, METADATA, 2), HGTConv(CHANNELS, CHANNELS, METADATA, 2)))
    check(model, *hgt_calls(model, DATA))


def test_relations_weighed_by_semantic_attention() -> None:
    model = ready(Stacked(HANConv(CHANNELS, CHANNELS, METADATA, 2), HANConv(CHANNELS, CHANNELS, METADATA, 2)))
    check(model, *han_calls(model, DATA))


def test_loops_that_a_convolution_adds_are_edges_of_their_own() -> None:
    model = ready(HeteroNet(GATConv, "sum", loops=True))
    subject = subject_of(model)
    table = GAtt().attribute(subject, 1).to_pandas()
    loops = table[table.relation == ""]
    assert set(loops.source_type) == {"paper"}
    assert (loops.source == loops.destination).all()
    # The loop that was given is an edge of its relation, and the convolution's loop of that node.
    assert 2 not in set(loops.source)
    edges = DATA["paper", "cites", "paper"].edge_index
    own, weights = model.convs[0].convs["paper", "cites", "paper"](
        DATA["paper"].x, edges, return_attention_weights=True
    )[1]
    first = subject.attention.weights[0][:, 0]
    assert subject.graph.types is not None
    place = subject.graph.types.edges(("paper", "cites", "paper")).start
    assert float(first[place]) == pytest.approx(weights[(own[0] == 2) & (own[1] == 2)].item())


def test_results_speak_in_types(tmp_path: Path) -> None:
    subject = subject_of(ready(HeteroNet(GATConv, "mean")))
    scores = GAtt().attribute(subject, [1, 4])
    mask = scores.edge_mask(4)
    assert {kind: len(own) for kind, own in mask.items()} == RELATIONS
    assert scores.node_type == "paper"
    table = scores.to_pandas()
    assert list(table) == ["target", "source_type", "relation", "target_type", "source", "destination", "score"]
    for kind, own in mask.items():
        edges = DATA[kind].edge_index[:, own > 0]
        rows = table[(table.target == 4) & (table.relation == kind[1])]
        assert (rows.source_type == kind[0]).all()
        assert sorted(zip(rows.source, rows.destination, strict=True)) == sorted(zip(*edges.tolist(), strict=True))
    read = Attribution.load(scores.save(tmp_path / "scores.npz"))
    assert read.graph.types == subject.graph.types
    assert read.node_type == "paper"
    assert all(torch.equal(read.edge_mask(1)[kind], scores.edge_mask(1)[kind]) for kind in RELATIONS)
    explanation = scores.to_explanation(4)
    assert isinstance(explanation, HeteroExplanation)
    assert torch.equal(explanation["paper", "cites", "paper"].edge_mask, mask["paper", "cites", "paper"])


def test_methods_agree_on_which_edges_carry_a_flow() -> None:
    subject = subject_of(ready(HeteroNet(GATConv, "sum")))
    listed = GAtt().attribute(subject).edges
    for method in (GAttSim(), GAttAvg(), AvgAtt(), Uniform()):
        assert torch.equal(method.attribute(subject).edges, listed)
    uniform = Uniform().table(subject.attention).alphas[0]
    for kind in RELATIONS:
        ids = subject.graph.types.edges(kind) if subject.graph.types else range(0)
        destination = DATA[kind].edge_index[1]
        expected = 1 / destination.bincount(minlength=SIZES[kind[2]])[destination]
        torch.testing.assert_close(uniform[ids.start : ids.stop], expected.double())


def test_whose_outputs_are_explained_is_asked_for_where_it_is_not_plain() -> None:
    model = ready(HeteroNet(GATConv, "sum"))
    with pytest.raises(ValueError, match="`node_type` to be the node type to explain, one of paper, author, term"):
        _ = Subject.of_data(model, DATA).attention
    with pytest.raises(ValueError, match="`node_type` to be one of paper, author, term, but got 'venue'"):
        Subject.of_data(model, DATA, node_type="venue")
    authors = Subject.of_data(model, DATA, node_type="author")
    assert (authors.num_targets, authors.node_type) == (SIZES["author"], "author")
    assert authors.roots([3]).node.tolist() == [SIZES["paper"] + 3]


def test_a_model_that_takes_the_data_whole() -> None:
    inner = ready(HeteroNet(GATConv, "sum"))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, data: HeteroData) -> Tensor:
            return self.inner(data.x_dict, data.edge_index_dict)["paper"]

    expected = GAtt().attribute(subject_of(inner)).scores
    assert torch.equal(GAtt().attribute(Subject.of_data(Whole(), DATA)).scores, expected)
    called = Subject.of_data(inner, DATA, call=lambda model, data: model(data.x_dict, data.edge_index_dict)["paper"])
    assert torch.equal(GAtt().attribute(called).scores, expected)


def test_a_maximum_over_relations_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"author___writes___paper>` \(GATConv\) and .* are combined by `max`"):
        _ = subject_of(ready(HeteroNet(GATConv, "max"))).attention


@pytest.mark.parametrize("net", ["hgt", "hetero", "whole"])
def test_a_call_is_cut_to_a_part_in_any_order(net: str) -> None:
    """All nodes, twice and mixed up: outputs are those of the whole graph, in the part's order."""
    model = ready(Stacked(HGTConv(CHANNELS, CHANNELS, METADATA, 2)) if net == "hgt" else HeteroNet(GATConv, "sum"))
    call = None if net != "whole" else lambda model, data: model(data.x_dict, data.edge_index_dict)
    subject = Subject.of_data(model, DATA, node_type="paper", call=call)
    nodes, edges = subject.graph.num_nodes, subject.graph.original_edge_index
    order = torch.randperm(2 * nodes, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    part = Part(
        torch.cat([torch.arange(nodes)] * 2)[order],
        torch.cat([place[edges], place[edges + nodes]], dim=1),
        torch.cat([torch.arange(edges.shape[1])] * 2),
    )
    cut = subject.call.on(part)
    papers = torch.arange(SIZES["paper"])
    with torch.no_grad():
        output = cut.run()
    for copy in range(2):
        rows, count = subject.call.target_rows(replace(part, target=place[papers + copy * nodes]))
        assert count == output.shape[0]
        torch.testing.assert_close(output[rows], subject.output)
    assert cut.graph.num_nodes == 2 * nodes


def test_what_goes_around_attention_is_seen_in_heterogeneous_networks_too() -> None:
    plain = HeteroNet(GATv2Conv, "sum", add_self_loops=False)
    assert not bypass_of(subject_of(ready(plain))).exists
    around = bypass_of(subject_of(ready(HeteroNet(TransformerConv, "sum"))))
    assert around.exists
    assert around.bypassed_layers == {0, 1}


def test_pygs_explainer_gets_a_mask_for_each_type() -> None:
    model = ready(Stacked(HGTConv(CHANNELS, CHANNELS, METADATA, 2), HGTConv(CHANNELS, CHANNELS, METADATA, 2)))
    explainer = Explainer(
        model,
        algorithm=GAttExplainer(),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    explanation = explainer(DATA.x_dict, DATA.edge_index_dict, index=3)
    assert isinstance(explanation, HeteroExplanation)
    expected = GAtt().attribute(subject_of(model), 3).edge_mask(3)
    for kind in RELATIONS:
        assert torch.equal(explanation[kind].edge_mask, expected[kind])
        assert explanation[kind].edge_mask.shape == (RELATIONS[kind],)


def test_one_call_evaluates_a_heterogeneous_model() -> None:
    model = ready(HeteroNet(GATv2Conv, "sum", add_self_loops=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = attree.evaluate(model, DATA, [1, 4], methods=["gatt"], node_type="paper")
    expected = GAtt().attribute(subject_of(model), [1, 4])
    for target in (1, 4):
        torch.testing.assert_close(result.scores["gatt"].dense(target), expected.dense(target))


def test_types_without_edges_are_told_apart() -> None:
    data = hetero_graph()
    for kind in (("term", "in", "paper"), ("paper", "has", "term")):
        data[kind].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    model = ready(HeteroNet(GATv2Conv, "sum", add_self_loops=False))
    scores = GAtt().attribute(Subject.of_data(model, data, node_type="paper"))
    layers = [{kind: layer.convs[kind] for kind in RELATIONS} for layer in model.convs]
    walk = hetero_calls(layers, data, "sum")
    for target in range(SIZES["paper"]):
        expected = reference.gatt_by_calls(*walk, [(("paper", target), 1.0)])
        assert float(scores[target].scores.sum()) == pytest.approx(sum(expected.values()))
    data["author", "writes", "paper"].edge_index = data["paper", "cites", "paper"].edge_index.clamp(max=4)
    data["paper", "written_by", "author"].edge_index = data["author", "writes", "paper"].edge_index
    with pytest.raises(TypeError, match="to be called with the edges of one type, as they were given"):
        _ = Subject.of_data(model, data, node_type="paper").attention


class AuthorWrites(nn.Module):
    """Whether an author wrote a paper: a dot product of what `HeteroConv` returned for the two."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = HeteroNet(GATv2Conv, "sum", add_self_loops=False)

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_label_index: Tensor) -> Tensor:
        z = self.encoder(x_dict, edge_index_dict)
        return (z["author"][edge_label_index[0]] * z["paper"][edge_label_index[1]]).sum(-1)


@pytest.mark.parametrize("index", [None, 2, torch.arange(3)], ids=["all", "one", "several"])
@pytest.mark.parametrize("level", ["node", "edge"])
def test_pygs_explanations_of_types_are_valid(level: str, index: Any) -> None:
    """What PyG's own tests ask of heterogeneous explanations: types, keys, shapes, validation and a subgraph."""
    asked: dict[str, Tensor] = {}
    mode = "multiclass_classification"
    model: nn.Module = Stacked(HGTConv(CHANNELS, CHANNELS, METADATA, 2), HGTConv(CHANNELS, CHANNELS, METADATA, 2))
    if level == "edge":
        pairs = torch.tensor([[0, 3, 4, 1], [6, 2, 5, 0]])
        model, asked, mode = AuthorWrites(), {"edge_label_index": pairs}, "binary_classification"
    model = ready(model, **asked)
    model.train()
    explainer = Explainer(
        model,
        algorithm=GAttExplainer(),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": mode, "task_level": level, "return_type": "raw"},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = explainer(DATA.x_dict, DATA.edge_index_dict, index=index, **asked)
    assert model.training
    assert isinstance(explanation, HeteroExplanation)
    assert explanation.validate(raise_on_error=True)
    assert explanation.available_explanations == ["edge_mask"]
    assert set(explanation.edge_mask_dict) == set(RELATIONS)
    for kind, mask in explanation.edge_mask_dict.items():
        assert mask.shape == (RELATIONS[kind],)
        assert mask.isfinite().all()
        assert (mask >= 0).all()
    kept = explanation.get_explanation_subgraph()
    for kind, mask in explanation.edge_mask_dict.items():
        assert kept[kind].edge_index.shape[1] == int((mask > 0).sum())


def test_a_dot_product_of_two_types_begins_at_both_ends() -> None:
    pairs = torch.tensor([[0, 3, 4, 1], [6, 2, 5, 0]])
    model = ready(AuthorWrites(), edge_label_index=pairs)
    head = Head(mode="binary_classification", return_type="raw")
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict, edge_label_index=pairs, head=head)
    encoder = model.encoder
    ends = [Subject.of_data(encoder, DATA, node_type=kind) for kind in ("author", "paper")]
    for column in range(pairs.shape[1]):
        masks = [
            GAtt().attribute(end, int(node)).edge_mask(int(node))
            for end, node in zip(ends, pairs[:, column], strict=True)
        ]
        found = GAtt().attribute(subject, column).edge_mask(column)
        for kind in RELATIONS:
            torch.testing.assert_close(found[kind], masks[0][kind] + masks[1][kind])
