"""Networks whose weights are set by hand, so that the right explanation is known: tests for an explainer.

Nothing is trained or downloaded. Each case is a small graph of separate trees, one target at each root, and a network
of PyG's `GATConv`. Nodes carry evidence for a class and may be loud; attention looks only at loudness. So which edges
get attention and which edges decide can be set independently:

    case = attree.planted.make("redundant", seed=0)
    attree.evaluate(case.model, case.data, case.targets, truth=case.truth)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from attree.data import GroundTruth
from attree.errors import expect, expect_seed

__all__ = ["NAMES", "PlantedCase", "PlantedFacts", "PlantedNet", "all_cases", "make"]

TARGETS = 24
"""Number of targets, and so of trees, in a case."""

CLASSES, LOUD = 2, 3
"""Columns of the features: evidence for each class, then loudness that the attention of different heads looks at."""

SHARPNESS = 10.0
"""Score of a loud node before softmax; others have 0. So a quiet edge has exp(-10) times the weight of a loud one."""

NOTHING, LARGE = (0.0, 1e-9), (0.1, 1.0)
"""Ranges of effects: none above attree's resolution, and at least a tenth of the probability."""


class PlantedNet(nn.Module):
    """`GATConv` layers that pass features on unchanged, weighted by attention; the evidence that arrives is the output.

    Layers add no self-loops, so that an explanation is about the edges of the data and nothing else.

    Args:
        heads: For each layer, the column of loudness that each head looks at; 0 looks at nothing and is uniform.
        scale: Factor of the logits.
        reads: What the logits are computed from: `received` (the evidence that arrives), `shares` (the same, divided by
            its sum, so that its amount is irrelevant) or `own` (the node's own evidence, past all layers).
    """

    def __init__(self, heads: Sequence[Sequence[int]], scale: float, reads: str = "received") -> None:
        super().__init__()
        width = CLASSES + LOUD
        self.scale, self.reads = scale, reads
        self.convs = nn.ModuleList()
        for columns in heads:
            conv = GATConv(width, width, heads=len(columns), bias=False, add_self_loops=False)
            with torch.no_grad():
                conv.lin.weight.copy_(torch.eye(width).repeat(len(columns), 1))
                conv.att_src.zero_()
                conv.att_dst.zero_()
                for head, column in enumerate(columns):
                    if column:
                        conv.att_src[0, head, CLASSES + column - 1] = SHARPNESS
            self.convs.append(conv)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits of each node: those of its first head's evidence."""
        received = x
        for conv in self.convs:
            received = conv(received, edge_index)[:, : CLASSES + LOUD]
        evidence = received[:, :CLASSES]
        if self.reads == "own":
            evidence = x[:, :CLASSES] + 0.0 * evidence
        elif self.reads == "shares":
            evidence = F.normalize(evidence, p=1.0, dim=-1)
        return self.scale * evidence


@dataclass(frozen=True)
class PlantedFacts:
    """What is known about a case by its construction, for tests to check.

    Attributes:
        attention_matters: True if every target's prediction changes when attention becomes uniform; False if none does.
        strongest_effect: By protocol, the range that the largest effect of a single edge lies in, for every target.
        found_by: Methods that must find the true edges with an AUROC of 1.
        missed_by: Methods that cannot: for every target, a false edge scores at least as high as a true one.
    """

    attention_matters: bool
    strongest_effect: Mapping[str, tuple[float, float]]
    found_by: tuple[str, ...] = ()
    missed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlantedCase:
    """A network and a graph whose right explanation is known.

    Attributes:
        name: Name of the case.
        sentence: What is true about it.
        model: The network, in eval mode; `model.double()` works too.
        data: The graph: `x`, `edge_index`, and in `y` the class that the target of each node's tree has.
        truth: The targets and the true edges of each. Deleting all true edges of a target changes its predicted class.
            There are none if no edge matters more than another.
        facts: What a test can check.
    """

    name: str
    sentence: str
    model: PlantedNet
    data: Data
    truth: GroundTruth
    facts: PlantedFacts

    @property
    def targets(self) -> Tensor:
        """Ids of the nodes to explain."""
        return self.truth.targets

    @property
    def has_true_edges(self) -> bool:
        """Whether some edges matter more than others; if not, truth AUROC is undefined."""
        return self.truth.edges.numel() > 0

    def edge_mask(self, target: int) -> Tensor:
        """Return which edges of `data.edge_index` are true edges of a target, as a boolean mask of shape [E]."""
        ends, true_ends = self.data.edge_index, self.truth.edges_of(target)
        return (ends.unsqueeze(2) == true_ends.unsqueeze(1)).all(dim=0).any(dim=1)


class _Node(NamedTuple):
    """A node below the root of a tree.

    Attributes:
        evidence: Evidence for the class of the tree; negative is evidence for the other class.
        loud: Columns of loudness, from 1, in which the node is loud.
        is_true: Whether the edge from this node to its parent is a true edge.
        parent: Position in the tree of the node that its edge enters; 0 is the root.
    """

    evidence: float = 0.0
    loud: tuple[int, ...] = ()
    is_true: bool = False
    parent: int = 0


@dataclass(frozen=True)
class _Recipe:
    """How a case is made: the tree below one target, the network, and what is true about both."""

    sentence: str
    grow: Callable[[Random], list[_Node]]
    net: Callable[[], PlantedNet]
    facts: PlantedFacts
    root_evidence: float = 0.0


def _against(rng: Random, fewest: int, most: int) -> list[_Node]:
    """Return quiet nodes with evidence for the other class, which wins as soon as the true edges are gone."""
    return [_Node(-rng.uniform(0.5, 1.0)) for _ in range(rng.randint(fewest, most))]


def _grow_paths(rng: Random) -> list[_Node]:
    """Two layers: every middle node has one loud source, but only one middle node passes loudness on."""
    nodes: list[_Node] = []
    for middle in range(rng.randint(4, 5)):
        on_path, parent = middle == 0, len(nodes) + 1
        nodes.append(_Node(is_true=on_path))
        source = _Node(1.0, (1, 2), is_true=True) if on_path else _Node(-rng.uniform(0.5, 1.0), (1,))
        nodes += [node._replace(parent=parent) for node in (source, *_against(rng, 1, 2))]
    return nodes


def _grow_anchors(rng: Random) -> list[_Node]:
    """One quiet node decides against a weaker one; all others are loud and have no evidence."""
    anchors = [_Node(loud=(1,)) for _ in range(rng.randint(3, 5))]
    return [_Node(1.0, is_true=True), _Node(-rng.uniform(0.2, 0.4)), *anchors]


_RECIPES: dict[str, _Recipe] = {
    "attention_decides": _Recipe(
        "Two layers of attention select one path of two edges; without attention the other class would win.",
        _grow_paths,
        lambda: PlantedNet([[1], [2]], scale=3.0),
        PlantedFacts(True, {"removal": LARGE, "weight": LARGE}, ("gatt", "occlusion"), ("avgatt", "uniform")),
    ),
    "attention_irrelevant": _Recipe(
        "Attention is uniform; one edge decides because its source has by far the most evidence.",
        lambda rng: [_Node(8.0, is_true=True), *_against(rng, 3, 6)],
        lambda: PlantedNet([[0]], scale=4.0),
        PlantedFacts(False, {"removal": LARGE, "weight": LARGE}, ("occlusion",), ("gatt", "avgatt", "uniform")),
    ),
    "skip": _Recipe(
        "Each node's own features decide, past the attention layer; attention is sharp, but no edge has an effect.",
        lambda rng: [_Node(1.0, (1,)), *_against(rng, 3, 6)],
        lambda: PlantedNet([[1]], scale=3.0, reads="own"),
        PlantedFacts(False, {"removal": NOTHING, "weight": NOTHING}),
        root_evidence=1.0,
    ),
    "saturated": _Recipe(
        "Three edges with all attention decide, but the probability is 1 also without any one of them.",
        lambda rng: [*(_Node(1.0, (1,), True) for _ in range(3)), *_against(rng, 7, 9)],
        lambda: PlantedNet([[1]], scale=60.0),
        PlantedFacts(True, {"removal": NOTHING, "weight": NOTHING}, ("gatt", "avgatt"), ("occlusion", "uniform")),
    ),
    "redundant": _Recipe(
        "Two edges carry the same evidence: if one is deleted, the other takes over its weight.",
        lambda rng: [*(_Node(1.0, (1,), True) for _ in range(2)), *_against(rng, 5, 8)],
        lambda: PlantedNet([[1]], scale=2.0),
        PlantedFacts(True, {"removal": (0.0, 1e-3), "weight": LARGE}, ("gatt", "avgatt", "occlusion"), ("uniform",)),
    ),
    "one_head": _Recipe(
        "The output reads only the first of four heads; the other heads attend to edges that are irrelevant.",
        lambda rng: [_Node(1.0, (1,), True), _Node(-0.5, (2,)), _Node(-0.5, (3,)), *_against(rng, 3, 6)],
        lambda: PlantedNet([[1, 2, 2, 3]], scale=3.0),
        PlantedFacts(True, {"removal": LARGE, "weight": LARGE}, ("occlusion",), ("gatt", "avgatt", "uniform")),
    ),
    "degree_only": _Recipe(
        "All edges of a target have the same effect, which depends on their number; deleting one changes nothing.",
        lambda rng: [_Node(1.0) for _ in range(rng.randint(2, 10))],
        lambda: PlantedNet([[0]], scale=3.0),
        PlantedFacts(False, {"removal": NOTHING, "weight": (0.01, 0.2)}),
    ),
    "degenerate": _Recipe(
        "Nearly all attention is on edges without evidence; a quiet edge decides.",
        _grow_anchors,
        lambda: PlantedNet([[1]], scale=3.0, reads="shares"),
        PlantedFacts(False, {"removal": LARGE, "weight": LARGE}, ("occlusion",), ("gatt", "avgatt", "uniform")),
    ),
}

NAMES: tuple[str, ...] = tuple(_RECIPES)
"""Names of all cases."""


def make(name: str, seed: int = 0) -> PlantedCase:
    """Make the case of a name.

    Args:
        name: One of `NAMES`.
        seed: Seed of the graph: numbers of neighbours, classes, evidence, the order of nodes and edges. The facts hold
            for every seed.

    >>> case = make("redundant", seed=0)
    >>> case.facts.strongest_effect
    {'removal': (0.0, 0.001), 'weight': (0.1, 1.0)}
    >>> case.truth.edges_of(int(case.targets[0])).shape
    torch.Size([2, 2])
    """
    expect(name in NAMES, "name", f"one of {', '.join(NAMES)}", name)
    recipe, rng = _RECIPES[name], Random(expect_seed(seed))
    rows: list[list[float]] = []
    edges: list[tuple[int, int]] = []
    true_edges: list[tuple[int, int]] = []
    labels, targets, true_counts = [], [], [0]
    for tree in range(TARGETS):
        label, root, nodes = tree % CLASSES, len(rows), recipe.grow(rng)
        targets.append(root)
        for position, node in enumerate([_Node(recipe.root_evidence), *nodes]):
            row = [0.0] * (CLASSES + LOUD)
            row[label if node.evidence > 0 else 1 - label] = abs(node.evidence)
            for column in node.loud:
                row[CLASSES + column - 1] = 1.0
            rows.append(row)
            labels.append(label)
            if position:
                edges.append((root + position, root + node.parent))
                true_edges += [edges[-1]] * node.is_true
        true_counts.append(len(true_edges))
    rng.shuffle(edges)
    new_ids = torch.tensor(rng.sample(range(len(rows)), len(rows)))
    order = new_ids.argsort()
    data = Data(
        x=torch.tensor(rows)[order],
        edge_index=new_ids[torch.tensor(edges).T],
        y=torch.tensor(labels)[order],
    )
    true_ends = torch.tensor(true_edges, dtype=torch.long).view(-1, 2).T
    truth = GroundTruth(new_ids[torch.tensor(targets)], new_ids[true_ends], torch.tensor(true_counts))
    return PlantedCase(name, recipe.sentence, recipe.net().eval(), data, truth, recipe.facts)


def all_cases(seed: int = 0) -> Iterator[PlantedCase]:
    """Make all cases, one after the other.

    >>> sum(case.has_true_edges for case in all_cases())
    6
    """
    return (make(name, seed) for name in NAMES)
