"""Penalties in training: made from a config, computed from the attention of a step, in any loop or by a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from attree.attention import Attention, Graph
from attree.attention.capture import attention_of_pass
from attree.attention.graph import Types, plain
from attree.attention.instruments import LayerCall, Softmax, is_edge_index
from attree.attention.layer_records import Alter, LayerRecords, record_layers
from attree.attention.stand_ins import run_eagerly
from attree.data.ground_truth import GroundTruth
from attree.errors import ArgumentError, UnsupportedModelError, did_you_mean, expect, expect_name
from attree.penalties.distribution import GSAT, Entropy, HeadAgreement, Sparsity, UniformDistance
from attree.penalties.gatt_scores import EffectConsistency, TrueEdges
from attree.penalties.penalty import AttentionPenalty, PenalizedStep, check_number

PENALTIES: dict[str, type[AttentionPenalty]] = {
    penalty.name: penalty
    for penalty in (Entropy, UniformDistance, Sparsity, HeadAgreement, TrueEdges, EffectConsistency, GSAT)
}
"""attree's own penalties by name."""

PenaltiesArgument = Mapping[str, Any] | Iterable[AttentionPenalty]
"""Type of the argument `penalties`: penalties, or a mapping of names to settings, see `make_penalties`."""


def make_penalties(penalties: PenaltiesArgument | None) -> dict[str, AttentionPenalty]:
    """Make penalties, and return them by the name under which each is logged.

    Args:
        penalties: Penalties, or a mapping. In a mapping, the name of one of attree's penalties has its strength as
            value, or its arguments (`true_edges: {share: 0.1}`, on the command line also `true_edges.share: 0.1`). Your
            own penalty has `class_path` and `init_args` as value, under any name.

    >>> made = make_penalties({"entropy": 0.1, "true_edges": {"strength": 2.0, "share": 0.1}})
    >>> made["entropy"].strength, made["true_edges"].share
    (0.1, 0.1)
    """
    if penalties is None:
        return {}
    if isinstance(penalties, Mapping):
        return {expect_name(name, "penalties"): _make(name, value) for name, value in _nested(penalties).items()}
    is_list = isinstance(penalties, Iterable) and not isinstance(penalties, str)
    penalty_list = list(penalties) if is_list else []
    fits = is_list and all(isinstance(penalty, AttentionPenalty) for penalty in penalty_list)
    expect(fits, "penalties", "penalties, or a mapping of their names to strengths", penalties)
    for penalty in penalty_list:
        _check_class(penalty)
        if not hasattr(penalty, "name"):
            raise ArgumentError(f"Expected {type(penalty).__name__} to have a `name`, which is used for logging.")
    names = [penalty.name for penalty in penalty_list]
    expect(len(set(names)) == len(names), "penalties", "penalties of different names (a mapping gives names)", names)
    return dict(zip(names, penalty_list, strict=True))


def plain_settings(penalties: Mapping[str, AttentionPenalty]) -> dict[str, Any]:
    """Return the arguments of attree's own penalties, from which `make_penalties` can make them again.

    >>> plain_settings({"entropy": Entropy(0.1)})
    {'entropy': {'strength': 0.1, 'flatter': False}}
    """
    own_penalties = {name: penalty for name, penalty in penalties.items() if PENALTIES.get(name) is type(penalty)}
    settings = {name: penalty.settings() for name, penalty in own_penalties.items()}
    return {name: value for name, value in settings.items() if value is not None}


def only_own(settings: Any) -> dict[str, Any]:
    """Return only the settings of attree's own penalties.

    The settings come from files that may not be trusted, and creating other penalties would run their code.
    """
    if not isinstance(settings, Mapping):
        return {}
    return {
        name: value
        for name, value in settings.items()
        if name in PENALTIES and not (isinstance(value, Mapping) and "class_path" in value)
    }


def _nested(penalties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with each `name.argument: value` replaced by `name: {argument: value}`."""
    nested: dict[str, Any] = {}
    for key, value in penalties.items():
        name, dot, argument = expect_name(key, "penalties").partition(".")
        if dot:
            added: Any = {argument: value}
        elif name in nested and not isinstance(value, Mapping):
            added = {"strength": value}
        else:
            added = value
        before = nested.get(name)
        if before is not None and isinstance(added, Mapping):
            added = {**(before if isinstance(before, Mapping) else {"strength": before}), **added}
        nested[name] = added
    return nested


def _value(text: str) -> Any:
    """Convert a text from the command line to a number or bool if it is one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return text


def _make(name: str, value: Any) -> AttentionPenalty:
    """Create one penalty from its entry in the config."""
    if isinstance(value, AttentionPenalty):
        return _check_class(value)
    where = f"penalties.{name}"
    if isinstance(value, Mapping) and "class_path" in value:
        extra = sorted(set(value) - {"class_path", "init_args"})
        expect(not extra, where, "only `class_path` and `init_args`", extra)
        arguments = value.get("init_args") or {}
        expect(isinstance(arguments, Mapping), f"{where}.init_args", "a mapping of arguments", arguments)
        return _check_class(_call(_imported(str(value["class_path"]), where), arguments, where))
    if name not in PENALTIES:
        raise ArgumentError(
            f"Expected argument `penalties` to name some of {', '.join(PENALTIES)}, or to give a `class_path`, but got "
            f"{name!r}.{did_you_mean(name, PENALTIES)}"
        )
    arguments = value if isinstance(value, Mapping) else {"strength": value}
    # The command line passes nested arguments as text.
    arguments = {
        key: _value(argument) if isinstance(argument, str) else argument for key, argument in arguments.items()
    }
    return _call(PENALTIES[name], arguments, where)


def _check_class(penalty: AttentionPenalty) -> AttentionPenalty:
    """Return a penalty if it can be called in a training step; raise an `ArgumentError` if it cannot."""
    kind = type(penalty)
    methods = {"measure": "the attention", "measure_step": "the step"}
    defined = [name for name in methods if getattr(kind, name) is not getattr(AttentionPenalty, name)]
    if not defined:
        raise ArgumentError(f"Expected {kind.__name__} to define `measure` or `measure_step`, but it defines neither.")
    for name in defined:
        parameters = signature(getattr(kind, name))
        try:
            parameters.bind(penalty, None)
        except TypeError:
            raise ArgumentError(
                f"Expected `{name}` of {kind.__name__} to take one argument, {methods[name]}, but got "
                f"{name}{parameters}."
            ) from None
    if not hasattr(penalty, "strength"):
        raise ArgumentError(f"Expected the `__init__` of {kind.__name__} to call `super().__init__(strength)`.")
    return penalty


def _imported(path: str, where: str) -> type[AttentionPenalty]:
    """Return the penalty class of an import path."""
    home, _, name = path.rpartition(".")
    try:
        penalty_class = getattr(import_module(home), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(f"Expected `{where}.class_path` to be importable, but {path!r}: {error}") from error
    is_penalty = isinstance(penalty_class, type) and issubclass(penalty_class, AttentionPenalty)
    expect(is_penalty, f"{where}.class_path", "a subclass of attree.penalties.AttentionPenalty", path)
    return penalty_class


def _call(penalty: type[AttentionPenalty], arguments: Mapping[str, Any], where: str) -> AttentionPenalty:
    try:
        return penalty(**arguments)
    except TypeError as error:
        raise ArgumentError(
            f"Expected argument `{where}` to be arguments of {penalty.__name__}, but got {dict(arguments)}: {error}"
        ) from error


class AttentionPenalties:
    """Penalties on the attention of a model, for any training loop.

    `watch` records the forward pass of a step. `penalty` then returns the term to add to the loss:

    .. code-block:: python

        penalties = AttentionPenalties({"entropy": 0.1})
        with penalties.watch(model) as watched:
            output = model(data.x, data.edge_index)
        loss = F.cross_entropy(output, data.y) + watched.penalty(output, data)

    Add the term before the loss is scaled, divided or reduced, so that it works with mixed precision, accumulated
    gradients and distributed training. Compiled models run eagerly while they are watched.

    Args:
        penalties: Penalties, or a mapping of names to strengths: see `attree.penalties.make_penalties`.
    """

    def __init__(self, penalties: PenaltiesArgument | None = None) -> None:
        self.by_name = make_penalties(penalties)
        self.active = {name: penalty for name, penalty in self.by_name.items() if penalty.strength != 0}
        altering = [name for name, penalty in self.active.items() if penalty.alters]
        expect(len(altering) <= 1, "penalties", "penalties of which at most one changes attention", altering)
        self._altering = self.active[altering[0]] if altering else None
        self._graph: Graph | None = None

    def __bool__(self) -> bool:
        """Whether any penalty has a strength other than 0."""
        return bool(self.active)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the graph of the last step out of copies."""
        return {**vars(self), "_graph": None}

    @contextmanager
    def watch(self, model: nn.Module, number: int = 0) -> Iterator[WatchedPass]:
        """Record the attention of `model` inside the block, with gradients.

        Args:
            model: The model, or any module that contains it.
            number: Number of earlier steps, for penalties that draw random numbers.
        """
        alter = None if self._altering is None else self._noise(self._altering, number)
        with run_eagerly(), record_layers(model, alter=alter, attention_only=True) as records:
            yield WatchedPass(self, model, records, number)

    def _noise(self, penalty: AttentionPenalty, number: int) -> Alter:
        """Return a function that lets a penalty change attention in training, seeded by the step's number."""
        generator = torch.Generator().manual_seed((int(getattr(penalty, "seed", 0)) * 1_000_003 + number) % 2**63)

        def alter(call: LayerCall, scores: Tensor, softmax: Softmax) -> Tensor:
            conv, edges = call.conv, call.scored_edges(scores.shape[0])
            if edges is None:
                raise UnsupportedModelError(
                    f"Expected {type(conv).__name__} to score the edges of its message passing, but it scores others: "
                    "its attention cannot be changed."
                )
            if call.has_two_node_sets:  # equal ids of source and destination are no self-loop there
                edges = torch.stack([edges[0] + (int(edges[1].max()) + 1 if edges.numel() else 0), edges[1]])
            return penalty.alter(conv, scores, softmax, edges, generator) if conv.training else softmax(scores)

        return alter

    def graph_of(self, records: LayerRecords, batch: Any) -> Graph:
        """Return the graph with self-loops of a recorded pass, made from the batch's edge list if both are equal."""
        layer_edges, features = plain(records[0].given_edges), records[0].features
        if isinstance(batch, HeteroData) or isinstance(layer_edges, Mapping):
            return self._typed_graph(batch, layer_edges, features)
        if not is_edge_index(layer_edges) or not isinstance(features, Tensor):
            raise UnsupportedModelError(
                "Expected penalized attention layers to take features as one tensor and edges as a [2, E] tensor, or "
                f"the batch to be HeteroData, but got {type(features).__name__}, {type(layer_edges).__name__} and "
                f"a batch of type {type(batch).__name__}."
            )
        num_nodes, batch_edges = features.shape[0], plain(getattr(batch, "edge_index", None))
        if self._graph is not None and self._graph.matches(layer_edges, num_nodes):
            return self._graph
        self._graph = Graph(layer_edges, num_nodes)
        is_here = is_edge_index(batch_edges) and batch_edges.device == layer_edges.device
        if is_here and batch_edges.numel() and int(batch_edges.max()) < num_nodes:
            # A model may add self-loops to the edges of its layers. Ground truth refers to the batch's edges.
            of_batch = Graph(batch_edges, num_nodes)
            if torch.equal(of_batch.edge_index, self._graph.edge_index):
                self._graph = of_batch
        return self._graph

    def _typed_graph(self, batch: Any, layer_edges: Any, features: Any) -> Graph:
        """Return the union graph of a heterogeneous batch, or of the dicts that the first layer was called with."""
        if isinstance(batch, HeteroData):
            edges, sizes = batch.edge_index_dict, batch.num_nodes_dict
        else:
            edges, sizes = dict(layer_edges), {kind: rows.shape[0] for kind, rows in dict(features).items()}
        cached = self._graph
        if cached is not None and cached.typed_edges.keys() == edges.keys():
            same_edges = all(torch.equal(cached.typed_edges[kind], plain(ends)) for kind, ends in edges.items())
            if same_edges and cached.types == Types.of(sizes, {kind: ends.shape[1] for kind, ends in edges.items()}):
                return cached
        self._graph = Graph.of_types(edges, sizes)
        return self._graph


class WatchedPass:
    """A recorded forward pass.

    Attributes:
        values: The unweighted penalties by name, detached; set by `penalty`.
    """

    def __init__(self, penalties: AttentionPenalties, model: nn.Module, records: LayerRecords, number: int) -> None:
        self.values: dict[str, Tensor] = {}
        self._penalties, self._model, self._records, self._number = penalties, model, records, number

    def attention(self, output: Any, batch: Any = None) -> Attention:
        """Return the model's attention, with gradients.

        Args:
            output: The output of the pass; only layers that it depends on are read.
            batch: The batch of the step, if available.
        """
        if not self._records:
            raise UnsupportedModelError(
                "Expected the training step to call attention convolutions, but it called none."
            )
        graph = self._penalties.graph_of(self._records, batch)
        return attention_of_pass(self._records, graph, output, grad=True)

    def penalty(self, output: Any, batch: Any = None, truth: GroundTruth | None = None) -> Tensor:
        """Return the sum of all penalties, each times its strength.

        Args:
            output: The output of the pass, predictions or loss; only layers that it depends on are read.
            batch: The batch of the step, for penalties that read more than attention.
            truth: The true edges of targets, if there are any.
        """
        step = PenalizedStep(self.attention(output, batch), self._model, batch, truth, self._number)
        total: Tensor | None = None
        for name, penalty in self._penalties.active.items():
            value = check_number(penalty.measure_step(step), name)
            self.values[name] = value.detach()
            total = penalty.strength * value if total is None else total + penalty.strength * value
        assert total is not None, "without penalties, nothing is watched"
        return total


class AttentionPenaltyCallback(Callback):
    """Adds penalties on attention to the loss that a LightningModule's `training_step` returns.

    During a fit, the callback wraps the module's `training_step`. It finds the attention convolutions that the loss
    depends on, and adds the penalties on their attention to the loss before Lightning sees it. So mixed precision,
    accumulated gradients, clipping and distributed strategies treat the sum like any loss. The unweighted penalties are
    logged as `train/attention_<name>`, as means over the steps and processes of an epoch. A module with manual
    optimisation is refused: it must add `AttentionPenalties` to its loss itself.

    .. code-block:: python

        Trainer(callbacks=[attree.AttentionPenaltyCallback({"entropy": 0.1})])

    Args:
        penalties: Penalties, or a mapping of names to strengths: see `attree.penalties.make_penalties`.
        truth: The true edges of targets, for `true_edges`; None takes `trainer.datamodule.truth` if it exists.
    """

    def __init__(self, penalties: PenaltiesArgument, truth: GroundTruth | None = None) -> None:
        self.penalties = AttentionPenalties(penalties)
        expect(bool(self.penalties.by_name), "penalties", "at least one penalty", penalties)
        self.truth = truth
        self._module: LightningModule | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wrap the training step."""
        if not self.penalties:
            return
        if not pl_module.automatic_optimization:
            raise UnsupportedModelError(
                f"Expected {type(pl_module).__name__} to use automatic optimisation, but it optimises manually: add "
                "`attree.penalties.AttentionPenalties` to its loss in `training_step`."
            )
        self._module = pl_module
        vars(pl_module)["training_step"] = self._penalized(trainer, pl_module, pl_module.training_step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the module's own training step."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the module's own training step."""
        self._restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the module's own training step."""
        self._restore()

    def _restore(self) -> None:
        if self._module is not None:
            vars(self._module).pop("training_step", None)
            self._module = None

    def _penalized(
        self, trainer: Trainer, module: LightningModule, training_step: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the training step of a module with penalties added to its loss."""

        @wraps(training_step)
        def penalized(batch: Any, *args: Any, **kwargs: Any) -> Any:
            """Run the module's training step, and return the result with the penalties added to the loss."""
            with self.penalties.watch(module, trainer.fit_loop.total_batch_idx) as watched:
                returned = training_step(batch, *args, **kwargs)
            loss = returned.get("loss") if isinstance(returned, Mapping) else returned
            if loss is None:  # Lightning skips the step
                return returned
            expect(isinstance(loss, Tensor), "training_step", "one that returns a loss", type(loss).__name__)
            data = getattr(trainer, "datamodule", None)
            truth = getattr(data, "truth", None) if self.truth is None else self.truth
            truth = truth if isinstance(truth, GroundTruth) else None
            total = loss + watched.penalty(loss, batch, truth)
            log_penalties(module, watched)
            return {**returned, "loss": total} if isinstance(returned, Mapping) else total

        return penalized


def log_penalties(module: LightningModule, watched: WatchedPass) -> None:
    """Log each penalty of a step as `train/attention_<name>`, a mean over the epoch's steps and all processes."""
    for name, value in watched.values.items():
        module.log(f"train/attention_{name}", value, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
