"""The network within a page: it computes what the model predicts without some edges, or the page says why not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT as PlainGAT
from torch_geometric.nn import GCN as PlainGCN
from torch_geometric.nn import GATConv, GCNConv, GraphSAGE, SAGEConv, global_add_pool, global_mean_pool
from torch_geometric.utils import degree

from attree.evaluation import Evaluation, evaluate
from attree.faithfulness import WholeReducer, resolve_protocol
from attree.io.files import json_ready
from attree.models import GAT, GCN, GIN, SAGE, GATv2
from attree.report.page.content import page_content
from attree.report.page.write import asset
from attree.tensors.arrays import Rows
from helpers.graphs import randomize

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

NODES, CHANNELS = 30, 5
TARGETS = [1, 5, 7]


def random_graph(nodes: int = NODES, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)
    return Data(x=torch.randn(nodes, CHANNELS, generator=generator), edge_index=edge_index)


class Handwritten(nn.Module):
    """Three kinds of layers, functions between them, and something before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(CHANNELS, 6)
        self.first, self.second, self.third = GATConv(6, 8, heads=2), GCNConv(16, 8), SAGEConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(self.encode(x).relu(), edge_index))
        x = torch.tanh(self.second(x, edge_index))
        return F.log_softmax(self.third(x, edge_index), dim=-1)


class Pooled(nn.Module):
    """Two layers and the sum or the mean over a graph."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.net, self.mean = GAT(CHANNELS, 3, heads=2), mean

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return (global_mean_pool if self.mean else global_add_pool)(self.net(x, edge_index), batch)


class ReadsDegrees(nn.Module):
    """Reads edges outside its layers, so that a page cannot compute it: only the comparison with the model tells."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GCN(CHANNELS, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.net(x + degree(edge_index[1], x.shape[0])[:, None], edge_index)
        return out


ATTENTION = ("removal", "weight", "coefficient")
MESSAGES = ("removal", "weight")
NETS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "GAT": (lambda: GAT(CHANNELS, 3, heads=2), ATTENTION),
    "GATv2": (lambda: GATv2(CHANNELS, 3, heads=2, concat=False), ATTENTION),
    "GCN": (lambda: GCN(CHANNELS, 3), MESSAGES),
    "SAGE": (lambda: SAGE(CHANNELS, 3), MESSAGES),
    "one logit": (lambda: GAT(CHANNELS, 1, num_layers=3), ATTENTION),
    "PyG's GAT": (lambda: PlainGAT(CHANNELS, 8, 2, out_channels=3, heads=2), ATTENTION),
    "PyG's GATv2": (lambda: PlainGAT(CHANNELS, 8, 2, out_channels=3, v2=True, act="elu"), ATTENTION),
    "no loops": (lambda: PlainGAT(CHANNELS, 8, 2, out_channels=3, add_self_loops=False), ATTENTION),
    "PyG's GCN": (lambda: PlainGCN(CHANNELS, 8, 3, out_channels=3), MESSAGES),
    "PyG's GraphSAGE": (lambda: GraphSAGE(CHANNELS, 8, 2, out_channels=3, act="silu"), MESSAGES),
    "handwritten": (Handwritten, ATTENTION),
    "sum": (lambda: Pooled(mean=False), ATTENTION),
    "mean": (lambda: Pooled(mean=True), ATTENTION),
}


def explained(name: str) -> Evaluation:
    make, protocols = NETS[name]
    net = randomize(make(), seed=1, scale=0.6).eval()
    data = (
        Batch.from_data_list([random_graph(8, seed) for seed in range(3)])
        if name in ("sum", "mean")
        else random_graph()
    )
    return evaluate(net, data, [0, 2] if name in ("sum", "mean") else TARGETS, ["random"], protocols)


def of_model(evaluation: Evaluation, position: int, sets: list[list[int]], protocol: str) -> Tensor:
    """The model's class probabilities of a target, by a pass over the whole graph for each set of reduced edges."""
    subject = evaluation.subject
    assert subject is not None
    ptr = torch.tensor([len(edges) for edges in [[], *sets]]).cumsum(0)
    rows = Rows(ptr, torch.tensor([edge for edges in sets for edge in edges], dtype=torch.int64))
    node, owner = evaluation.targets[position : position + 1], torch.zeros(len(sets), dtype=torch.int64)
    output = WholeReducer(subject).record().reduce_sets(node, owner, rows, resolve_protocol(protocol, subject.model))
    return subject.head.logits(output).softmax(dim=-1)


def sets_of_edges(evaluation: Evaluation, position: int) -> Iterator[list[int]]:
    """Places of edges among those of a target: none, one, and several."""
    size = int(evaluation.pairs.ptr[position + 1] - evaluation.pairs.ptr[position])
    order = torch.randperm(size, generator=torch.Generator().manual_seed(position)).tolist()
    yield from ([], order[:1], order[:2], order[: size // 3], order[: size // 2], order)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_browser_computes_what_the_model_predicts(driver: Chrome) -> None:
    script = """
        const [source, content, questions, done] = arguments;
        const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        import(address).then(({ Content, Network }) => {
          const [page, network] = [new Content(content), new Network(content.network)];
          return questions.map(([place, cut, protocol]) => network.answer(page.target(place), cut, protocol));
        }).then(done, (error) => done(String(error)));
    """
    driver.get("about:blank")
    compared = 0
    for name, (_, protocols) in NETS.items():
        evaluation = explained(name)
        content = json_ready(page_content(evaluation, has_network=True))
        assert content["withoutNetwork"] == "", name
        position_of = {int(target): position for position, target in enumerate(evaluation.targets.tolist())}
        for place, target in enumerate(content["targets"]):
            position = position_of[target["id"]]
            begin, sets = int(evaluation.pairs.ptr[position]), list(sets_of_edges(evaluation, position))
            edges = [[int(evaluation.pairs.edges[begin + edge]) for edge in cut] for cut in sets]
            for protocol in protocols:
                questions = [(place, cut, protocol) for cut in sets]
                answers = driver.execute_async_script(script, asset("explorer.js"), content, questions)
                assert not isinstance(answers, str), answers
                expected = of_model(evaluation, position, edges, protocol)
                for key, shares in (("now", expected[:1].expand_as(expected)), ("then", expected)):
                    computed = torch.tensor([answer[key] for answer in answers], dtype=torch.float64)
                    torch.testing.assert_close(computed, shares, atol=1e-6, rtol=0, msg=name)
                compared += len(sets)
    assert compared > 400


def test_several_deleted_edges_are_deleted_from_the_graph() -> None:
    """The computation that is compared with the model at writing is itself compared with the network on fewer edges."""
    from attree.report.drawn_targets import DrawnPart
    from attree.report.page.network import PageNetwork

    data, net = random_graph(), randomize(GAT(CHANNELS, 3, heads=2), seed=1, scale=0.6).eval()
    evaluation = evaluate(net, data, TARGETS, ["random"], ["removal"])
    network, pairs, parts = PageNetwork.of(evaluation), evaluation.pairs, []
    for position, target in enumerate(TARGETS):
        edges = pairs.edges[int(pairs.ptr[position]) : int(pairs.ptr[position + 1])].numpy()
        part = DrawnPart.of(pairs.graph, edges, torch.zeros(len(edges)).bool().numpy(), target)
        assert network.add(position, part) is not None
        parts.append(part)
    for position, (target, part) in enumerate(zip(TARGETS, parts, strict=True)):
        proper = (part.source != part.destination).nonzero()[0][:4]
        deleted = pairs.graph.edge_index[:, part.edges[proper]].T.tolist()
        is_left = torch.tensor([ends not in deleted for ends in data.edge_index.T.tolist()])
        with torch.no_grad():
            expected = net.double()(data.x.double(), data.edge_index[:, is_left])[target].softmax(-1)
        net.float()
        shares = network.predict(position, proper, "removal")
        torch.testing.assert_close(torch.from_numpy(shares), expected, atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (ReadsDegrees(), "differs from the model"),
        (GIN(CHANNELS, 3), "does not compute GINConv"),
        (PlainGAT(CHANNELS, 8, 2, out_channels=3, norm="layer_norm"), "what stands between convs.0 and convs.1"),
        (PlainGCN(CHANNELS, 8, 2, out_channels=3, jk="cat"), "what follows its last layer"),
        (PlainGAT(CHANNELS, 8, 2, out_channels=3, residual=True), "does not compute GATConv"),
    ],
)
def test_a_page_that_cannot_compute_the_model_says_why(net: nn.Module, reason: str) -> None:
    net = randomize(net, seed=1, scale=0.6).eval()
    content = page_content(evaluate(net, random_graph(), TARGETS, ["random"], ["removal"]), has_network=True)
    assert content["network"] is None
    assert reason in content["withoutNetwork"]
    assert not any("inputs" in target for target in content["targets"])


def test_targets_beyond_the_page_have_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    import attree.report.page.network as network

    evaluation = explained("GAT")
    whole = page_content(evaluation, has_network=True)
    rows = whole["network"]["rows"]
    monkeypatch.setattr(network, "MOST_BYTES", rows * 16 * 4 - 1)
    part = page_content(evaluation, has_network=True)
    assert [("inputs" in target) for target in part["targets"]] == [True, True, False]
    assert part["network"]["rows"] < rows
    few = page_content(
        evaluation, has_network=True, max_edges=3
    )  # a neighbourhood that is not whole cannot be computed
    assert few["network"] is None
    assert "too large" in few["withoutNetwork"]


@pytest.mark.parametrize("name", ["GAT", "GATv2", "SAGE"])
def test_the_class_after_a_reduction_is_known_where_the_evaluation_has_no_probabilities(name: str) -> None:
    evaluation = explained(name)
    assert all(reduction.probability is None for reduction in evaluation.reductions.values())
    changes = 0
    for target in page_content(evaluation, has_network=True)["targets"]:
        position = evaluation.targets.tolist().index(target["id"])
        begin, end = evaluation.pairs.ptr[position : position + 2].tolist()
        for protocol, effect in target["effects"].items():
            edges = evaluation.pairs.edges[begin:end].tolist()
            shares = of_model(evaluation, position, [[edge] for edge in edges], protocol)
            changes += int(evaluation.reductions[protocol].changed[begin:end].sum())
            assert unpacked(effect["after"]).tolist() == shares.argmax(dim=1).tolist()
            assert unpacked(effect["confidence"]) == pytest.approx(shares.amax(dim=1).numpy(), abs=1e-6)
    assert changes > 0


def unpacked(packed: dict[str, str]) -> Any:
    ((kind, text),) = packed.items()
    return np.frombuffer(base64.b64decode(text), {"u2": "<u2", "f4": "<f4"}[kind])


def test_a_page_without_a_network_or_with_a_server_carries_none() -> None:
    evaluation = explained("GAT")
    assert page_content(evaluation)["network"] is None
    assert page_content(evaluation, is_live=True, has_network=True)["network"] is None
    json.dumps(json_ready(page_content(evaluation, has_network=True)))
