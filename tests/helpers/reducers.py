"""Passes of each engine, by the call of a model as people write it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attree.attention import Graph
from attree.faithfulness import CopiesReducer, Effects, ExactReducer, Reducer, WholeReducer
from attree.faithfulness.copies_engine import CopiesPass
from attree.faithfulness.exact.exact_engine import ExactPass
from attree.faithfulness.whole_graph_engine import WholePass
from attree.subject import Head, Subject
from attree.tensors.memory import REDUCTION_MEMORY


def subject_of(
    model: nn.Module,
    x: Tensor,
    edge_index: Tensor,
    *args: Any,
    graph: Graph | None = None,
    head: Head | None = None,
    **kwargs: Any,
) -> Subject:
    return Subject.of(model, x, edge_index, *args, graph=graph, head=head, **kwargs)


def exact_pass(*args: Any, memory: int = REDUCTION_MEMORY, **kwargs: Any) -> ExactPass:
    return ExactReducer(subject_of(*args, **kwargs), memory).record()


def copies_pass(*args: Any, memory: int = REDUCTION_MEMORY, **kwargs: Any) -> CopiesPass:
    return CopiesReducer(subject_of(*args, **kwargs), memory).record()


def whole_pass(*args: Any, **kwargs: Any) -> WholePass:
    return WholeReducer(subject_of(*args, **kwargs)).record()


def any_pass(*args: Any, memory: int = REDUCTION_MEMORY, **kwargs: Any) -> Effects:
    return Reducer(subject_of(*args, **kwargs), memory).record()
