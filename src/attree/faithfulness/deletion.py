"""Predictions with the highest-scored edges of each target reduced at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attree.attribution.pairs import Pairs
from attree.errors import expect, expect_instance, expect_ints, expect_memory
from attree.faithfulness.choose import SET_ENGINES, Reducer
from attree.faithfulness.protocol import PROTOCOLS, ReductionProtocol
from attree.subject import Subject
from attree.tensors.limits import REDUCTION_MEMORY
from attree.tensors.ragged import Rows, expand, pointers, row_of


def delete_edges(
    subject: Subject,
    pairs: Pairs,
    scores: Mapping[str, Tensor],
    counts: Sequence[int],
    protocol: ReductionProtocol = PROTOCOLS["removal"],
    memory: int = REDUCTION_MEMORY,
) -> dict[str, Tensor]:
    """Return the probability of each target's predicted class with its k highest-scored edges reduced at once.

    Only edges that carry a flow to the target count, because no other edge can change its prediction. If a target has
    fewer than k, all are reduced. Among equal scores, the edge that is listed first goes first.

    Args:
        subject: The subject to explain: a classifier whose outputs depend only on a target's own neighbourhood.
        pairs: The pairs of the targets.
        scores: Scores of all pairs, [P], by name.
        counts: The numbers k.
        protocol: The reduction protocol.
        memory: Bytes of working memory.

    Returns:
        By the same names, probabilities [T, len(counts)] of the class that is predicted with all edges.
    """
    expect_instance(subject, "subject", Subject)
    expect_instance(pairs, "pairs", Pairs)
    expect_instance(protocol, "protocol", ReductionProtocol)
    expect_memory(memory)
    counts = expect_ints(counts, "counts", "integers >= 0")
    expect(len(counts) > 0, "counts", "integers >= 0", "none")
    expect(isinstance(scores, Mapping), "scores", "scores by name", scores)
    for name, values in scores.items():
        expect(values.shape == (len(pairs),), f"scores[{name!r}]", f"of shape [{len(pairs)}]", tuple(values.shape))
    recorded = Reducer(subject, memory, SET_ENGINES).record()
    output, head, rows = recorded.attention.output, subject.head, subject.rows(pairs.targets)
    expect(head.mode != "regression", "subject", "one that predicts classes", "one that predicts a number")
    measured = head.measured(output)
    before = head.logits(output, measured)[rows]
    predicted = before.argmax(dim=-1)
    targets = torch.arange(pairs.targets.numel(), device=pairs.edges.device)
    owner = row_of(torch.full_like(targets, len(counts)))
    probabilities = {}
    for name, values in scores.items():
        after = recorded.reduce_sets(pairs, owner, _highest(pairs, values, counts), protocol)
        measured_of_sets = None if measured is None else measured[rows[owner]]
        probability = head.logits(after, measured_of_sets).softmax(dim=-1)
        probabilities[name] = probability.gather(1, predicted[owner].unsqueeze(1)).view(-1, len(counts))
    return probabilities


def _highest(pairs: Pairs, scores: Tensor, counts: Sequence[int]) -> Rows:
    """Return the k highest-scored edges of each target for each number k, as consecutive sets."""
    flow = pairs.flow.nonzero().view(-1)
    owner = pairs.owner[flow]
    # Edges with a score of NaN go last.
    strength = scores[flow].nan_to_num(nan=-torch.inf)
    order = strength.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]
    ranked, sizes = pairs.edges[flow[order]], owner.bincount(minlength=pairs.targets.numel())
    begin = pointers(sizes)[:-1]
    counts_taken = torch.minimum(sizes.unsqueeze(1), torch.tensor(counts, device=sizes.device)).view(-1)
    first = begin.unsqueeze(1).expand(-1, len(counts)).reshape(-1)
    ptr = pointers(counts_taken)
    which, place = expand(ptr, torch.arange(counts_taken.numel(), device=counts_taken.device))
    return Rows(ptr, ranked[first[which] + place - ptr[which]])
