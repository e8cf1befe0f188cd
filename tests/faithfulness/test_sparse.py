"""Products with sparse matrices against plain sums, and that they stay out of sight."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exact import KINDS, assert_as_brute_force
from torch import Tensor

from attree.attention import Graph
from attree.attribution import subgraph_pairs
from attree.faithfulness import PROTOCOLS, ExactReducer, ReductionProtocol
from attree.faithfulness.exact import lazy_features
from attree.faithfulness.exact.lazy_features import compact_features, weighted_sums
from helpers.graphs import NODES, messy_graph, randomize
from helpers.no_warnings import no_warnings
from helpers.reducers import exact_pass, subject_of

WORDS = 90


def bags_of_words(seed: int = 0) -> Tensor:
    """Features of which few are not 0; node 3 has none at all."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(NODES, WORDS, generator=generator) * (torch.rand(NODES, WORDS, generator=generator) < 0.03)
    x[3] = 0.0
    return x


@pytest.fixture
def strict_warnings() -> Iterator[None]:
    """Every warning is an error, also those that torch gives only once in a process."""
    torch.set_warn_always(True)
    with no_warnings():
        yield
    torch.set_warn_always(False)


def test_few_features_become_a_sparse_matrix_and_many_stay_dense() -> None:
    words = bags_of_words()
    compact = compact_features(words)
    assert compact.layout == torch.sparse_csr
    assert torch.equal(compact.to_dense(), words)
    dense = torch.randn(NODES, WORDS, generator=torch.Generator().manual_seed(0))
    for x in (dense, words[:, :0], words[:0]):
        assert compact_features(x).layout == torch.strided
        assert torch.equal(compact_features(x), x)


@pytest.mark.parametrize(("nonzero", "layout"), [(49, torch.sparse_csr), (50, torch.strided)])
def test_one_in_twenty_is_too_many(nonzero: int, layout: torch.layout) -> None:
    x = torch.zeros(10, 100)
    x.view(-1)[torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:nonzero]] = -2.0
    assert compact_features(x).layout == layout


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_sparse_features_give_what_dense_ones_do(
    kind: str, protocol: ReductionProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = randomize(KINDS[kind](WORDS, 3, 5, 2, 2), 1).double()
    x, graph = bags_of_words().double(), Graph(messy_graph(1), NODES)
    pairs = subgraph_pairs(graph, torch.tensor([0, 3, 10]), 2)
    as_sparse = ExactReducer(subject_of(net, x, graph.original_edge_index, graph=graph))
    ours = as_sparse.record().reduce(pairs, protocol, with_probability=True)
    monkeypatch.setattr(lazy_features, "SPARSE_SHARE", 10**9)
    as_dense = ExactReducer(subject_of(net, x, graph.original_edge_index, graph=graph))
    layouts = [
        next(iter(one._checker._recorder._features._prepared.values()))[1].layout for one in (as_sparse, as_dense)
    ]
    assert layouts == [torch.sparse_csr, torch.strided]
    torch.testing.assert_close(ours.delta_pc, as_dense.record().reduce(pairs, protocol).delta_pc, rtol=0, atol=1e-12)
    weights = [one.record().attention.weights for one in (as_sparse, as_dense)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-12)
    assert_as_brute_force(ours, net, x, graph, protocol, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_features_of_every_precision_are_taken(dtype: torch.dtype) -> None:
    net = randomize(KINDS["GATv2"](WORDS, 3, 5, 2, 1), 1, scale=0.3)
    x, graph = bags_of_words().to(dtype), Graph(messy_graph(1), NODES)
    pairs = subgraph_pairs(graph, torch.tensor([0, 3, 10]), 2)
    reduction = exact_pass(net.to(dtype), x, graph.original_edge_index, graph=graph).reduce(
        pairs, PROTOCOLS["removal"], with_probability=True
    )
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5}[dtype]
    assert_as_brute_force(reduction, net, x, graph, PROTOCOLS["removal"], tolerance)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_features_that_are_sparse_already_are_taken(layout: torch.layout) -> None:
    net = randomize(KINDS["GAT"](WORDS, 3, 5, 2, 1), 1)
    x, graph = bags_of_words(), Graph(messy_graph(1), NODES)
    pairs = subgraph_pairs(graph, torch.tensor([0, 3, 10]), 2)
    given_sparse = exact_pass(net, x.to_sparse(layout=layout), graph.original_edge_index, graph=graph).reduce(
        pairs, PROTOCOLS["weight"]
    )
    expected = exact_pass(net, x, graph.original_edge_index, graph=graph).reduce(pairs, PROTOCOLS["weight"])
    torch.testing.assert_close(given_sparse.delta_pc, expected.delta_pc, rtol=0, atol=1e-6)


def test_features_that_need_gradients_leave_no_graph() -> None:
    assert not compact_features(bags_of_words().requires_grad_()).requires_grad


@settings(max_examples=40, deadline=None)
@given(
    degrees=st.lists(st.integers(0, 4), max_size=6),
    num_nodes=st.integers(1, 4),
    heads=st.integers(1, 3),
    channels=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_weighted_sums_add_up_entry_by_entry(
    degrees: list[int], num_nodes: int, heads: int, channels: int, seed: int
) -> None:
    """Rows may be empty, and list a source several times and in any order."""
    generator = torch.Generator().manual_seed(seed)
    ptr = torch.tensor([0, *degrees]).cumsum(0)
    row = torch.tensor([number for number, degree in enumerate(degrees) for _ in range(degree)], dtype=torch.int64)
    source = torch.randint(num_nodes, (row.numel(),), generator=generator)
    weights = torch.randn(row.numel(), heads, generator=generator, dtype=torch.float64)
    values = torch.randn(num_nodes, heads, channels, generator=generator, dtype=torch.float64)
    expected = np.zeros((len(degrees), heads, channels))
    for entry, (r, s) in enumerate(zip(row.tolist(), source.tolist(), strict=True)):
        for head in range(heads):
            expected[r, head] += float(weights[entry, head]) * values[s, head].numpy()
    np.testing.assert_allclose(weighted_sums(ptr, row, source, weights, values).numpy(), expected, atol=1e-12)


def test_no_warning_escapes(strict_warnings: None) -> None:
    with pytest.raises(UserWarning, match="beta"):  # or this test could not fail
        torch.zeros(2, 2).to_sparse_csr()
    compact = compact_features(bags_of_words())
    assert compact.layout == torch.sparse_csr
    ptr, row = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 0, 2])
    sums = weighted_sums(ptr, row, torch.tensor([1, 0, 1]), torch.ones(3, 1), torch.tensor([[[1.0]], [[2.0]]]))
    assert sums.view(-1).tolist() == [3.0, 0.0, 2.0]
    net, graph = KINDS["GAT"](WORDS, 3, 5, 2, 1), Graph(messy_graph(1), NODES)
    exact_pass(net, bags_of_words(), graph.original_edge_index, graph=graph).reduce(
        subgraph_pairs(graph, torch.tensor([0]), 2), PROTOCOLS["weight"]
    )


@pytest.mark.slow
def test_no_warning_escapes_a_process_that_gave_none_yet() -> None:
    code = """
import warnings, torch
from attree.attention import Graph
from attree.faithfulness import ExactReducer
from attree.models import GAT
from attree.subject import Subject
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch_geometric")
x = torch.zeros(5, 50)
x[0, 0] = 1.0
ExactReducer(Subject.of(GAT(50, 2), x, torch.tensor([[0, 1], [1, 2]]))).record()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
