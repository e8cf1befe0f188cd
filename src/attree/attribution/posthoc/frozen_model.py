"""A frozen model for methods that compute gradients or train against it, and the base class of trained methods."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attree.attention.capture import Attention, capture_run
from attree.attention.stand_ins import eval_mode, frozen, stand_in
from attree.attribution.method import AttributionMethod, as_subject, check_runs_on_data
from attree.attribution.pairs import Pairs
from attree.attribution.result import Attribution
from attree.attribution.subgraphs import subject_pairs
from attree.errors import UnsupportedModelError, expect_seed
from attree.subject import Subject
from attree.subject.head import check_output
from attree.subject.target_roots import Targets
from attree.tensors.precision import exact_dtype


@contextmanager
def frozen_subject(subject: Subject, seed: int = 0) -> Iterator[Subject]:
    """Context that yields a subject with another stand-in of its model, whose parameters get no gradients.

    Gradients are enabled, also inside `torch.inference_mode` (as in Lightning's `test`). Methods may leave hooks,
    masks and attributes on the stand-in: nobody else has it. Torch's random generators start from `seed`, and are
    restored on exit.

    Args:
        subject: The subject.
        seed: Seed of the random generators.
    """
    model = stand_in(subject.model, frozen)
    devices = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices), eval_mode(model):
        torch.manual_seed(seed)
        yield replace(subject, model_call=replace(subject.call, model=model))


def differentiable(value: Any) -> Any:
    """Return a detached tensor, or dict of tensors, that autograd accepts: a copy if made in inference mode.

    Other values are returned unchanged.
    """
    if isinstance(value, dict):
        return {key: differentiable(item) for key, item in value.items()}
    if not isinstance(value, Tensor):
        return value
    return value.clone() if value.is_inference() else value.detach()


class Predictions:
    """Predictions of a subject's model for all targets, and losses of other outputs against them.

    Args:
        subject: The subject to explain.

    Attributes:
        output: The model's output, [rows, ...].
        logits: Class logits, [rows, classes]; for regression, the predicted numbers [rows, 1].
        classes: The predicted classes, [rows].
    """

    def __init__(self, subject: Subject) -> None:
        output = full_pass(subject).output
        check_output(output)
        self._subject = subject
        self._head = subject.head
        self.output = output.detach()
        self._measured = self._head.measured(output)
        self.logits = self._head.logits(output, self._measured).detach()
        self.classes = self.logits.argmax(dim=1)

    @property
    def are_numbers(self) -> bool:
        """Whether numbers are predicted, not classes."""
        return self._head.mode == "regression"

    @property
    def every(self) -> Tensor:
        """The target of each row of the output."""
        nodes = self._subject.outputs.nodes
        return torch.arange(self.classes.numel(), device=self.classes.device) if nodes is None else nodes

    def of(self, targets: Tensor) -> Tensor:
        """Return the logits (or numbers) of targets."""
        return self.logits[self._subject.rows(targets)]

    def read(self, output: Any, targets: Tensor) -> Tensor:
        """Return the logits (or numbers) of targets, from their rows of an output."""
        measured = None if self._measured is None else self._measured[self._subject.rows(targets)]
        return self._head.logits(output, measured)

    def explained(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the logit of each target's predicted class, [targets]."""
        return logits.gather(1, self.classes[self._subject.rows(targets)].unsqueeze(1)).view(-1)

    def probability(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the probability of each target's predicted class, or its number, [targets]."""
        wide = logits.to(exact_dtype(logits.device))  # a saturated softmax in float32 would have no gradient
        return self.explained(wide if self.are_numbers else wide.softmax(dim=1), targets)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return each target's loss against its prediction: cross-entropy, or the squared difference of numbers."""
        if self.are_numbers:
            return (logits - self.of(targets)).square().view(-1)
        return F.cross_entropy(logits, self.classes[self._subject.rows(targets)], reduction="none")


def full_pass(subject: Subject) -> Attention:
    """Return the attention of a pass over the whole graph, with output and embedding.

    If the subject's attention lacks one of the two, the model runs again. There is no embedding if the layers form no
    computation tree.
    """
    attention = subject.layers
    if attention.untraced is not None or (attention.output is not None and attention.embedding is not None):
        return attention
    return capture_run(subject.model, subject.call.run, subject.graph)


Fit = TypeVar("Fit")


class TrainedMethod(AttributionMethod, Generic[Fit]):
    """Base class of methods that score pairs with an object that was first fitted to the model.

    A method is fitted once per subject with its current weights, for any targets. Fitting is seeded, so that all
    processes of a run get the same result.

    Args:
        seed: Seed of fitting.
    """

    needs_training: ClassVar[bool] = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = expect_seed(seed)
        self._fitted: tuple[weakref.ref[Attention], Fit] | None = None

    @classmethod
    def make(cls, heads: Sequence[int] | None = None, seed: int = 0) -> Self:
        return cls(seed=seed)

    @abstractmethod
    def fit(self, subject: Subject) -> Fit:
        """Fit to a subject, whose model is frozen meanwhile."""

    @abstractmethod
    def score(self, subject: Subject, fitted: Fit, pairs: Pairs) -> Tensor:
        """Return the scores of the pairs, [P]."""

    def attribute(self, subject: Subject | Attention, targets: Targets = "all") -> Attribution:
        """Score, for every target, the edges around it on which explanations are evaluated.

        Args:
            subject: The subject to explain, with its model.
            targets: Nodes or graphs.
        """
        subject = as_subject(subject)
        fitted = self.fitted(subject)
        pairs = subject_pairs(subject, targets)
        scores = self.score(subject, fitted, pairs)
        return Attribution(self.name, subject.graph, pairs.targets, pairs.ptr, pairs.edges, scores)

    def score_pairs(self, subject: Subject | Attention, pairs: Pairs) -> Tensor:
        subject = as_subject(subject)
        pairs.check(subject.graph)
        return self.score(subject, self.fitted(subject), pairs)

    def fitted(self, subject: Subject) -> Fit:
        """Return the fitted object of the subject; fit again if its attention, and so its weights, changed."""
        check_runs_on_data(subject, self)
        if (types := subject.graph.types) is not None:
            raise UnsupportedModelError(
                f"Expected a graph with one type of nodes and edges for {self.label}, but "
                f"{subject.call.name} runs on the node types {', '.join(types.node_types)}: methods that are trained "
                "first do not support heterogeneous graphs; all others do."
            )
        if subject.level == "edge":
            raise UnsupportedModelError(
                f"Expected outputs of nodes or graphs for {self.label}, but {subject.call.name} returns one row per "
                "pair of nodes: methods that are trained first do not support these; all others do."
            )
        attention = subject.layers
        if self._fitted is None or self._fitted[0]() is not attention:
            with frozen_subject(subject, self.seed) as frozen:
                self._fitted = weakref.ref(attention), self.fit(frozen)
        return self._fitted[1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the fitted object; copies of a method are fitted again."""
        return {**vars(self), "_fitted": None}
