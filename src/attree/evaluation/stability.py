"""Is an explanation stable? Of the same network trained again, and of a prediction from the edges that were kept.

An explanation that changes with the seed explains the seed. Agreement between models is compared with the agreement of
the measured effects: models that use other edges ought to have other explanations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from attree.attribution import AttributionMethod, Methods, make_methods
from attree.defaults import SEED
from attree.errors import expect, expect_int, expect_list, expect_number
from attree.evaluation.config import EvaluationConfig
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.metric_names import WITHIN, MetricName
from attree.evaluation.result import Evaluation
from attree.faithfulness import ReductionProtocol
from attree.metrics.functional import pearson, pearson_by_target
from attree.metrics.functional.faithfulness import TargetDeviations
from attree.source import ExplainedModel, Reading, explained_by_user
from attree.subject import Head, Subject
from attree.subject.arguments_from_data import Call
from attree.subject.head import Mode, ReturnType
from attree.subject.readout import Readout
from attree.subject.target_roots import Level, Targets

if TYPE_CHECKING:
    import pandas as pd

SIMILAR = 0.7
"""Smallest agreement that counts as similar explanations."""

BETTER = 0.02
"""Smallest gain of the mean over models that is worth to be told."""


@dataclass(frozen=True)
class Stability:
    """How much explanations agree between models; printed as a table and a sentence.

    All numbers are correlations within targets, as means over targets.

    Attributes:
        agreement: By method, of the scores of two models, also as the mean over every two models.
        effects: The same of the measured effects of edges: how much the models themselves agree.
        alone: By method, of each model's own scores with its own effects, as the mean over the models.
        averaged: By method, of the mean of all models' scores with the effects of each model. The scores of a target
            are brought to one scale before.
        reexplained: By method, of the scores of a target's strongest edges with their scores after all its other edges
            were deleted; for the first model. Empty for graphs with several types.
        same_prediction: Share of targets for which all models predict the same class; NaN for regression.
        labels: Names of the methods in tables.
        protocol: The protocol of the effects.
        num_models: Number of models.
        num_targets: Number of targets.
    """

    agreement: dict[str, float]
    effects: float
    alone: dict[str, float]
    averaged: dict[str, float]
    reexplained: dict[str, float] = field(default_factory=dict)
    same_prediction: float = math.nan
    labels: dict[str, str] = field(default_factory=dict)
    protocol: str = "removal"
    num_models: int = 2
    num_targets: int = 0

    @property
    def sentence(self) -> str:
        """The result in one sentence, about the first method."""
        method = next(iter(self.agreement))
        label, agreement = self.labels.get(method, method), self.agreement[method]
        alike = "similar" if agreement >= SIMILAR else "not similar"
        gain = self.averaged[method] - self.alone[method]
        mean = "no better guide" if gain < BETTER else "a better guide"
        return (
            f"Trained again, the network has {alike} explanations: {label} of {self.num_models} models agree by "
            f"{agreement:.2f}, the effects themselves by {self.effects:.2f}. The mean of their scores is {mean} than a "
            f"model's own ({self.averaged[method]:.2f}, {self.alone[method]:.2f})."
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per method."""
        import pandas as pd

        columns = {
            "agreement of models": self.agreement,
            "own scores": self.alone,
            "mean of models": self.averaged,
            "kept edges": self.reexplained,
        }
        rows = {name: [values.get(name, math.nan) for values in columns.values()] for name in self.agreement}
        table = pd.DataFrame.from_dict(rows, orient="index", columns=list(columns))
        return table.rename(index=self.labels).dropna(axis="columns", how="all")

    def __str__(self) -> str:
        head = f"{self.num_models} models, {self.num_targets} targets, effects under `{self.protocol}`"
        same = (
            "" if math.isnan(self.same_prediction) else f"; all predict the same class for {self.same_prediction:.0%}"
        )
        return f"{head}{same}\n{self.to_pandas().round(2).to_string()}\n{self.sentence}"


def stability(
    models: Sequence[nn.Module | str | Path],
    data: Any,
    targets: Targets | None = None,
    methods: Methods = ("gatt", "avgatt", "attention_gradient"),
    protocol: str | ReductionProtocol = "removal",
    *,
    num_targets: int | None = None,
    share: float = 0.2,
    kept_targets: int = 10,
    call: Call | None = None,
    level: Level | None = None,
    node_type: str | None = None,
    readout: Readout | None = None,
    mode: Mode | None = None,
    return_type: ReturnType | None = None,
    label: int | None = None,
    seed: int = SEED,
) -> Stability:
    """Measure how much explanations agree between models that differ in the seed of their training alone.

    Args:
        models: Two or more models of the same architecture, or folders of runs of `attree fit`.
        data: What the models run on, as in `attree.evaluate`.
        targets: Nodes, pairs or graphs, as in `attree.evaluate`; None draws `num_targets`.
        methods: Attribution methods, by name or as objects.
        protocol: The protocol of the effects.
        num_targets: Number of targets to draw at random, 100 by default.
        share: Share of a target's edges that are kept, those with the largest scores, to explain it again.
        kept_targets: Number of targets that are explained again; 0 leaves this out.
        call: Function that calls the models, as in `attree.evaluate`.
        level: What a row of outputs belongs to, as in `attree.evaluate`.
        node_type: The node type to explain, as in `attree.evaluate`.
        readout: For graph-level models, how nodes become a graph, as in `attree.evaluate`.
        mode: PyG's mode, as in `attree.evaluate`.
        return_type: PyG's return type, as in `attree.evaluate`.
        label: Index of the label or number to measure, if the models predict several.
        seed: Seed of the drawn targets.

    Returns:
        The result. Print it, or use its attributes, `sentence` and `to_pandas()`.

    >>> from torch_geometric.nn import GAT
    >>> graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
    >>> model = GAT(8, 16, 2, out_channels=3)
    >>> round(stability([model, model], graph, num_targets=5, methods="gatt").agreement["gatt"], 6)
    1.0
    """
    expect_number(share, "share", above=0)
    expect(share <= 1, "share", "at most 1", share)
    expect_int(kept_targets, "kept_targets", at_least=0)
    first, *others = model_list(models)
    expect(len(others) >= 1, "models", "two models or more", 1)
    config = EvaluationConfig(methods, [protocol], seed=seed)
    reading = Reading(call, level, node_type, readout, Head(mode, return_type, label))
    explained = explained_by_user(first, data, targets, num_targets, reading, None, seed)
    results = evaluated_peers([first, *others], explained, reading, config, protocol)
    reexplained = {}
    if kept_targets and type(explained.graph) is Data:
        again = _Again(first, explained.graph, explained.subject, reading, share)
        reexplained = {
            name: again.correlation(method, explained.targets[:kept_targets])
            for name, method in make_methods(methods, seed=seed).items()
        }
    return stability_of(results, reexplained)


def evaluated_peers(
    models: Sequence[nn.Module | str | Path],
    explained: ExplainedModel,
    reading: Reading,
    config: EvaluationConfig,
    protocol: str | ReductionProtocol,
) -> list[Evaluation]:
    """Return the evaluations of other models on the same graph and targets under one protocol.

    Args:
        models: The models, or folders of their runs.
        explained: The model that they are compared with.
        reading: How the models are called.
        config: The methods and the seed.
        protocol: The protocol.
    """
    same = replace(config, protocols=protocol, random_draws=1, intervals=False, sets=False)
    expect(explained.graph is not None, "data", "a graph or batch, to run other models on", "a Subject")
    graph = cast(Data, explained.graph)
    subjects = [reading.subject(model, graph) for model in model_list(models)]
    return [Evaluator(subject, explained.targets, same).evaluate() for subject in subjects]


def stability_of(results: Sequence[Evaluation], reexplained: Mapping[str, float] | None = None) -> Stability:
    """Return how much the explanations of several evaluations of the same targets agree.

    Args:
        results: The evaluations, one per model; they are compared under the first protocol of the first one.
        reexplained: By method, how much the scores of kept edges agree; None if it was not measured.
    """
    first = results[0]
    for other in results[1:]:
        same = torch.equal(first.pairs.edges, other.pairs.edges) and torch.equal(first.targets, other.targets)
        expect(same, "models", "models that read the same edges around every target (equal depth)", "others")
    protocol = next(iter(first.reductions))
    effects = [result.reductions[protocol].delta_pc for result in results]
    agreement, alone, averaged = {}, {}, {}
    for method in first.pair_scores:
        scores = [result.pair_scores[method] for result in results]
        agreement[method] = _mean_of_pairs(first, scores)
        name = str(MetricName(method, WITHIN, protocol))
        alone[method] = _mean([result.metrics[name] for result in results])
        owner, count = first.pairs.owner, len(first.targets)
        mean = torch.stack([TargetDeviations(column, owner, count).values for column in scores]).mean(dim=0)
        averaged[method] = _mean([float(_by_target(first, mean, effect).nanmean()) for effect in effects])
    return Stability(
        agreement,
        _mean_of_pairs(first, effects),
        alone,
        averaged,
        dict(reexplained or {}),
        _same_prediction(results),
        first.method_labels,
        protocol,
        len(results),
        first.num_targets,
    )


class _Again:
    """Explains targets once more, after all but their strongest edges were deleted from the graph."""

    def __init__(self, model: nn.Module, graph: Data, subject: Subject, reading: Reading, share: float) -> None:
        self._model, self._graph, self._subject, self._reading, self._share = model, graph, subject, reading, share

    def correlation(self, method: AttributionMethod, targets: Tensor) -> float:
        """Return the mean over targets of the correlation of the kept edges' scores before and after."""
        scores, values = method.attribute(self._subject, targets), []
        for target in targets.tolist():
            mask = scores.edge_mask(target)
            reached = scores[target].edges
            in_tree = torch.zeros(scores.graph.num_edges, dtype=torch.bool, device=mask.device)
            in_tree[reached.to(mask.device)] = True
            tree = scores.graph.to_original(in_tree).nonzero().view(-1)
            count = math.ceil(self._share * tree.numel())
            strongest = tree[mask[tree].abs().argsort(descending=True, stable=True)[:count]].sort().values
            is_kept = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
            is_kept[strongest] = True
            smaller = self._reading.subject(self._model, self._graph.edge_subgraph(is_kept))
            after = method.attribute(smaller, torch.tensor([target])).edge_mask(target)
            values.append(
                float(pearson(mask[strongest].cpu().double(), after.cpu().double())) if count > 1 else math.nan
            )
        return _mean(values)


def model_list(models: Sequence[nn.Module | str | Path]) -> list[nn.Module]:
    """Return the models of a list of models and of folders of runs."""
    from attree.runs import load_run

    items = expect_list(models, "models", (nn.Module, str, Path), "models or folders of runs")
    return [model if isinstance(model, nn.Module) else load_run(model).net for model in items]


def _mean_of_pairs(result: Evaluation, columns: Sequence[Tensor]) -> float:
    """Return the mean correlation within targets of every two columns; those that are constant in one do not count."""
    # A correlation with a constant is NaN in one order, and 0 in the other.
    both = [(_by_target(result, x, y) + _by_target(result, y, x)) / 2 for x, y in combinations(columns, 2)]
    return _mean([float(values.nanmean()) for values in both])


def _by_target(result: Evaluation, scores: Tensor, effects: Tensor) -> Tensor:
    """Return the correlation of two columns over the edges of each target."""
    return pearson_by_target(scores, effects, result.pairs.owner, len(result.targets))


def _same_prediction(results: Sequence[Evaluation]) -> float:
    predictions = [result.predictions for result in results if result.predictions is not None]
    if len(predictions) < len(results):
        return math.nan
    classes = torch.stack([prediction.argmax(dim=-1) for prediction in predictions])
    return float((classes == classes[0]).all(dim=0).float().mean())


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan
