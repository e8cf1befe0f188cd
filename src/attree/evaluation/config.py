"""What an evaluation measures: one configuration for evaluate, the callback and the commands."""

from __future__ import annotations

from dataclasses import dataclass

from attree.attribution import DEFAULT_METHODS, METHODS, Methods, make_methods
from attree.defaults import CHEAP_METHODS, NUM_TARGETS, RANDOM_DRAWS, RESAMPLES, SEED
from attree.errors import expect_bool, expect_int, expect_seed
from attree.faithfulness import DEFAULT_PROTOCOLS, ExactReducer, Protocols, Reducer, check_protocols


@dataclass(frozen=True)
class EvaluationConfig:
    """What is measured of a model's explanations, and with which random draws.

    Attributes:
        methods: Attribution methods that are compared: names (`gatt`, `avgatt`, ...), or methods of one's own. None
            takes those of `default_methods`.
        protocols: What reducing an edge means: `coefficient`, `weight`, `removal`, `authors`, or protocols of one's
            own. Empty: nothing is reduced, and scores are compared with ground truth alone.
        num_targets: How many targets are drawn at random where none are named; all where there are fewer.
        ground_truth: Compare scores with ground truth where the data has some.
        random_draws: Over how many draws the statistics of random methods are averaged.
        seed: Seed of drawn targets, of methods that draw and of resampling.
        resamples: How often targets are resampled for the 95 % interval of a statistic; 0 makes no intervals.
        sets: Also judge methods by sets of edges: what the model predicts without the edges that they score highest,
            and with these alone. Takes several times as long as all else.

    >>> EvaluationConfig(methods=["gatt"], protocols="removal").protocols
    ('removal',)
    """

    methods: Methods | None = None
    protocols: Protocols = DEFAULT_PROTOCOLS
    num_targets: int = NUM_TARGETS
    ground_truth: bool = True
    random_draws: int = RANDOM_DRAWS
    seed: int = SEED
    resamples: int = RESAMPLES
    sets: bool = False

    def __post_init__(self) -> None:
        expect_seed(self.seed)
        if self.methods is not None:
            object.__setattr__(self, "methods", tuple(make_methods(self.methods, seed=self.seed).values()))
        object.__setattr__(self, "protocols", tuple(check_protocols(self.protocols)))
        expect_int(self.num_targets, "num_targets", at_least=1)
        expect_bool(self.ground_truth, "ground_truth")
        expect_int(self.random_draws, "random_draws", at_least=1)
        expect_bool(self.sets, "sets")
        expect_int(self.resamples, "resamples", at_least=0)


def default_methods(reducer: Reducer | None) -> list[str]:
    """Names of the methods that are compared where the user names none, in the order of tables.

    Args:
        reducer: What reduces edges; None where none are. Where it does so by exact updates, methods that read these
            effects are cheap, and are compared too.
    """
    cheap = reducer is not None and isinstance(reducer.engine, ExactReducer)
    wanted = {*DEFAULT_METHODS, *(CHEAP_METHODS if cheap else ())}
    return [name for name in METHODS if name in wanted]
