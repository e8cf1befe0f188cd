"""The verdict that README and quick start print is the one that today's rules make of the table printed above it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import torch

from attree.evaluation.certainty import Difference
from attree.evaluation.names import METRIC_LABELS, MetricName
from attree.evaluation.verdict_rules import judge

QUICK_START = Path(__file__).parents[2] / "docs" / "quick_start.md"
ROWS = {"confidence, Pearson": "pc_pearson", "confidence, Kendall": "pc_kendall", "ground truth, AUROC": "truth_auroc"}


class Printed(SimpleNamespace):
    """The evaluation behind a printed table, as far as the rules ask: numbers and halves of intervals are the table's.

    Differences have no interval in the table; they count as certain from 0.05 on.
    """

    def __init__(self, table: str, agreement: float) -> None:
        head, *lines = table.splitlines()
        labels = head.split()[1:]
        self.labels = {label.lower(): label for label in labels}
        self.values: dict[str, tuple[float, float]] = {}
        protocol = None
        for line in lines:
            protocol = line if line in ("weight", "removal") else protocol
            statistic = ROWS.get(line[:20].strip())
            cells = re.findall(r"(-?\d\.\d+) ±(\.\d+)", line)
            if statistic is not None:
                for method, (value, half) in zip(self.labels, cells, strict=True):
                    self.values[str(MetricName(method, statistic, protocol))] = (float(value), float(half))
        one, other = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([1.0, 1.0, -1.0, -1.0])
        mixed = agreement * one + math.sqrt(1 - agreement**2) * other
        super().__init__(
            metrics={name: value for name, (value, _) in self.values.items()},
            pair_scores=self.labels,
            reductions={"weight": SimpleNamespace(delta_pc=one), "removal": SimpleNamespace(delta_pc=mixed)},
            predictions=torch.full((100, 2), 0.5),
            statistic_labels=METRIC_LABELS,
            pairs=range(100),
            targets=torch.arange(100),
            num_targets=100,
            seconds=dict.fromkeys(self.labels, 0.1),
        )

    @property
    def certainty(self) -> Printed:
        return self

    def num_changed_targets(self, protocol: str) -> int:
        return 100

    def interval(self, method: str, protocol: str, statistic: str = "truth_auroc") -> tuple[float, float]:
        value, half = self.values[str(MetricName(method, statistic, None if protocol == "truth" else protocol))]
        return value - half, value + half

    def difference(self, first: object, second: object, *rest: object) -> Difference:
        if isinstance(first, dict):  # as `certainty` is asked: metrics and two names
            value = first[str(second)] - first[str(rest[0])]
        else:
            protocol, statistic = (*rest, "truth_auroc")[:2]
            names = [
                str(MetricName(one, statistic, None if protocol == "truth" else protocol)) for one in (first, second)
            ]
            value = self.metrics[names[0]] - self.metrics[names[1]]
        return Difference(value, value - 0.05, value + 0.05)


def wording(sentence: str) -> str:
    """A sentence without what the table does not have: intervals and third digits."""
    return re.sub(r"[+-]?\d\.\d{3}", "#", re.sub(r"\[[^]]*\]", "[]", sentence))


def test_the_printed_verdict_follows_from_the_printed_table() -> None:
    """README shows some lines of the same; tests/test_readme.py compares the two."""
    (shown,) = re.findall(r"```\n(metric .*?)```", QUICK_START.read_text(), flags=re.DOTALL)
    table, *sentences = shown.rstrip().split("\n- ")
    agreement = float(re.search(r"effects under .* have a correlation of (\d\.\d+)", shown)[1])
    said = judge(Printed(table, agreement)).sentences
    assert [wording(sentence) for sentence in sentences] == [wording(sentence) for sentence in said]
