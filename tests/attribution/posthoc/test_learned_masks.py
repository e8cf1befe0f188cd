"""GNNExplainer and PGExplainer against PyG's own classes on the whole graph, from the same first values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, ModelConfig
from torch_geometric.explain import GNNExplainer as PyGGNNExplainer
from torch_geometric.explain import PGExplainer as PyGPGExplainer
from torch_geometric.utils import k_hop_subgraph

from attree.attribution import GNNExplainer, PGExplainer, subject_pairs
from attree.attribution.posthoc import TargetCopies, masked_run, pg_explainer
from attree.models import GAT, GATv2
from attree.subject import Subject
from helpers.graphs import NODES, messy_graph, randomize

X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0))
EDGES = messy_graph(0)
CONFIG = ModelConfig("multiclass_classification", task_level="node", return_type="raw")


class StartedGNNExplainer(PyGGNNExplainer):
    """PyG's, from given first values."""

    first: Tensor
    first_of_nodes: Tensor

    def _initialize_masks(self, *args: Any, **kwargs: Any) -> None:
        super()._initialize_masks(*args, **kwargs)
        self.edge_mask = nn.Parameter(self.first.clone())
        if self.node_mask is not None:
            self.node_mask = nn.Parameter(self.first_of_nodes.clone())


@pytest.mark.parametrize("net", [GAT(5, 3, 4, heads=2), GATv2(5, 3, 4, num_layers=3)])
@pytest.mark.parametrize("features", [False, True])
def test_gnn_explainer_learns_what_pyg_learns_one_target_at_a_time(net: nn.Module, features: bool) -> None:
    model = randomize(net, 1).eval()
    subject = Subject.of(model, X, EDGES)
    method = GNNExplainer(epochs=40, lr=0.05, edge_size=0.02, edge_ent=0.7, feature_mask=features, seed=3)
    targets = [target for target in range(9) if bool(((EDGES[1] == target) & (EDGES[0] != target)).any())][:4]
    result = method.attribute(subject, targets)
    proper = EDGES[0] != EDGES[1]
    for target in targets:
        algorithm = StartedGNNExplainer(epochs=40, lr=0.05, edge_size=0.02, edge_ent=0.7)
        whole = TargetCopies.whole(subject, torch.tensor([target]))
        algorithm.first, algorithm.first_of_nodes = (
            method.first_mask(whole, torch.float32),
            method.first_feature_mask(whole),
        )
        explainer = Explainer(
            model,
            algorithm,
            explanation_type="model",
            node_mask_type="attributes" if features else None,
            edge_mask_type="object",
            model_config=CONFIG,
        )
        expected = explainer(X, EDGES, index=target).edge_mask
        assert isinstance(expected, Tensor)
        assert torch.allclose(result.edge_mask(target)[proper], expected[proper], atol=1e-4), target
        assert float(expected.max()) > 0.1


def test_gnn_explainer_starts_from_pyg_s_distribution() -> None:
    edges = torch.randint(0, 400, (2, 5000), generator=torch.Generator().manual_seed(0))
    subject = Subject.of(GAT(5, 3, 4), torch.randn(400, 5), edges)
    first = GNNExplainer().first_mask(TargetCopies.whole(subject, torch.tensor([0])), torch.float64)
    algorithm = PyGGNNExplainer()
    Explainer(subject.model, algorithm, explanation_type="model", edge_mask_type="object", model_config=CONFIG)
    algorithm._initialize_masks(subject.call.x, edges)
    assert float(first.mean()) == pytest.approx(0, abs=0.003)
    assert float(first.std()) == pytest.approx(float(algorithm.edge_mask.detach().std()), rel=0.05)


def test_scores_depend_on_seed_target_and_edge_but_not_on_company() -> None:
    model = randomize(GAT(5, 3, 4, heads=2), 1).eval()
    subject = Subject.of(model, X, EDGES)
    alone = GNNExplainer(epochs=5).attribute(subject, [0])
    together = GNNExplainer(epochs=5).attribute(subject)
    assert torch.allclose(alone.dense(0), together.dense(0), atol=1e-6)
    assert not torch.allclose(alone.dense(0), GNNExplainer(epochs=5, seed=1).attribute(subject, 0).dense(0), atol=1e-3)


def test_pg_explainer_scores_and_loss_are_pyg_s() -> None:
    """From the same network, embeddings and random numbers, on a target whose neighbourhood is the whole graph."""
    # A complete graph without self-loops: every node is a neighbour.
    edges = torch.cartesian_prod(torch.arange(5), torch.arange(5)).T
    edges = edges[:, edges[0] != edges[1]]
    x = X[:5]
    model = randomize(GAT(5, 3, 4, heads=2), 1).eval()
    subject = Subject.of(model, x, edges)
    algorithm = PyGPGExplainer(epochs=2, lr=0.01)
    explainer = Explainer(
        model, algorithm, explanation_type="phenomenon", edge_mask_type="object", model_config=CONFIG
    )  # fmt: skip
    classes = model(x, edges).argmax(dim=1)
    torch.manual_seed(0)
    losses = [algorithm.train(epoch, model, x, edges, target=classes, index=2) for epoch in range(2)]

    method = PGExplainer(epochs=2, lr=0.01, num_train=1)
    fresh = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 1))
    trained = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 1))
    trained.load_state_dict(algorithm.mlp.state_dict())
    embedding = subject.attention.embedding
    assert embedding is not None
    pairs = subject_pairs(subject, [2])
    ours = method.score(subject, pg_explainer.Fitted(trained, embedding), pairs)
    expected = explainer(x, edges, target=classes, index=2).edge_mask
    assert isinstance(expected, Tensor)
    proper = pairs.edges < edges.shape[1]
    assert torch.allclose(ours[proper], expected[pairs.edges[proper]], atol=1e-5)
    assert ours[~proper].abs().max() == 0

    # The first loss that PyG reported, from its untrained network: drawn again with the same seed.
    torch.manual_seed(0)
    again = PyGPGExplainer(epochs=2, lr=0.01)
    Explainer(model, again, explanation_type="phenomenon", edge_mask_type="object", model_config=CONFIG)
    torch.manual_seed(0)
    again.train(0, model, x, edges, target=classes, index=2)  # materialises the lazy layer
    state = {name: value.clone() for name, value in again.mlp.state_dict().items()}
    torch.manual_seed(5)
    expected_loss = again.train(1, model, x, edges, target=classes, index=2)
    fresh.load_state_dict(state)
    with masked_run(subject) as run:
        part = next(iter(pg_explainer.induced_copies(subject, torch.tensor([2]))))
        # The same order of edges as given, so that the same numbers are drawn for each.
        part = replace(part, part=replace(part.part, edge_index=edges, edge=torch.arange(edges.shape[1])))
        torch.manual_seed(5)
        loss = method.loss(run, part, fresh, embedding, 5.0 * (2.0 / 5.0) ** 0.5)
    assert float(loss) == pytest.approx(expected_loss, abs=1e-5)
    assert len(losses) == 2


def test_pg_explainer_trains_on_the_induced_neighbourhood() -> None:
    model = randomize(GAT(5, 3, 4, num_layers=2), 1).eval()
    subject = Subject.of(model, X, EDGES)
    for target, part in zip(range(NODES), pg_explainer.induced_copies(subject, torch.arange(NODES)), strict=True):
        nodes, _, _, mask = k_hop_subgraph(target, 2, EDGES, num_nodes=NODES)
        assert part.part.node.tolist() == nodes.sort().values.tolist()
        assert part.part.edge.sort().values.tolist() == mask.nonzero().view(-1).tolist()
        with masked_run(subject) as run:
            run.check(part)
