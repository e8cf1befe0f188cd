"""Saliency, Guided Backpropagation and Integrated Gradients against PyG's own explainers on the whole graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import CaptumExplainer, Explainer, ModelConfig
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.nn import GATConv, TransformerConv, global_add_pool

from attree.attribution import GuidedBackprop, IntegratedGradients, Saliency
from attree.attribution.posthoc import guided
from attree.models import GAT, GATv2, SuperGAT
from attree.subject import Subject
from helpers.graphs import NODES, messy_graph, randomize

X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
EDGES = messy_graph(0)


class Wide(nn.Module):
    """A user's net: attention without added self-loops, edge attributes, a residual, an MLP head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GATConv(5, 4, heads=3, edge_dim=2, add_self_loops=False)
        self.second = TransformerConv(12, 4, heads=2, edge_dim=2)
        self.head = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index, edge_attr))
        return self.head(self.second(x, edge_index, edge_attr) + x[:, :8])


class Normed(nn.Module):
    """Normalises over all nodes, so that no neighbourhood gives the outputs of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(5, 4), GATConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        return self.second((x - x.mean(dim=0)) / (x.std(dim=0) + 1e-5), edge_index)


NETS: dict[str, tuple[nn.Module, dict[str, Tensor]]] = {
    "gat": (GAT(5, 3, 4, num_layers=2), {}),
    "gat, 3 layers, heads": (GAT(5, 3, 4, num_layers=3, heads=3), {}),
    "gatv2, heads averaged": (GATv2(5, 3, 4, heads=2, concat=False), {}),
    "supergat": (SuperGAT(5, 3, 4, heads=2), {}),
    "pyg, jumping knowledge": (PyGGAT(5, 4, 3, out_channels=3, jk="cat", heads=2), {}),
    "user's": (Wide(), {"edge_attr": torch.randn(EDGES.shape[1], 2, dtype=torch.float64)}),
    "not local": (Normed(), {}),
}


def pyg_mask(model: nn.Module, method: str, target: int, **kwargs: Any) -> Tensor:
    explainer = Explainer(
        model,
        CaptumExplainer(method),
        explanation_type="model",
        edge_mask_type="object",
        model_config=ModelConfig("multiclass_classification", task_level="node", return_type="raw"),
    )
    mask = explainer(X, EDGES, index=target, **kwargs).edge_mask
    assert isinstance(mask, Tensor)
    return mask.detach().double()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", [Saliency(), IntegratedGradients(), Saliency(absolute=False)])
def test_equal_to_pyg_on_the_whole_graph(name: str, method: Saliency | IntegratedGradients) -> None:
    net, kwargs = NETS[name]
    model = randomize(net, 1).double().eval()
    subject = Subject.of(model, X, EDGES, **kwargs)
    result = method.attribute(subject)
    proper = EDGES[0] != EDGES[1]
    # At a mask of ones, input times gradient is the gradient with its sign.
    captum = {"saliency": "Saliency" if getattr(method, "absolute", False) else "InputXGradient"}
    for target in (3, 10) if isinstance(method, IntegratedGradients) else (0, 3, 9, 10):
        expected = pyg_mask(model, captum.get(method.name, "IntegratedGradients"), target, **kwargs)
        assert torch.allclose(result.edge_mask(target)[proper], expected[proper], atol=1e-5), target
    assert float(result.scores.abs().max()) > 1e-3


def test_given_self_loops_score_the_sum_of_what_pyg_says() -> None:
    net, kwargs = NETS["user's"]
    model = randomize(net, 1).double().eval()
    result = IntegratedGradients().attribute(Subject.of(model, X, EDGES, **kwargs), 4)
    expected = pyg_mask(model, "IntegratedGradients", 4, **kwargs)
    loops = ((EDGES[0] == 4) & (EDGES[1] == 4)).nonzero().view(-1)
    assert loops.numel() == 2
    assert torch.allclose(result.edge_mask(4)[loops], expected[loops].sum().expand(2), atol=1e-5)


def test_masked_self_loops_are_those_of_a_graph_that_has_them() -> None:
    model = randomize(GAT(5, 3, 4, heads=2), 1).double().eval()
    edges = EDGES[:, EDGES[0] != EDGES[1]]
    looped = torch.cat([edges, torch.arange(NODES).expand(2, -1)], dim=1)
    plain = [method.attribute(Subject.of(model, X, edges)) for method in (Saliency(self_loops=True),
             IntegratedGradients(self_loops=True))]  # fmt: skip
    for conv in model.convs:
        conv.add_self_loops = False
    expected = [method.attribute(Subject.of(model, X, looped)) for method in (Saliency(), IntegratedGradients())]
    for ours, theirs in zip(plain, expected, strict=True):
        for target in range(NODES):
            assert torch.allclose(ours.dense(target), theirs.dense(target), atol=1e-12)
            assert float(ours.dense(target)[edges.shape[1] :].abs().sum()) > 0


class ReluNet(nn.Module):
    """A net of the kind that Captum can guide."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(5, 6, heads=2), GATConv(12, 6)
        self.act, self.act2, self.head = nn.ReLU(), nn.ReLU(), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.act(self.first(x, edge_index))
        return self.head(self.act2(self.second(x, edge_index)))


def test_guided_equals_captum_where_it_guides() -> None:
    model = randomize(ReluNet(), 1).double().eval()
    result = GuidedBackprop().attribute(Subject.of(model, X, EDGES))
    plain = Saliency(absolute=False).attribute(Subject.of(model, X, EDGES))
    proper = EDGES[0] != EDGES[1]
    for target in range(NODES):
        expected = pyg_mask(model, "GuidedBackprop", target)
        assert torch.allclose(result.edge_mask(target)[proper], expected[proper], atol=1e-5), target
    assert not torch.allclose(result.scores, plain.scores, atol=1e-3)


@pytest.mark.parametrize("activation", [F.elu, nn.ELU(), nn.LeakyReLU(), F.gelu, nn.ELU(inplace=True), nn.PReLU()])
def test_guided_differs_from_the_gradient_for_every_activation(activation: Any) -> None:
    model = randomize(GAT(5, 3, 4, heads=2), 1).double().eval()
    model.activation = activation.double() if isinstance(activation, nn.Module) else activation
    subject = Subject.of(model, X, EDGES)
    guided_scores = GuidedBackprop().attribute(subject).scores
    assert not torch.allclose(guided_scores, Saliency(absolute=False).attribute(subject).scores, atol=1e-3)


@pytest.mark.parametrize("act", [torch.relu, torch.Tensor.relu, F.relu, lambda x: F.elu(input=x, alpha=0.5), F.selu])
def test_guidance_clamps_what_activations_pass_back(act: Any) -> None:
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    weight = torch.tensor([1.0, -1.0, 2.0])
    (plain,) = torch.autograd.grad((act(x) * weight).sum(), x)
    with guided(GATConv(1, 1)):
        (gradient,) = torch.autograd.grad((act(x) * weight).sum(), x)
    assert torch.allclose(gradient, plain.clamp(min=0))


@pytest.mark.parametrize("act", [torch.Tensor.relu_, F.elu_, lambda x: F.relu(x, inplace=True)])
def test_guidance_of_activations_that_overwrite_their_input(act: Any) -> None:
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    weight = torch.tensor([1.0, -1.0, 2.0])
    with guided(GATConv(1, 1)):
        y = x * 1
        act(y)
        (gradient,) = torch.autograd.grad((y * weight).sum(), x)
    assert float(y[0].detach()) <= 0 if act is F.elu_ else float(y[0].detach()) == 0
    assert gradient.tolist()[1:] == [0.0, 2.0]


def test_integrated_gradients_add_up_to_the_difference_of_outputs() -> None:
    model = randomize(GAT(5, 3, 4, num_layers=3, heads=2), 1, 0.5).double().eval()
    result = IntegratedGradients(self_loops=True).attribute(Subject.of(model, X, EDGES))
    logits = model(X, EDGES).detach()
    bias = model.convs[-1].bias.detach()  # what is left without any message
    for target in range(NODES):
        k = int(logits[target].argmax())
        # ELU has a kink, which costs the quadrature some digits.
        assert float(result[target].scores.sum()) == pytest.approx(float(logits[target, k] - bias[k]), abs=1e-3)


def test_graphs_of_a_batch() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.conv2 = GATConv(5, 4, heads=2), GATConv(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return global_add_pool(self.conv2(F.elu(self.conv(x, edge_index)), edge_index), batch)

    model = randomize(Net(), 1).double().eval()
    graphs = [Data(x=X + k, edge_index=messy_graph(k)) for k in range(3)]
    subject = Subject.of_data(model, Batch.from_data_list(graphs))
    result = Saliency().attribute(subject, [0, 2])
    ptr = np.cumsum([0, *(graph.edge_index.shape[1] for graph in graphs)])
    for target in (0, 2):
        graph = graphs[target]
        explainer = Explainer(
            model,
            CaptumExplainer("Saliency"),
            explanation_type="model",
            edge_mask_type="object",
            model_config=ModelConfig("multiclass_classification", task_level="graph", return_type="raw"),
        )
        batch = torch.zeros(NODES, dtype=torch.int64)
        expected = explainer(graph.x, graph.edge_index, index=0, batch=batch).edge_mask.double()
        proper = graph.edge_index[0] != graph.edge_index[1]
        ours = result.edge_mask(target)[ptr[target] : ptr[target + 1]]
        assert torch.allclose(ours[proper], expected[proper], atol=1e-5)


class Links(nn.Module):
    """Three kinds of links between pairs of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = GAT(5, 6, 4, heads=2), nn.Linear(12, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        ends = self.net(x, edge_index)[edge_label_index]
        return self.head(torch.cat([*ends], dim=-1))


@pytest.mark.parametrize(
    ("method", "captum"), [(Saliency(), "Saliency"), (IntegratedGradients(), "IntegratedGradients")]
)
def test_links_as_pyg_explains_them(method: Saliency | IntegratedGradients, captum: str) -> None:
    model = randomize(Links(), 1).double().eval()
    pairs = torch.tensor([[0, 3, 9, 2, 4], [1, 3, 0, 10, 5]])
    result = method.attribute(Subject.of(model, X, EDGES, edge_label_index=pairs))
    explainer = Explainer(
        model,
        CaptumExplainer(captum),
        explanation_type="model",
        edge_mask_type="object",
        model_config=ModelConfig("multiclass_classification", task_level="edge", return_type="raw"),
    )
    proper = EDGES[0] != EDGES[1]
    for link in range(pairs.shape[1]):
        expected = explainer(X, EDGES, index=link, edge_label_index=pairs).edge_mask.double()
        assert torch.allclose(result.edge_mask(link)[proper], expected[proper], atol=1e-5), link


def test_one_logit_explains_the_predicted_side() -> None:
    model = randomize(GAT(5, 1, 4, heads=2), 1).double().eval()
    result = Saliency(absolute=False).attribute(Subject.of(model, X, EDGES))
    proper = EDGES[0] != EDGES[1]
    logit = model(X, EDGES).detach().view(-1)
    for target in range(NODES):
        explainer = Explainer(
            model,
            CaptumExplainer("GuidedBackprop"),
            explanation_type="model",
            edge_mask_type="object",
            model_config=ModelConfig("regression", task_level="node", return_type="raw"),
        )
        # The logarithm of the predicted side's probability, by the chain rule.
        factor = torch.sign(logit[target]) * torch.sigmoid(-logit[target].abs())
        expected = explainer(X, EDGES, index=target).edge_mask.double() * factor
        assert torch.allclose(result.edge_mask(target)[proper], expected[proper], atol=1e-6)


def test_no_edges_and_no_targets() -> None:
    model = GAT(5, 3, 4).double()
    result = IntegratedGradients().attribute(Subject.of(model, X, EDGES[:, :0]), [3])
    assert len(result) == 1
    assert result.scores.numel() == 0
    assert len(Saliency().attribute(Subject.of(model, X, EDGES), torch.zeros(0, dtype=torch.int64))) == 0
