"""Effects of edges, nodes, keys and pairs in graph transformers, against one plain pass of the model for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATConv, SGFormer
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention
from torch_geometric.nn.models import Polynormer

import attree
from attree.attribution import subject_pairs
from attree.errors import UnsupportedModelError
from attree.faithfulness import PROTOCOLS, ExactReducer, Reducer, key_effects, node_effects, pair_effects
from attree.subject import Subject
from attree.subject.model_call import NotRowwiseError
from helpers.graph_transformers import CLASSES, GPS, IN, WIDTH, Encoder, molecule, molecules, seeded

TOLERANCE = 2e-9  # effects are multiples of 1e-9


@contextmanager
def masked(model: nn.Module, cut: Callable[[int, int], Tensor]) -> Iterator[None]:
    """While open, `cut(B, n)` [B, n, n] says which pairs (query, key) every multi-head attention masks."""

    def mask(module: nn.MultiheadAttention, args: tuple[Tensor, ...], kwargs: dict[str, object]) -> object:
        batch, n = (args[0] if module.batch_first else args[0].transpose(0, 1)).shape[:2]
        where = torch.zeros(batch, n, n, dtype=torch.float64).masked_fill(cut(batch, n), -torch.inf)
        return args, {**kwargs, "attn_mask": where.repeat_interleave(module.num_heads, 0)}

    modules = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    handles = [module.register_forward_pre_hook(mask, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def probability(model: nn.Module, data: Data, edges: Tensor | None = None) -> Tensor:
    """Class probabilities, without some edges of the data."""
    kept = torch.ones(data.num_edges, dtype=torch.bool) if edges is None else ~edges
    with torch.no_grad():
        output = model(data.x, data.edge_index[:, kept], data.edge_attr[kept], data.batch)
    return output.softmax(-1)


@pytest.mark.parametrize("model", [GPS("gine"), GPS("gat"), Encoder(), GPS("none")], ids=["GINE", "GAT", "enc", "none"])
def test_pairs_leave_the_softmax_as_with_a_mask(model: nn.Module) -> None:
    model, batch = seeded(model), molecules(4, 3, 5)
    if isinstance(model, Encoder):
        model.encoder.use_nested_tensor = False  # torch cannot mask pairs there
    subject = Subject.of_data(model, batch)
    found = pair_effects(subject, [2])
    assert len(found) == 25
    before = probability(model, batch)[2]
    for query, key, effect in zip(found.query.tolist(), found.node.tolist(), found.delta_pc.tolist(), strict=True):

        def cut(graphs: int, n: int, query: int = query - 7, key: int = key - 7) -> Tensor:
            where = torch.zeros(graphs, n, n, dtype=torch.bool)
            where[2, query, key] = True
            return where

        with masked(model, cut):
            after = probability(model, batch)[2]
        assert effect == pytest.approx(float(before.max() - after[before.argmax()]), abs=TOLERANCE)
    assert float(found.delta_pc.abs().max()) > 1e-6


def test_keys_and_nodes_leave_all_softmaxes() -> None:
    model, batch = seeded(GPS("gine")), molecules(4, 3, 5)
    subject = Subject.of_data(model, batch)
    keys, nodes = key_effects(subject, [0, 2]), node_effects(subject, [0, 2])
    before = probability(model, batch)
    for number, node in enumerate(keys.node.tolist()):
        graph = 0 if node < 4 else 2

        def cut(graphs: int, n: int, graph: int = graph, place: int = node - (7 if node > 4 else 0)) -> Tensor:
            where = torch.zeros(graphs, n, n, dtype=torch.bool)
            where[graph, :, place] = True
            return where

        best = before[graph].argmax()
        with masked(model, cut):
            key_only = probability(model, batch)[graph]
            with_edges = probability(model, batch, batch.edge_index[0] == node)[graph]
        assert float(keys.delta_pc[number]) == pytest.approx(float((before[graph] - key_only)[best]), abs=TOLERANCE)
        expected = float((before[graph] - with_edges)[best])
        assert float(nodes.delta_pc[number]) == pytest.approx(expected, abs=TOLERANCE)
    assert nodes.node.tolist() == keys.node.tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 11]
    assert nodes.targets.tolist() == [0, 2]
    assert nodes.ptr.tolist() == [0, 4, 9]


def test_weight_0_leaves_the_other_weights() -> None:
    model, batch = seeded(GPS("gine")), molecules(4, 3)
    subject = Subject.of_data(model, batch)
    found = pair_effects(subject, [0], "weight", pairs=torch.tensor([[1, 2], [3, 2]]))
    before = probability(model, batch)[0]
    for query, key, effect in zip(found.query.tolist(), found.node.tolist(), found.delta_pc.tolist(), strict=True):

        def without(module: nn.MultiheadAttention, args: tuple[Tensor, ...], kwargs: object, output: object) -> object:
            x, width = args[0], module.embed_dim // module.num_heads
            padding = kwargs["key_padding_mask"]  # type: ignore[index]
            q, k, v = (x @ module.in_proj_weight.T + module.in_proj_bias).split(module.embed_dim, dim=-1)
            heads = []
            for head in (slice(0, width), slice(width, 2 * width)):
                scores = q[..., head] @ k[..., head].transpose(1, 2) / width**0.5
                weights = scores.masked_fill(padding.unsqueeze(1), -torch.inf).softmax(-1)
                weights[0, query, key] = 0  # noqa: B023
                heads.append(weights @ v[..., head])
            return module.out_proj(torch.cat(heads, -1)), None

        handles = [
            module.register_forward_hook(without, with_kwargs=True)
            for module in model.modules()
            if isinstance(module, nn.MultiheadAttention)
        ]
        after = probability(model, batch)[0]
        for handle in handles:
            handle.remove()
        assert effect == pytest.approx(float(before.max() - after[before.argmax()]), abs=TOLERANCE)


@pytest.mark.parametrize("local", ["gine", "gat", "gcn"])
@pytest.mark.parametrize("attention", ["multihead", "performer"])
@pytest.mark.parametrize("pooled", [True, False])
def test_the_effect_of_an_edge_is_that_of_deleting_it(local: str, attention: str, pooled: bool) -> None:
    # Graphs of different sizes: with a linear attention the other graphs of the batch matter, and must stay.
    model, batch = seeded(GPS(local, attention, pooled)), molecules(4, 3, 5)
    if attention == "performer":
        for conv in model.convs:
            conv.attn.fast_attn.double()
    target = 2 if pooled else 8
    with pytest.warns(UserWarning, match="deleted by"):
        explanation = attree.explain(model, batch, target)
    before = probability(model, batch)[target]
    effects = {(edge.source, edge.destination): edge.effect for edge in explanation.edges}
    for edge in range(batch.num_edges):
        source, destination = batch.edge_index[:, edge].tolist()
        after = probability(model, batch, torch.arange(batch.num_edges) == edge)[target]
        effect = float((before - after)[before.argmax()])
        assert effects.get((source, destination), 0.0) == pytest.approx(effect, abs=TOLERANCE)


def linear_module(module: nn.Module, x: Tensor, cut: Tensor) -> Tensor:
    """The output of PyG's linear attentions with the weights of some pairs removed, by the matrix they imply."""
    n, heads = x.shape[1], module.heads
    if isinstance(module, PolynormerAttention):
        q, k, v = (lin(x[0]).view(n, -1, heads).transpose(1, 2) for lin in (module.q, module.k, module.v))
        q, k = q.sigmoid(), k.sigmoid()
    else:
        q, k, v = (lin(x[0]).view(n, heads, -1) for lin in (module.q, module.k, module.v))
    if isinstance(module, SGFormerAttention):
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    if isinstance(module, PerformerAttention):
        projection = module.fast_attn.projection_matrix.t().to(x)
        q, k = (q @ projection).relu() + 0.001, (k @ projection).relu() + 0.001
    products = torch.einsum("ihm,jhm->hij", q, k)
    if isinstance(module, SGFormerAttention):
        products = products + n * torch.eye(n).to(x)
    products = products.masked_fill(cut, 0.0)
    epsilon = 1e-6 if isinstance(module, PolynormerAttention) else 0.0
    mixed = torch.einsum("hij,jhd->ihd", products / (products.sum(-1, keepdim=True) + epsilon), v).unsqueeze(0)
    if isinstance(module, SGFormerAttention):
        return mixed.mean(2)
    if isinstance(module, PerformerAttention):
        return module.attn_out(mixed.flatten(2))
    normed = module.lns(mixed.transpose(2, 3).flatten(2)) * (module.h_lins(x) + module.beta)
    return module.lin_out(normed).relu()


@pytest.mark.parametrize("model", [SGFormer(IN, WIDTH, CLASSES), Polynormer(IN, WIDTH, CLASSES, 2, qk_shared=False)])
def test_keys_of_sgformer_and_polynormer(model: nn.Module) -> None:
    data = molecule(7)
    data = Data(x=data.x.float(), edge_index=data.edge_index)
    model = model.eval()
    model._global = True
    keys = key_effects(Subject.of_data(model, data), [3])
    kinds = (SGFormerAttention, PolynormerAttention)

    def run(key: int | None) -> Tensor:
        def replace(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            order = torch.zeros(7, dtype=torch.long).sort()[1]
            if isinstance(module, SGFormerAttention):
                order = torch.arange(7)
            is_cut = torch.zeros(7, dtype=torch.bool) if key is None else torch.arange(7)[order] == key
            return linear_module(module, args[0], is_cut.expand(7, 7))

        handles = [m.register_forward_hook(replace) for m in model.modules() if isinstance(m, kinds)]
        with torch.no_grad():
            output = model(data.x, data.edge_index, torch.zeros(7, dtype=torch.long))
        for handle in handles:
            handle.remove()
        return output[3].exp()

    before = run(None)
    best = before.argmax()
    for node in range(7):
        assert float(keys.delta_pc[node]) == pytest.approx(float((before - run(node))[best]), abs=2e-6)


def test_nodes_of_a_plain_gat_lose_their_out_edges_and_loop() -> None:
    torch.manual_seed(0)
    data = molecule(8)
    model = GAT(IN, WIDTH, 2, CLASSES).double().eval()
    subject = Subject.of_data(model, Data(x=data.x, edge_index=data.edge_index))
    found = node_effects(subject, [0, 5], "weight")
    before = model(data.x, data.edge_index).softmax(-1)
    owner = found.targets.repeat_interleave(found.ptr.diff()).tolist()
    for number, (target, node) in enumerate(zip(owner, found.node.tolist(), strict=True)):
        handles = [
            conv.register_edge_update_forward_hook(
                lambda module, inputs, alpha, node=node: alpha * (inputs[0][0] != node).unsqueeze(1).to(alpha)
            )
            for conv in model.modules()
            if isinstance(conv, GATConv)
        ]
        after = model(data.x, data.edge_index).softmax(-1)
        for handle in handles:
            handle.remove()
        best = before[target].argmax()
        expected = float((before - after)[target, best])
        assert float(found.delta_pc[number]) == pytest.approx(expected, abs=TOLERANCE)
    reached = set(found.node[: found.ptr[1]].tolist())
    assert reached == {node for node in range(8) if float(subject_scores(subject, 0)[node])}


def subject_scores(subject: Subject, target: int) -> Tensor:
    return attree.attribution.attribute_nodes(subject, target).dense(target)


def test_pairs_of_a_network_without_global_attention_are_refused() -> None:
    data = molecule(5)
    subject = Subject.of_data(GAT(IN, WIDTH, 2, CLASSES).double(), Data(x=data.x, edge_index=data.edge_index))
    with pytest.raises(UnsupportedModelError, match="node_effects"):
        pair_effects(subject, [0])
    with pytest.raises(UnsupportedModelError, match="coefficient"):
        node_effects(subject, [0], "coefficient")


def test_exact_updates_serve_attention_that_reads_no_edges() -> None:
    torch.manual_seed(0)
    data = molecule(9)
    data = Data(x=data.x.float(), edge_index=data.edge_index)
    model = SGFormer(IN, WIDTH, CLASSES, trans_num_layers=2, gnn_num_layers=2).eval()
    subject = Subject.of_data(model, data)
    zeros = torch.zeros(9, dtype=torch.long)
    effects = Reducer(subject, engines=(ExactReducer,)).record()  # no other engine may help
    pairs = subject_pairs(subject, [0, 4])
    found = effects.reduce(pairs, PROTOCOLS["removal"]).delta_pc
    with torch.no_grad():
        before = model(data.x, data.edge_index, zeros).exp()
        for pair, (position, edge) in enumerate(zip(pairs.owner.tolist(), pairs.edges.tolist(), strict=True)):
            target = [0, 4][position]
            kept = torch.arange(data.num_edges) != edge
            if edge >= data.num_edges:
                continue  # GCN adds a deleted self-loop again
            after = model(data.x, data.edge_index[:, kept], zeros).exp()
            expected = float((before - after)[target, before[target].argmax()])
            assert float(found[pair]) == pytest.approx(expected, abs=1e-6)


def test_attention_that_edges_reach_is_computed_again() -> None:
    data = molecule(9)
    data = Data(x=data.x, edge_index=data.edge_index, edge_attr=data.edge_attr, batch=torch.zeros(9, dtype=torch.long))
    model = seeded(GPS("gine", "performer", pooled=False))
    for conv in model.convs:
        conv.attn.fast_attn.double()
    with pytest.raises(NotRowwiseError):
        Reducer(Subject.of_data(model, data), engines=(ExactReducer,)).record()
