"""Headlines on networks whose truth is known: what they say is so, and what is not so is not said."""

from __future__ import annotations

import warnings

import pytest

import attree

SAID = {
    "attention_decides": [
        "Use occlusion (exact).",
        "a good guide",
        "attention matters:",
        "finds the true edges: GAtt 1.00",
    ],
    "attention_irrelevant": ["Use occlusion (exact).", "no guide", "matters little", "does not find the true edges"],
    "skip": ["No single edge changes a prediction under `removal`, so there is nothing to explain in single edges."],
    "saturated": ["No single edge changes a prediction", "saturated: sets of edges say more"],
    "redundant": ["But effects are small", "under `weight`)"],
    "one_head": ["no guide", "finds the true edges in part"],
    "degree_only": ["No single edge changes a prediction under `removal`, but under `weight`"],
    "degenerate": ["no guide", "explains less than uniform attention", "does not find the true edges"],
}
NOT_SAID = {
    "attention_decides": ["small", "no guide"],
    "attention_irrelevant": ["attention matters:"],
    "saturated": ["nothing to explain"],
    "one_head": ["finds the true edges:"],
    "degree_only": ["nothing to explain"],
    "degenerate": ["attention matters:"],
}


@pytest.mark.parametrize("name", attree.planted.NAMES)
def test_headlines_are_true(name: str) -> None:
    case = attree.planted.make(name, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        headline = attree.evaluate(case.model, case.data, case.targets, truth=case.truth).verdict.headline
    for fragment in SAID[name]:
        assert fragment in headline
    for fragment in NOT_SAID.get(name, []):
        assert fragment not in headline
    assert headline.count("\n") <= 1
