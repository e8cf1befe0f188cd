"""The measured effects of one subject: everyone who needs the same reduction shares one measurement."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import Tensor

from attree.attribution.pairs import Pairs
from attree.faithfulness.choose import RecordedPass, Reducer
from attree.faithfulness.protocol import ReductionProtocol
from attree.faithfulness.reduction import Progress, Reduction
from attree.faithfulness.whole import WholeReducer
from attree.subject import Subject


class Effects:
    """What reducing edges does to a subject's predictions, with the weights of one forward pass.

    An evaluation measures reductions to judge methods by them, and `Occlusion` scores edges by the same numbers. Both
    ask the effects of their subject, so that nothing is measured twice.

    Args:
        recorded: The forward pass in which edges are reduced.
    """

    def __init__(self, recorded: RecordedPass) -> None:
        self.recorded = recorded
        self._kept: dict[tuple[int, ReductionProtocol], Reduction] = {}

    @classmethod
    def of(cls, subject: Subject, recorded: RecordedPass | None = None) -> Effects:
        """The effects of a subject, kept as long as the subject lives.

        Args:
            subject: What is explained. Like its attention, its effects are computed once, when first asked for.
            recorded: A forward pass of this subject, where one is at hand.
        """
        if recorded is not None:
            _KNOWN[subject] = cls(recorded)
        elif subject not in _KNOWN:
            _KNOWN[subject] = cls(Reducer(subject).record())
        return _KNOWN[subject]

    @property
    def are_local(self) -> bool:
        """Whether only edges that carry a flow to a target can have an effect on it, as far as is known."""
        return not isinstance(self.recorded.engine, WholeReducer)

    def reduce(
        self,
        pairs: Pairs,
        protocol: ReductionProtocol,
        progress: Progress | None = None,
        *,
        with_probability: bool = False,
    ) -> Reduction:
        """Reduce every pair's edge, one at a time; pairs that were reduced before are not reduced again.

        Args:
            pairs: The pairs.
            protocol: What happens to their edges.
            progress: Called as `progress(done, total)` with numbers of pairs each time some have been reduced.
            with_probability: Also hold class probabilities after each reduction.
        """
        key = id(pairs), protocol  # a kept reduction holds its pairs, so no others can have their id
        kept = self._kept.get(key)
        if kept is not None and (kept.probability is not None or not with_probability):
            return kept
        reduction = self.recorded.reduce(pairs, protocol, with_probability=with_probability, progress=progress)
        self._kept[key] = reduction
        return reduction

    def once(self, pairs: Pairs, protocol: ReductionProtocol) -> Tensor:
        """The dPC of every pair, [P], for pairs that nobody else asks for: nothing is kept."""
        return self.recorded.effect(pairs, protocol)


_KNOWN: WeakKeyDictionary[Subject, Effects] = WeakKeyDictionary()
