"""The result of the tests of attention, as a table and in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LITTLE = 0.05
"""Largest move of predictions (mean total variation) that counts as hardly any."""

ALIKE = 0.7
"""Smallest rank correlation at which scores count as similar."""


@dataclass(frozen=True)
class PredictionTest:
    """Change of the predictions with other attention.

    Attributes:
        distance: Mean total variation between the predicted distributions; for regression, the mean absolute
            difference divided by the standard deviation of the predictions.
        changed: Share of targets whose predicted class changes; NaN for regression.
        accuracy: Accuracy with the other attention; NaN without labels.
        attention: Distance of the other attention from the model's (mean total variation), if it was searched for;
            else NaN.
    """

    distance: float
    changed: float
    accuracy: float = math.nan
    attention: float = math.nan


@dataclass(frozen=True)
class AttentionTests:
    """The result of `attention_tests`; printed as a table and a few sentences.

    Attributes:
        uniform: Predictions with uniform attention.
        permuted: Predictions with attention permuted within each neighbourhood, mean over the permutations.
        adversarial: Predictions with the most different attention that the search found.
        accuracy: Accuracy of the model itself; NaN without labels.
        randomized: Rank correlation between the original scores and those with shuffled parameters: of the last
            convolution, of the last two, and so on.
        seeds: Rank correlation of scores for every two of the given models; empty if none were given.
        method: Name in tables of the method whose scores are compared.
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
        """Return a table with one row per test."""
        import pandas as pd

        rows: dict[str, dict[str, float]] = {}
        if not math.isnan(self.accuracy):
            rows["network attention"] = {
                "predictions moved": 0.0,
                "classes changed": 0.0,
                "accuracy": self.accuracy,
            }
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
        """Return all defined numbers by name, for a file of metrics."""
        table = self.to_pandas()
        return {
            f"{row}/{column}".replace(" ", "_"): float(value)
            for row, values in table.iterrows()
            for column, value in values.items()
            if not math.isnan(value)
        }

    @property
    def sentences(self) -> list[str]:
        """The conclusions from the numbers, in words."""
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        """Yield the conclusions from the tests of attention, one sentence each."""
        pinned = self.uniform.distance >= LITTLE or self.permuted.distance >= LITTLE
        if pinned:
            yield (
                f"Predictions depend on the network's attention: they move by {self.uniform.distance:.2f} with uniform "
                f"and by {self.permuted.distance:.2f} with permuted attention, so it can be an explanation."
            )
        else:
            yield (
                f"Predictions hardly depend on the network's attention: they move by {self.uniform.distance:.2f} with "
                f"uniform and by {self.permuted.distance:.2f} with permuted attention. How much a node attends to each "
                "neighbour does not explain them; which neighbours it has may."
            )
        if self.adversarial.attention >= LITTLE:
            yield (
                f"Other attention gives the same predictions: it differs by {self.adversarial.attention:.2f} of at "
                f"most 1 from the network's attention, and predictions move by {self.adversarial.distance:.3f}."
            )
        elif self.adversarial.attention > 0:
            yield (
                "The search found no other attention that gives the same predictions: it came as far as "
                f"{self.adversarial.attention:.3f} of at most 1."
            )
        defined = [value for value in self.randomized if not math.isnan(value)]
        if defined and defined[-1] >= ALIKE:
            yield (
                f"{self.method} hardly depends on the parameters: with all convolutions shuffled its scores still "
                f"correlate by {defined[-1]:.2f} with what they were. It shows the graph more than what was learned."
            )
        elif defined:
            yield f"{self.method} depends on the parameters: shuffled, its scores correlate by {defined[-1]:.2f}."
        if self.seeds:
            mean = sum(self.seeds) / len(self.seeds)
            stable = "agree" if mean >= ALIKE else "disagree"
            yield f"Models of other seeds {stable} on it (rank correlation {mean:.2f})."

    def __str__(self) -> str:
        table = self.to_pandas().to_string(float_format=lambda value: f"{value:.3f}", na_rep="")
        count = f"{self.num_targets:,} target{'' if self.num_targets == 1 else 's'}"
        return "\n".join([count, table, *(f"- {sentence}" for sentence in self.sentences)])

    def _repr_html_(self) -> str:
        table: str = self.to_pandas().to_html(float_format=lambda value: f"{value:.3f}", na_rep="")
        return table + "<ul>" + "".join(f"<li>{sentence}</li>" for sentence in self.sentences) + "</ul>"
