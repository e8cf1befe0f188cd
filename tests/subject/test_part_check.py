"""The experiment that every engine makes before it runs a model on a part of its graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv
from torch_geometric.utils import degree

from attree.attribution import GAtt, Saliency, attribute_subgraphs
from attree.attribution.posthoc import masks
from attree.attribution.subgraphs import neighbourhoods
from attree.faithfulness import CopiesReducer
from attree.subject import Subject
from attree.subject.model_call import NotLocalError, check_local
from helpers.graphs import randomize

EDGES = torch.randint(0, 30, (2, 45), generator=torch.Generator().manual_seed(0))
X = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TARGETS = torch.arange(6)

Between = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        self.first, self.last, self.between = GATConv(4, 4), GATConv(4, 3), between

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.between(self.first(x, edge_index), edge_index), edge_index)


def degrees_of_neighbours(h: Tensor, edge_index: Tensor) -> Tensor:
    """Counts edges that enter the outermost nodes of a neighbourhood, which a part does not have."""
    source, destination = edge_index
    own = degree(destination, h.shape[0]).to(h).unsqueeze(1)
    return h + torch.zeros_like(own).index_add(0, destination, own[source])


LOCAL: dict[str, Between] = {
    "nothing": lambda h, edge_index: h,
    "norm of each node": lambda h, edge_index: h / (1 + h.norm(dim=1, keepdim=True)),
}
WIDE: dict[str, Between] = {
    "mean over nodes": lambda h, edge_index: h - h.mean(dim=0),
    "maximum over nodes": lambda h, edge_index: h + h.max(dim=0).values,
    "first node": lambda h, edge_index: h + h[:1],
    "last node": lambda h, edge_index: h + h[-1:],
    "position": lambda h, edge_index: h + torch.arange(h.shape[0]).to(h).unsqueeze(1) / 30,
    "degrees of neighbours": degrees_of_neighbours,
}


def subject_of(between: Between) -> Subject:
    return Subject.of(randomize(Net(between).double(), 0).eval(), X, EDGES)


def experiment(subject: Subject) -> None:
    ((_, _, part),) = neighbourhoods(subject, TARGETS, 1.0, 2**30)
    with torch.no_grad():
        check_local(subject.call, part, subject.output[TARGETS])


@pytest.mark.parametrize("name", LOCAL)
def test_models_that_see_neighbours_alone_pass(name: str) -> None:
    experiment(subject_of(LOCAL[name]))


@pytest.mark.parametrize("name", WIDE)
def test_all_others_are_refused_by_every_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(WIDE[name])
    with pytest.raises(NotLocalError, match="on a part of the graph its outputs differ by"):
        experiment(subject)
    copies = CopiesReducer(subject).record()
    if name == "degrees of neighbours":  # wider copies have these degrees
        copies.check(TARGETS)
        assert copies.reach > subject.num_layers
    else:
        with pytest.raises(NotLocalError, match="on a part of the graph its outputs differ by"):
            copies.check(TARGETS)
    with pytest.raises(TypeError, match=r"Expected Net to attend .* its outputs differ by"):
        attribute_subgraphs(GAtt(), subject.model, X, EDGES, TARGETS)
    # Saliency runs such a model on the whole graph.
    expected = Saliency().attribute(subject, TARGETS)
    monkeypatch.setattr(masks, "local_copies", masks.whole_copies)
    assert torch.equal(Saliency().attribute(subject, TARGETS).scores, expected.scores)


def test_rows_of_something_else_are_refused() -> None:
    subject = subject_of(LOCAL["nothing"])
    ((_, _, part),) = neighbourhoods(subject, TARGETS, 1.0, 2**30)
    outputs = {"chosen": torch.zeros(5, 3), "other": (torch.zeros(5),)}
    for output in outputs.values():
        run = partial(lambda output, call: output, output)
        with pytest.raises(NotLocalError, match="other rows than those of the copies"):
            check_local(subject.call, part, subject.output[TARGETS], run)
