"""Post-hoc methods on heterogeneous graphs and on links, against PyG's own explainers on the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.explain import CaptumExplainer, Explainer, ModelConfig
from torch_geometric.explain import GNNExplainer as PyGGNNExplainer
from torch_geometric.explain.algorithm import captum
from torch_geometric.explain.algorithm.utils import set_hetero_masks
from torch_geometric.nn import GATConv, GATv2Conv, HANConv, HGTConv, TransformerConv, to_hetero

import attree
from attree.attribution import METHODS, GNNExplainer, GuidedBackprop, IntegratedGradients, Saliency, strongest_paths
from attree.attribution.posthoc import TargetCopies, frozen_subject, masked_run
from attree.errors import UnsupportedModelError
from attree.faithfulness import AttentionGradient, Occlusion, ReductionProtocol
from attree.subject import Head, Subject
from helpers.graphs import NODES, messy_graph, randomize
from helpers.hetero import CHANNELS, METADATA, RELATIONS, EdgeType, HeteroNet, Plain, Stacked, hetero_graph

DATA = hetero_graph()
TARGETS = (0, 2, 5)
CITES = ("paper", "cites", "paper")
PAIRS = torch.tensor([[0, 3, 4, 1, 0], [6, 2, 5, 0, 6]])
NUMBER = Head(mode="regression")


class Papers(nn.Module):
    """The outputs of papers of a network that returns dicts, through an activation that Captum guides, and a head."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.act, self.head = encoder, nn.ReLU(), nn.LazyLinear(3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> Tensor:
        return self.head(self.act(self.encoder(x_dict, edge_index_dict)["paper"]))


class AuthorOfPaper(nn.Module):
    """Links of authors and papers: the dot product of their embeddings."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor], edge_label_index: Tensor
    ) -> Tensor:
        z = self.encoder(x_dict, edge_index_dict)
        return (z["author"][edge_label_index[0]] * z["paper"][edge_label_index[1]]).sum(-1)


class Links(nn.Module):
    """Links of a graph of one type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(5, 4), GATConv(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.last(F.elu(self.first(x, edge_index)), edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


def ready(model: nn.Module, *args: Any) -> nn.Module:
    """A model in double precision with its lazy layers made and random weights."""
    model = model.double()
    model(DATA.x_dict, DATA.edge_index_dict, *args)
    return randomize(model, 1).double().eval()


def hetero_net(name: str) -> nn.Module:
    match name:
        case "to_hetero":
            return to_hetero(Plain(), METADATA)
        case "GATConv, sum, with loops":
            return HeteroNet(GATConv, "sum", loops=True, heads=1)
        case "GATv2Conv, mean":
            return HeteroNet(GATv2Conv, "mean", add_self_loops=False)
        case _:
            return HeteroNet(TransformerConv, "cat")


NETS = ("to_hetero", "GATConv, sum, with loops", "GATv2Conv, mean", "TransformerConv, cat")


@contextmanager
def captum_without_sigmoid(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyG sends the masks of types through a sigmoid, also where Captum chose them: a mask of ones weakens messages."""
    with monkeypatch.context() as patch:
        patch.setattr(captum, "set_hetero_masks", partial(set_hetero_masks, apply_sigmoid=False))
        yield


def pyg_mask(
    algorithm: Any, model: nn.Module, x: Any, edges: Any, target: int, level: str = "node", **kwargs: Any
) -> Any:
    """PyG's edge mask of one target; of a heterogeneous graph, the masks of all types one after the other."""
    mode, return_type = ("multiclass_classification", "raw") if level == "node" else ("regression", "raw")
    explainer = Explainer(
        model,
        algorithm,
        explanation_type="model",
        edge_mask_type="object",
        model_config=ModelConfig(mode, task_level=level, return_type=return_type),
    )
    found = explainer(x, edges, index=target, **kwargs)
    if not isinstance(edges, dict):
        return found.edge_mask.detach()
    return torch.cat([found[kind].edge_mask.detach() for kind in RELATIONS])


def listed(result: Any, target: int) -> Tensor:
    """Our masks of all types one after the other."""
    return torch.cat([result.edge_mask(target)[kind] for kind in RELATIONS])


def own_loops() -> Tensor:
    """Which edges are self-loops that a relation was given with: GATConv puts its own in their place."""
    return torch.cat([(DATA[kind].edge_index[0] == DATA[kind].edge_index[1]) & (kind == CITES) for kind in RELATIONS])


CAPTUM = {
    "Saliency": Saliency(),
    "InputXGradient": Saliency(absolute=False),
    "IntegratedGradients": IntegratedGradients(steps=50),
    "GuidedBackprop": GuidedBackprop(),
}


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_types_equal_captum_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready(Papers(hetero_net(name)))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    proper = ~own_loops() if "loops" in name else torch.ones_like(own_loops())
    # Captum guides modules alone: the functional activations inside the networks are guided by us, not by it.
    for method, ours in ((key, one) for key, one in CAPTUM.items() if key != "GuidedBackprop"):
        result = ours.attribute(subject, list(TARGETS))
        with captum_without_sigmoid(monkeypatch):
            for target in TARGETS[-1:] if method == "IntegratedGradients" else TARGETS:
                theirs = pyg_mask(CaptumExplainer(method), model, DATA.x_dict, DATA.edge_index_dict, target)
                # PyG's masks are in float32.
                assert torch.allclose(listed(result, target)[proper], theirs.double()[proper], atol=1e-5), method
        assert float(result.scores.abs().max()) > 1e-3


def test_guided_backprop_of_types_equals_captum_s_where_it_guides(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready(Papers(ReluLayers(GATConv)))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    result, plain = (one.attribute(subject, list(TARGETS)) for one in (GuidedBackprop(), Saliency(absolute=False)))
    with captum_without_sigmoid(monkeypatch):
        for target in TARGETS:
            theirs = pyg_mask(CaptumExplainer("GuidedBackprop"), model, DATA.x_dict, DATA.edge_index_dict, target)
            assert torch.allclose(listed(result, target), theirs.double(), atol=1e-5)
    assert not torch.allclose(result.scores, plain.scores, atol=1e-3)


class ReluLayers(nn.Module):
    """Two layers of one convolution per relation with `nn.ReLU` between them."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        net = HeteroNet(conv, "sum")
        self.convs, self.act = net.convs, nn.ReLU()

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> dict[str, Tensor]:
        first, last = self.convs
        return last({kind: self.act(x) for kind, x in first(x_dict, edge_index_dict).items()}, edge_index_dict)


def test_what_pyg_computes_through_its_sigmoid() -> None:
    """PyG as it is takes the gradient where all messages are weakened to sigmoid(1), through the sigmoid."""
    model = ready(Papers(hetero_net("TransformerConv, cat")))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    theirs = pyg_mask(CaptumExplainer("InputXGradient"), model, DATA.x_dict, DATA.edge_index_dict, 2).double()
    ones = torch.ones(sum(RELATIONS.values()), dtype=torch.float64, requires_grad=True)
    with frozen_subject(subject) as frozen, masked_run(frozen) as run:
        whole = TargetCopies.whole(frozen, torch.tensor([2]))
        (ours,) = torch.autograd.grad(run.explained(whole, run.logits(whole, ones.sigmoid())).sum(), ones)
    assert torch.allclose(ours, theirs, atol=1e-5)


class StartedGNNExplainer(PyGGNNExplainer):
    """PyG's, from given first values."""

    first: Any

    def _initialize_masks(self, *args: Any, **kwargs: Any) -> None:
        super()._initialize_masks(*args, **kwargs)
        if self.is_hetero:
            self.edge_mask = {kind: nn.Parameter(one.clone()) for kind, one in self.first.items()}
        else:
            self.edge_mask = nn.Parameter(self.first.clone())


SETTINGS = {"epochs": 20, "lr": 0.05, "edge_size": 0.02, "edge_ent": 0.7}


@pytest.mark.parametrize(
    "name", [NETS[1], *(pytest.param(name, marks=pytest.mark.long) for name in (NETS[0], *NETS[2:]))]
)
def test_gnn_explainer_of_types_learns_what_pyg_s_learns(name: str) -> None:
    model = ready(Papers(hetero_net(name)))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    method = GNNExplainer(**SETTINGS, seed=3)
    result = method.attribute(subject, list(TARGETS))
    proper = ~own_loops() if "loops" in name else torch.ones_like(own_loops())
    for target in TARGETS:
        algorithm = StartedGNNExplainer(**SETTINGS)
        first = method.first_mask(TargetCopies.whole(subject, torch.tensor([target])), torch.float64)
        assert subject.graph.types is not None
        algorithm.first = subject.graph.types.split_edges(first)
        theirs = pyg_mask(algorithm, model, DATA.x_dict, DATA.edge_index_dict, target)
        assert torch.allclose(listed(result, target)[proper], theirs[proper], atol=1e-6), target
    assert float(result.scores.max()) > 0.1


def test_gnn_explainer_of_types_starts_from_pyg_s_distribution() -> None:
    model = ready(Papers(hetero_net("to_hetero")))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    firsts = [
        GNNExplainer(seed=seed).first_mask(TargetCopies.whole(subject, torch.tensor([0])), torch.float64)
        for seed in range(100)
    ]
    # 7 papers are the largest type: gain sqrt(2) times sqrt(2 / (2 * 7)), as PyG has it.
    assert float(torch.cat(firsts).std()) == pytest.approx((2 / 7) ** 0.5, rel=0.05)


@pytest.mark.parametrize("conv", [HGTConv, HANConv])
def test_layers_that_pyg_cannot_mask_are_masked_edge_by_edge(conv: Any) -> None:
    """PyG's explainers do not see the edges of HGT and HAN; the reference is a central difference on the messages."""
    model = randomize(Stacked(*(conv(CHANNELS, CHANNELS, METADATA, heads=2) for _ in range(2))), 1).double().eval()
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    result, step = Saliency(absolute=False).attribute(subject, list(TARGETS)), 1e-6
    classes = model(DATA.x_dict, DATA.edge_index_dict).argmax(dim=1)
    total = sum(RELATIONS.values())
    expected = torch.zeros(total, len(TARGETS), dtype=torch.float64)
    for edge in range(0, total, 3):
        low, high = (masked_output(model, edge, 1 + sign * step) for sign in (-1, 1))
        for place, target in enumerate(TARGETS):
            expected[edge, place] = (high - low)[target, classes[target]] / (2 * step)
    for place, target in enumerate(TARGETS):
        assert torch.allclose(listed(result, target)[::3], expected[::3, place], atol=1e-7)
    assert float(expected.abs().max()) > 1e-2


def masked_output(model: nn.Module, edge: int, factor: float) -> Tensor:
    """The output with the messages of one edge of the union multiplied in every layer, by hooks on PyG's messages."""
    starts = torch.tensor([0, *RELATIONS.values()]).cumsum(0).tolist()
    handles, seen = [], 0

    def scale(conv: nn.Module, inputs: Any, messages: Tensor) -> Tensor:
        nonlocal seen
        # HGT sends all messages at once, HAN those of one relation after the other.
        first = 0 if messages.shape[0] == starts[-1] else starts[seen % len(RELATIONS)]
        seen += 1
        mask = torch.ones(messages.shape[0], dtype=messages.dtype)
        if 0 <= edge - first < mask.numel():
            mask[edge - first] = factor
        return messages * mask.view(-1, *[1] * (messages.dim() - 1))

    for conv in model.convs:  # type: ignore[union-attr]
        handles.append(conv.register_message_forward_hook(scale))
    try:
        with torch.no_grad():
            output: Tensor = model(DATA.x_dict, DATA.edge_index_dict)
        return output
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("method", ["Saliency", "IntegratedGradients"])
def test_links_between_types_equal_captum_s(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready(AuthorOfPaper(hetero_net("GATv2Conv, mean")), PAIRS)
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict, edge_label_index=PAIRS, head=NUMBER)
    result = CAPTUM[method].attribute(subject)
    with captum_without_sigmoid(monkeypatch):
        for target in (1, 4) if method == "IntegratedGradients" else range(PAIRS.shape[1]):
            theirs = pyg_mask(
                CaptumExplainer(method),
                model,
                DATA.x_dict,
                DATA.edge_index_dict,
                target,
                "edge",
                edge_label_index=PAIRS,
            )
            assert torch.allclose(listed(result, target), theirs.double(), atol=1e-5)


def test_links_of_one_type_equal_pyg_s() -> None:
    x = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edges, pairs = messy_graph(0), torch.tensor([[0, 3, 9, 4], [1, 3, 10, 0]])
    model = randomize(Links(), 1).double().eval()
    subject = Subject.of(model, x, edges, edge_label_index=pairs, head=NUMBER)
    proper = edges[0] != edges[1]
    found = {name: CAPTUM[name].attribute(subject) for name in ("Saliency", "IntegratedGradients")}
    learned = (method := GNNExplainer(**SETTINGS, seed=3)).attribute(subject)
    for target in range(pairs.shape[1]):  # Captum first: PyG's GNNExplainer leaves parameters that break its gradients
        for name, result in found.items():
            theirs = pyg_mask(CaptumExplainer(name), model, x, edges, target, "edge", edge_label_index=pairs)
            assert torch.allclose(result.edge_mask(target)[proper], theirs.double()[proper], atol=1e-5)
    for target in range(pairs.shape[1]):
        algorithm = StartedGNNExplainer(**SETTINGS)
        algorithm.first = method.first_mask(TargetCopies.whole(subject, torch.tensor([target])), torch.float64)
        theirs = pyg_mask(algorithm, model, x, edges, target, "edge", edge_label_index=pairs)
        assert torch.allclose(learned.edge_mask(target)[proper], theirs[proper], atol=1e-6)


@pytest.mark.parametrize("name", ["GATConv, sum, with loops", "HGT"])
def test_the_attention_gradient_of_types_is_the_derivative_of_the_reduction(name: str) -> None:
    if name == "HGT":
        layers = (HGTConv(CHANNELS, CHANNELS, METADATA, heads=2) for _ in range(2))
        model = randomize(Stacked(*layers), 1).double().eval()
    else:
        model = ready(Papers(hetero_net(name)))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    result, step = AttentionGradient("weight").attribute(subject, list(TARGETS)), 1e-3
    weaker = ReductionProtocol("weaker", "the edge's weight is a little smaller", weight_factor=1 - step)
    stronger = ReductionProtocol("stronger", "the edge's weight is a little larger", weight_factor=1 + step)
    down, up = (Occlusion(protocol).attribute(subject, list(TARGETS)) for protocol in (weaker, stronger))
    # The error of a central difference is of order step^2, and effects are multiples of 1e-9.
    for target in TARGETS:
        slope = (down.dense(target) - up.dense(target)) / (2 * step)
        assert torch.allclose(result.dense(target), slope, atol=10 * step**2)
    assert float(result.scores.abs().max()) > 1e-3


def test_evaluate_takes_them_on_types() -> None:
    model = ready(Papers(hetero_net("GATv2Conv, mean")))
    methods = ["gatt", "saliency", "guided_backprop", "integrated_gradients", "gnn_explainer", "attention_gradient"]
    result = attree.evaluate(model, DATA, methods=methods, targets=list(TARGETS))
    assert set(result.pair_scores) == set(methods)


@pytest.mark.parametrize("name", ["pg_explainer", "graph_mask", "fastdnx"])
def test_refused_by_name(name: str) -> None:
    model = ready(Papers(hetero_net("GATv2Conv, mean")))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    with pytest.raises(UnsupportedModelError, match=rf"{METHODS[name].label}.*node types paper, author, term"):
        METHODS[name]().attribute(subject, [0])


def test_a_mask_of_features_is_refused_on_types() -> None:
    model = ready(Papers(hetero_net("GATv2Conv, mean")))
    with pytest.raises(UnsupportedModelError, match="a dict by node type"):
        GNNExplainer(feature_mask=True).attribute(Subject.of(model, DATA.x_dict, DATA.edge_index_dict), [0])


def test_paths_go_through_types() -> None:
    model = ready(Papers(ReluLayers(GATConv)))
    subject = Subject.of(model, DATA.x_dict, DATA.edge_index_dict)
    ends = {tuple(pair) for pair in subject.graph.original_edge_index.T.tolist()}
    paths = strongest_paths(subject, 3)
    assert paths
    assert all(path.nodes[0] == 3 and set(pairwise(reversed(path.nodes))) <= ends for path in paths)
