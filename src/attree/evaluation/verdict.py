"""What an evaluation says, in plain words: which explanation to trust, and what is too uncertain to say.

The rules are data: `attree.evaluation.verdict_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from attree.evaluation.verdict_numbers import best_first, exact_methods
from attree.evaluation.verdict_rules import RULES, SAME

if TYPE_CHECKING:
    from attree.evaluation.result import Evaluation

PROTOCOL = "removal"
"""The protocol that a method is recommended for, where it was measured."""


@dataclass(frozen=True)
class Finding:
    """One thing that an evaluation says.

    Attributes:
        rule: Name of the rule that found it.
        sentence: It in words.
    """

    rule: str
    sentence: str


class Verdict(tuple[Finding, ...]):
    """What an evaluation says, finding by finding.

    Attributes:
        method: Name of the method that foretells the model best, under `removal` if that was measured, else under the
            last protocol; `occlusion` under `removal`, whose effect it is. None if no correlation is above `SAME`.
    """

    method: str | None

    def __new__(cls, findings: Iterable[Finding] = (), method: str | None = None) -> Self:
        verdict = super().__new__(cls, findings)
        verdict.method = method
        return verdict

    @property
    def sentences(self) -> list[str]:
        """The findings in words."""
        return [finding.sentence for finding in self]

    @property
    def rules(self) -> set[str]:
        """Names of the rules that had something to say."""
        return {finding.rule for finding in self}

    def __str__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.sentences)


def judge(evaluation: Evaluation) -> Verdict:
    """Ask every rule of `RULES`."""
    findings = (Finding(rule.name, sentence) for rule in RULES for sentence in rule.answer(evaluation))
    return Verdict(findings, _recommended(evaluation))


def _recommended(evaluation: Evaluation) -> str | None:
    """The method to explain the model by."""
    if not evaluation.reductions:
        return None
    protocol = PROTOCOL if PROTOCOL in evaluation.reductions else list(evaluation.reductions)[-1]
    foretelling = [method for method, value in best_first(evaluation, protocol).items() if value > SAME]
    return next(iter([*exact_methods(evaluation, protocol), *foretelling]), None)
