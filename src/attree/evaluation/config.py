"""Configuration of an evaluation: what to measure, on which targets, and which share of them this process takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from attree.attribution import DEFAULT_METHODS, METHODS, Methods, make_methods
from attree.defaults import (
    ANY_NETWORK_METHODS,
    CHEAP_METHODS,
    GLOBAL_ATTENTION_METHODS,
    NUM_TARGETS,
    POOLED_METHODS,
    RANDOM_DRAWS,
    SEED,
    UNTRACED_METHODS,
)
from attree.errors import UnsupportedModelError, expect_bool, expect_int, expect_seed
from attree.faithfulness import (
    DEFAULT_PROTOCOLS,
    ExactReducer,
    Occlusion,
    Protocols,
    Reducer,
    ReductionProtocol,
    check_protocols,
)
from attree.subject import Subject


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation: measurements and random draws. Shared by `evaluate`, the callback and the commands.

    Attributes:
        methods: Attribution methods to compare, by name (`gatt`, `avgatt`, ...) or as objects. None compares those of
            `default_methods`.
        protocols: Reduction protocols: `coefficient`, `weight`, `removal`, `authors`, or your own. Empty: no edge is
            reduced, and scores are compared with ground truth only.
        num_targets: Number of targets to draw at random if none are given; all if there are fewer.
        ground_truth: Compare scores with ground truth if the data has any.
        random_draws: Number of draws that the statistics of random methods are averaged over.
        seed: Seed of the drawn targets and of random methods.
        intervals: Compute a 95 % interval over targets for every statistic.
        sets: Also measure the predictions without the highest-scored edges, and with only these edges. This takes
            several times as long as all other measurements.

    >>> EvaluationConfig(methods=["gatt"], protocols="removal").protocols
    ('removal',)
    """

    methods: Methods | None = None
    protocols: Protocols = DEFAULT_PROTOCOLS
    num_targets: int = NUM_TARGETS
    ground_truth: bool = True
    random_draws: int = RANDOM_DRAWS
    seed: int = SEED
    intervals: bool = True
    sets: bool = False

    def __post_init__(self) -> None:
        """Check all settings of the evaluation, and replace the names of methods and protocols by objects."""
        expect_seed(self.seed)
        if self.methods is not None:
            object.__setattr__(self, "methods", tuple(make_methods(self.methods, seed=self.seed).values()))
        object.__setattr__(self, "protocols", tuple(check_protocols(self.protocols)))
        expect_int(self.num_targets, "num_targets", at_least=1)
        expect_bool(self.ground_truth, "ground_truth")
        expect_int(self.random_draws, "random_draws", at_least=1)
        expect_bool(self.sets, "sets")
        expect_bool(self.intervals, "intervals")


def default_methods(reducer: Reducer | None, protocols: Iterable[ReductionProtocol]) -> list[str]:
    """Return the names of the methods to compare by default, in the order of tables.

    Args:
        reducer: The object that reduces edges; None if no edges are reduced. If it uses exact updates, methods that
            read the measured effects (`occlusion`) are cheap, and are included.
        protocols: The protocols that are measured. Without `removal`, occlusion would have to be measured by itself.
    """
    if reducer is not None and reducer.subject.layers.untraced is not None:
        untraced = UNTRACED_METHODS if reducer.subject.layers.runs_on_data else POOLED_METHODS
        return [name for name in METHODS if name in untraced]
    if reducer is not None and not reducer.subject.layers.has_attention:
        try:
            over_all_nodes = reducer.subject.global_trace is not None
        except UnsupportedModelError:  # no walk can follow it; all other methods can
            over_all_nodes = False
        names = GLOBAL_ATTENTION_METHODS if over_all_nodes else ANY_NETWORK_METHODS
        return [name for name in METHODS if name in names]
    is_measured = str(Occlusion().protocol) in map(str, protocols)
    cheap = is_measured and reducer is not None and isinstance(reducer.engine, ExactReducer)
    compared = {*DEFAULT_METHODS, *(CHEAP_METHODS if cheap else ())}
    return [name for name in METHODS if name in compared]


def defined_protocols(protocols: tuple[ReductionProtocol, ...], subject: Subject) -> tuple[ReductionProtocol, ...]:
    """Return the protocols that are defined for a subject, if these are the default ones; otherwise all.

    A protocol that reduces an edge in every layer is not defined if some layers run on other nodes or edges than those
    of the data. A warning says so.
    """
    defined = tuple(protocol for protocol in protocols if protocol.deletes or subject.layers.runs_on_data)
    is_default = tuple(protocol.name for protocol in protocols) == DEFAULT_PROTOCOLS
    if not is_default or len(defined) == len(protocols):
        return protocols
    names = ", ".join(f"`{protocol.name}`" for protocol in protocols if protocol not in defined)
    warnings.warn(
        f"Only `{defined[0].name}` is measured: {names} reduces an edge in every layer, but not all layers of "
        f"{subject.call.name} run on the nodes and edges of the data.",
        stacklevel=3,
    )
    return defined


@dataclass(frozen=True)
class Shard:
    """This process's share of the targets: consecutive ones, so that the shares of all ranks follow one another."""

    rank: int = 0
    world_size: int = 1

    def of(self, items: Tensor) -> Tensor:
        """Return this process's share of a tensor's entries."""
        begin, end = (len(items) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return items[begin:end]
