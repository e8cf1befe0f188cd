"""What tests of attention came to: a table, and what it says in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LITTLE = 0.05
"""Predictions that move less than this (mean total variation) hardly depend on what was changed."""

ALIKE = 0.7
"""A rank correlation from here on says that scores are much the same."""


@dataclass(frozen=True)
class PredictionTest:
    """What predictions do with another attention.

    Attributes:
        distance: Mean total variation between the predicted distributions; of numbers, the mean absolute difference as
            a share of their standard deviation.
        changed: Share of targets whose predicted class changes; NaN where no classes are predicted.
        accuracy: Share of targets whose class is then right; NaN without labels.
        attention: How far attention itself was moved (mean total variation), where that was searched for; else NaN.
    """

    distance: float
    changed: float
    accuracy: float = math.nan
    attention: float = math.nan


@dataclass(frozen=True)
class AttentionTests:
    """What the tests came to; printed as a table and a few sentences.

    Attributes:
        uniform: Predictions with uniform attention.
        permuted: Predictions with attention permuted within each neighbourhood, mean over the permutations.
        adversarial: Predictions with attention that was moved as far as they allow.
        accuracy: Accuracy of the model as it is; NaN without labels.
        randomized: Rank correlation of scores before and after the parameters of the last convolution, of the last two,
            and so on, are shuffled.
        seeds: Rank correlation of scores between every two of the models that were given; empty without.
        method: What tables call the method whose scores are compared.
        num_targets: Number of targets.
    """

    uniform: PredictionTest
    permuted: PredictionTest
    adversarial: PredictionTest
    accuracy: float
    randomized: list[float]
    seeds: list[float] = field(default_factory=list)
    method: str = "GAtt"
    num_targets: int = 0

    def to_pandas(self) -> pd.DataFrame:
        """One row per test."""
        import pandas as pd

        rows: dict[str, dict[str, float]] = {}
        if not math.isnan(self.accuracy):
            rows["learned attention"] = {"predictions moved": 0.0, "classes changed": 0.0, "accuracy": self.accuracy}
        rows |= {
            f"{name} attention": {
                "predictions moved": test.distance,
                "classes changed": test.changed,
                "accuracy": test.accuracy,
                "attention moved": test.attention,
            }
            for name, test in (("uniform", self.uniform), ("permuted", self.permuted), ("other", self.adversarial))
        }
        for count, value in enumerate(self.randomized, start=1):
            layers = "last layer" if count == 1 else f"last {count} layers"
            rows[f"{layers} shuffled"] = {"rank correlation of scores": value}
        if self.seeds:
            rows["other seeds"] = {"rank correlation of scores": sum(self.seeds) / len(self.seeds)}
        return pd.DataFrame.from_dict(rows, orient="index")

    def to_dict(self) -> dict[str, float]:
        """The numbers by name, as a file of metrics takes them."""
        table = self.to_pandas()
        return {
            f"{row}/{column}".replace(" ", "_"): float(value)
            for row, values in table.iterrows()
            for column, value in values.items()
            if not math.isnan(value)
        }

    @property
    def sentences(self) -> list[str]:
        """What the numbers say."""
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        pinned = self.uniform.distance >= LITTLE or self.permuted.distance >= LITTLE
        if pinned:
            yield (
                f"Predictions depend on the learned attention: they move by {self.uniform.distance:.2f} with uniform "
                f"and by {self.permuted.distance:.2f} with permuted attention, so it can be an explanation."
            )
        else:
            yield (
                f"Predictions hardly depend on the learned attention: they move by {self.uniform.distance:.2f} with "
                f"uniform and by {self.permuted.distance:.2f} with permuted attention. How much a node attends to each "
                "neighbour does not explain them; which neighbours it has may."
            )
        if self.adversarial.attention >= LITTLE:
            yield (
                f"Other attention gives the same predictions: it differs by {self.adversarial.attention:.2f} of at "
                f"most 1 from the learned attention, and predictions move by {self.adversarial.distance:.3f}."
            )
        elif self.adversarial.attention > 0:
            yield (
                "The search found no other attention that gives the same predictions: it came as far as "
                f"{self.adversarial.attention:.3f} of at most 1."
            )
        known = [value for value in self.randomized if not math.isnan(value)]
        if known and known[-1] >= ALIKE:
            yield (
                f"{self.method} hardly depends on the parameters: with all convolutions shuffled its scores still "
                f"correlate by {known[-1]:.2f} with what they were. It shows the graph more than what was learned."
            )
        elif known:
            yield f"{self.method} depends on the parameters: shuffled, its scores correlate by {known[-1]:.2f}."
        if self.seeds:
            mean = sum(self.seeds) / len(self.seeds)
            stable = "agree" if mean >= ALIKE else "disagree"
            yield f"Models of other seeds {stable} on it (rank correlation {mean:.2f})."

    def __str__(self) -> str:
        table = self.to_pandas().to_string(float_format=lambda value: f"{value:.3f}", na_rep="")
        count = f"{self.num_targets:,} target{'' if self.num_targets == 1 else 's'}"
        return "\n".join([count, table, *(f"- {one}" for one in self.sentences)])

    def _repr_html_(self) -> str:
        table: str = self.to_pandas().to_html(float_format=lambda value: f"{value:.3f}", na_rep="")
        return table + "<ul>" + "".join(f"<li>{one}</li>" for one in self.sentences) + "</ul>"
