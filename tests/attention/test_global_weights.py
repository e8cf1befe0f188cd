"""Weights of attention over all nodes: mixing, pulling and reducing, against dense matrices from the definitions."""

import pytest
import torch
from torch import Tensor
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention

from attree.attention import DenseWeights, KernelWeights, ListedWeights
from attree.attention.global_attention_readers import reader_of
from attree.attention.global_weight_matrices import GlobalWeights, Reduced

B, N, H, D = 2, 5, 3, 4


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def kernel_matrix(weights: KernelWeights) -> Tensor:
    """[B, H, n, n] by plain loops."""
    matrix = torch.zeros(B, H, N, N, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(N):
                for j in range(N):
                    matrix[b, h, i, j] = weights.queries[b, i, h] @ weights.keys[b, j, h]
                    matrix[b, h, i, j] += weights.to_itself * (i == j)
                matrix[b, h, i] /= matrix[b, h, i].sum() + weights.epsilon
    return matrix


def listed_matrix(weights: ListedWeights) -> Tensor:
    matrix = torch.zeros(B, H, N, N, dtype=torch.float64)
    for pair, (query, key) in enumerate(zip(weights.query.tolist(), weights.key.tolist(), strict=True)):
        matrix[query // N, :, query % N, key % N] += weights.weights[pair]
    return matrix


def all_kinds() -> dict[str, tuple[GlobalWeights, Tensor]]:
    dense = DenseWeights(random(B, H, N, N).softmax(-1))
    kernel = KernelWeights(random(B, N, H, 2), random(B, N, H, 2), to_itself=3.0)
    query, key = torch.tensor([0, 0, 1, 4, 5, 9, 9]), torch.tensor([1, 2, 1, 0, 7, 9, 5])
    scores = random(7, H).exp()
    total = torch.zeros(B * N, H, dtype=torch.float64).index_add_(0, query, scores)
    listed = ListedWeights(query, key, scores / total[query], N)
    return {
        "dense": (dense, dense.weights),
        "kernel": (kernel, kernel_matrix(kernel)),
        "listed": (listed, listed_matrix(listed)),
    }


@pytest.fixture(params=["dense", "kernel", "listed"])
def kind(request: pytest.FixtureRequest) -> tuple[GlobalWeights, Tensor]:
    return all_kinds()[request.param]


def check(weights: GlobalWeights, matrix: Tensor) -> None:
    values, r = random(B, N, H, D), random(6, B, N)
    mixed, pulled = torch.zeros(B, N, H, D, dtype=torch.float64), torch.zeros(6, B, N, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            mixed[b, :, h] = matrix[b, h] @ values[b, :, h]
            pulled[:, b] += r[:, b] @ matrix[b, h] / H
    torch.testing.assert_close(weights.mix(values), mixed)
    torch.testing.assert_close(weights.pull(r), pulled)
    queries = torch.tensor([3, 0])
    for b in range(B):
        torch.testing.assert_close(weights.rows(b, queries), matrix[b, :, queries].mean(0))


def test_mix_pull_and_rows_are_those_of_the_matrix(kind: tuple[GlobalWeights, Tensor]) -> None:
    check(*kind)


@pytest.mark.parametrize("deletes", [False, True])
def test_one_pair_of_each_graph_is_reduced(kind: tuple[GlobalWeights, Tensor], deletes: bool) -> None:
    weights, matrix = kind
    expected = matrix.clone()
    expected[1, :, 2, 4] = expected[0, :, 0, 1] = 0
    if deletes:
        expected = (
            expected
            * matrix.sum(-1, keepdim=True)
            / expected.sum(-1, keepdim=True).where(expected.sum(-1, keepdim=True) > 0, 1.0)
        )
    check(weights.without(Reduced(torch.tensor([1, 0]), torch.tensor([2, 0]), torch.tensor([4, 1])), deletes), expected)


@pytest.mark.parametrize("deletes", [False, True])
def test_reduced_pairs_have_weight_0_and_deleted_ones_leave_the_sum(
    kind: tuple[GlobalWeights, Tensor], deletes: bool
) -> None:
    weights, matrix = kind
    # In graph 0 a pair, and node 0 as key for all; in graph 1 a node's own pair.
    reduced = Reduced(torch.tensor([0, 0, 1]), torch.tensor([0, -1, 4]), torch.tensor([2, 0, 4]))
    expected = matrix.clone()
    expected[0, :, 0, 2] = expected[0, :, :, 0] = expected[1, :, 4, 4] = 0
    if deletes:
        before, after = matrix.sum(-1, keepdim=True), expected.sum(-1, keepdim=True)
        expected = expected * before / after.where(after > 0, 1.0)
    check(weights.without(reduced, deletes), expected)


def test_a_node_without_any_key_left_receives_nothing() -> None:
    only = Reduced(torch.tensor([0]), torch.tensor([-1]), torch.tensor([0]))
    for weights in (
        DenseWeights(torch.ones(1, 1, 1, 1, dtype=torch.float64)),
        KernelWeights(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)),
        ListedWeights(torch.tensor([0]), torch.tensor([0]), torch.ones(1, 1), 1),
    ):
        assert weights.without(only, deletes=True).mix(torch.ones(1, 1, 1, 1).to(random(1))).tolist() == [[[[0.0]]]]


@pytest.mark.parametrize(
    "module",
    [
        SGFormerAttention(8, heads=2, head_channels=4),
        PerformerAttention(8, heads=2, head_channels=4),
        PolynormerAttention(8, heads=2, head_channels=4, qk_shared=False),
        PolynormerAttention(8, heads=2, head_channels=4, qk_shared=True),
    ],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.parametrize("has_padding", [False, True])
def test_linear_attentions_of_pyg_are_read(module: torch.nn.Module, has_padding: bool) -> None:
    module = module.eval()
    x = (random(2, 6, 8) - 0.5).float()  # SGFormer's runs in float32 only
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = not has_padding
    x = x * mask.unsqueeze(-1)
    output = module(x, mask)
    reader = reader_of(module)
    assert reader is not None
    mixing = reader(module, (x, mask), {}, output)
    assert mixing is not None
    torch.testing.assert_close(mixing.finish(mixing.weights.mix(mixing.values)), output)
