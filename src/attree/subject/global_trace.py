"""The layers of a subject with attention over all nodes among them, and which layer feeds which.

A graph transformer has local layers, which send messages along edges, and global ones, in which every node reads every
node of its graph. `Attention` holds the local layers. A `GlobalTrace` holds both kinds in the order of the pass, so
that a walk can pass from one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attree.attention.global_attention import (
    GlobalCall,
    GlobalModuleCall,
    GlobalWatcher,
    check_mixing,
    global_modules,
    place_nodes,
    watch_global,
)
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.layer_records import LayerRecords, record_layers
from attree.attention.locality import loud_noise
from attree.attention.provenance import tensors_in
from attree.attention.stand_ins import eval_mode
from attree.attention.wiring import OUTPUT, CallGraph, Feeds, Wiring, feeds_of, without_skips
from attree.errors import UnsupportedModelError
from attree.subject.model_call import ModelCall
from attree.subject.subject import Subject

FIRST_MARK = 1_000_000
"""Marks of global calls begin here, after those of all local ones."""


@dataclass(frozen=True)
class GlobalTrace:
    """All layers of a graph transformer.

    Attributes:
        steps: For each layer in the order of the pass: the index of a local layer in `Attention`, or a global call.
        wiring: Which layer feeds which, in the same order.
        graph_of: The graph of each node: no node reads nodes of another graph.
    """

    steps: tuple[int | GlobalCall, ...]
    wiring: Wiring
    graph_of: Tensor

    @property
    def reading_input(self) -> list[int]:
        """The layers that read the input of the model, and no other layer."""
        fed = {later for feeds in self.wiring.feeds for later, _ in feeds}
        return [layer for layer in range(len(self.steps)) if layer not in fed]

    @property
    def calls(self) -> list[GlobalCall]:
        """The global calls, in the order of the pass."""
        return [step for step in self.steps if isinstance(step, GlobalCall)]

    def uniform(self, total: bool = False) -> GlobalTrace:
        """Return the trace if every node read all nodes of its graph alike; with weights of 1 if `total`."""
        steps = (step if isinstance(step, int) else step.uniform(total) for step in self.steps)
        return replace(self, steps=tuple(steps))


def global_trace(subject: Subject) -> GlobalTrace | None:
    """Return the layers of a subject if some attend over all nodes; None if none do, or if there is no model.

    They are found in one more pass, and kept as long as the subject.

    Raises:
        UnsupportedModelError: If it is not known how such a module computes, which node it reads where, or how its
            output is combined with that of other layers.
    """
    if subject not in _TRACES:
        _TRACES[subject] = _trace(subject)
    return _TRACES[subject]


_TRACES: WeakKeyDictionary[Subject, GlobalTrace | None] = WeakKeyDictionary()
"""The trace of each subject that is alive."""


def batch_of(subject: Subject) -> Tensor:
    """Return the graph of each node, as the model's attention separates them."""
    batch = subject.call.batch
    batch = subject.batch if batch is None else batch
    return torch.zeros(subject.graph.num_nodes, dtype=torch.long, device=subject.device) if batch is None else batch


@torch.no_grad()
def _trace(subject: Subject) -> GlobalTrace | None:
    if subject.model_call is None or subject.graph.types is not None or not global_modules(subject.model):
        return None
    model, batch = subject.model, batch_of(subject)
    with eval_mode(model), record_layers(model) as records:
        recorder = _Recorder(records, batch)
        with watch_global(model, recorder):
            output = subject.call.run()
        assert records.provenance is not None
        ends = dict(records.provenance.mix(output).factors)
    if not recorder.calls:
        return None
    _check_places(subject.call, records, recorder)
    order = sorted([*((number, 1, number) for number in range(len(records))), *recorder.order])
    place = {mark: position for position, (_, _, mark) in enumerate(order)}
    factors = {mark: dict(record.mix.factors) for mark, record in enumerate(records)} | recorder.feeds
    reached = feeds_of(ends, ends, factors.__getitem__)
    if not any(mark >= FIRST_MARK for mark in reached):
        return None
    full: Feeds = {
        OUTPUT if mark == OUTPUT else place[mark]: {place[before]: factor for before, factor in feeding.items()}
        for mark, feeding in reached.items()
    }
    calls = sorted(set(full) - {OUTPUT})
    nonlinear = {frozenset(place[mark] for mark in pair): name for pair, name in records.provenance.nonlinear.items()}
    wiring = CallGraph(calls, _reduced(full, nonlinear), None if _mixed(full, nonlinear) else full).wiring()
    local = {call: layer for layer, layer_calls in enumerate(subject.attention.layout.layers) for call in layer_calls}
    steps: list[int | GlobalCall] = []
    for position in calls:
        mark = order[position][2]
        if mark < FIRST_MARK and mark not in local:
            raise UnsupportedModelError(
                f"Expected {subject.call.name} to read its layer `{records[mark].name}` as its other layers do, but "
                "only attention over all nodes reads it."
            )
        steps.append(recorder.calls[mark] if mark >= FIRST_MARK else local[mark])
    ends_in = batch[subject.graph.edge_index]
    is_apart = torch.equal(ends_in[0], ends_in[1])
    return GlobalTrace(tuple(steps), wiring, batch if is_apart else torch.zeros_like(batch))


class _Recorder(GlobalWatcher):
    """Records the calls over all nodes of one pass; the provenance of `records` marks their outputs.

    Attributes:
        calls: The calls, by mark.
        feeds: For each mark, the marks that feed it, with their factors.
        order: For each call, the number of local calls before it, 0, and its mark.
    """

    def __init__(self, records: LayerRecords, batch: Tensor) -> None:
        self.calls: dict[int, GlobalCall] = {}
        self.feeds: Feeds = {}
        self.order: list[tuple[int, int, int]] = []
        self.inputs: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}
        self._records, self._batch = records, batch
        self._begun: dict[int, tuple[dict[int, float], int]] = {}

    def begin(self, call: GlobalModuleCall) -> None:
        assert self._records.provenance is not None
        mix = self._records.provenance.mix((call.args, call.kwargs))
        self._begun[call.number] = dict(mix.factors), len(self._records)

    def end(self, call: GlobalModuleCall, output: Any) -> None:
        mixing = call.read(output)
        nodes = None if mixing is None else place_nodes(mixing, self._batch)
        if mixing is None or nodes is None:
            return
        check_mixing(call, mixing, output, nodes >= 0)
        mark = FIRST_MARK + call.number
        kind, (feeds, before) = type(call.module).__name__, self._begun[call.number]
        self.calls[mark] = GlobalCall(call.name, kind, mixing.weights, nodes, self._batch.numel(), call.number)
        self.feeds[mark] = feeds
        self.order.append((before, 0, mark))
        self.inputs[mark] = input_of(call, nodes.shape).clone()
        self.outputs[mark] = (output[0] if isinstance(output, tuple) else output).detach().clone()
        assert self._records.provenance is not None
        self._records.provenance.mark(output, mark)


def input_of(call: GlobalModuleCall, shape: Sequence[int]) -> Tensor:
    """Return the dense batch that a module was called with, [B, n, channels]."""
    x = next(tensor for tensor in tensors_in((call.args, call.kwargs)) if tensor.is_floating_point())
    return x if x.shape[:2] == tuple(shape) else x.transpose(0, 1)


def _reduced(full: Feeds, nonlinear: dict[frozenset[int], str]) -> Feeds:
    """Return the feeds without skips; raise if a nonlinear operation combines two calls that feed the same one."""
    reduced: Feeds = {}
    for call, direct in without_skips(full).items():
        name = _mixed({call: direct}, nonlinear)
        if name is not None:
            raise UnsupportedModelError(
                "Expected layers along edges and over all nodes that are added, averaged, weighted by one number each "
                f"or concatenated, but their outputs are combined by `{name}`. (`call=`, a function of the model and "
                "the data, can return the output of one branch.)"
            )
        reduced[call] = _scaled(direct)
    return reduced


def _scaled(factors: dict[int, float]) -> dict[int, float]:
    """Return the factors of calls that feed the same call, with a largest one of at most 1.

    Factors only compare branches. In `h + mlp(h)`, each branch of h would count twice.
    """
    largest = max(factors.values(), default=1.0)
    scale = largest if len(factors) == 1 or largest > 1 else 1.0
    return {call: factor / scale if scale else factor for call, factor in factors.items()}


def _mixed(feeds: Feeds, nonlinear: dict[frozenset[int], str]) -> str | None:
    """Return the name of a nonlinear operation that combines calls which feed the same call; None if there is none."""
    for feeding in feeds.values():
        for pair, name in nonlinear.items():
            if pair <= set(feeding):
                return name
    return None


def _check_places(call: ModelCall, records: LayerRecords, recorder: _Recorder) -> None:
    """Find out which node each place holds, where it is not the one that `to_dense_batch` would put there.

    The model runs again with other features of half of the nodes, and with other outputs of its layers there: the
    inputs of a module must change in the places of these nodes. If all inputs change, as after a norm over all nodes,
    nothing is known. If others change, the model sorts its nodes (PyG's Polynormer does): one pass for each bit of the
    nodes' numbers then tells which node is where.
    """
    count = call.num_nodes
    half = torch.rand(count, generator=torch.Generator().manual_seed(0)) < 0.5
    differs = _changed_places(call, records, recorder, half)
    wrong = [mark for mark, where in differs.items() if not _fits(where, recorder.calls[mark].nodes, half)]
    if not wrong:
        return
    numbers = torch.arange(count)
    bits = [(numbers >> bit) % 2 == 1 for bit in range(max(count - 1, 1).bit_length())]
    for mark in wrong:
        global_call = recorder.calls[mark]
        is_node = global_call.nodes >= 0
        places = torch.zeros_like(global_call.nodes)
        for bit, is_noisy in enumerate(bits):
            places += _changed_places(call, records, recorder, is_noisy)[mark].long() << bit
        places = torch.where(is_node, places, -1)
        for later in recorder.calls:
            if later >= mark and recorder.calls[later].nodes.shape == places.shape:
                recorder.calls[later] = replace(recorder.calls[later], nodes=places)
        is_order = torch.equal(places[is_node].sort().values, numbers.to(places.device))
        if not is_order or not _fits(_changed_places(call, records, recorder, half)[mark], places, half):
            raise UnsupportedModelError(
                f"Expected `{global_call.name}` ({global_call.kind}) to attend over the nodes of the data, each in a "
                "place of its own, but it is not clear which place holds which node: make its dense batch with "
                "`torch_geometric.utils.to_dense_batch`."
            )


def _fits(differs: Tensor, nodes: Tensor, changed: Tensor) -> bool:
    """Whether the places of the changed nodes differ and no others do; also if all places of nodes differ."""
    is_node = nodes >= 0
    expected = changed.to(nodes.device)[nodes.clamp(min=0)]
    return torch.equal(differs[is_node], expected[is_node]) or bool(differs[is_node].all())


def _changed_places(call: ModelCall, records: LayerRecords, recorder: _Recorder, changed: Tensor) -> dict[int, Tensor]:
    """Return, for each call over all nodes, the places whose inputs change with the states of some nodes, [B, n]."""
    rows = changed.nonzero().view(-1).to(call.edge_index.device)
    if call.has_features and call.x.is_floating_point() and call.x.layout == torch.strided:
        call = call.with_features(_noisy(call.x, rows))
    watcher = _ReplacedOutputs(records, recorder, rows)
    with eval_mode(call.model), instrument(call.model, watcher), watch_global(call.model, watcher.everywhere):
        call.run()
    inputs = watcher.everywhere.inputs
    return {mark: (inputs[mark] != recorder.inputs[mark]).flatten(2).any(dim=2) for mark in recorder.calls}


def _noisy(values: Tensor, rows: Tensor) -> Tensor:
    return values.index_copy(0, rows, loud_noise(values[rows], values, seed=1))


class _ReplacedOutputs(Watcher):
    """Replaces the outputs of all local layers by those of an earlier pass, with noise in some rows."""

    def __init__(self, records: LayerRecords, recorder: _Recorder, rows: Tensor) -> None:
        self._records, self._rows = records, rows
        self.everywhere = _ReplacedEverywhere(recorder, rows)

    def end(self, call: LayerCall, output: Any) -> Any:
        recorded = self._records[call.number].output
        if call.is_inner or not isinstance(recorded, Tensor):
            return None
        noisy = _noisy(recorded.detach(), self._rows)
        return (noisy, *output[1:]) if isinstance(output, tuple) else noisy


class _ReplacedEverywhere(GlobalWatcher):
    """Does the same for the modules over all nodes, and keeps their inputs."""

    def __init__(self, recorder: _Recorder, rows: Tensor) -> None:
        self._recorder, self._rows = recorder, rows
        self.inputs: dict[int, Tensor] = {}

    def end(self, call: GlobalModuleCall, output: Any) -> Tensor | None:
        mark = FIRST_MARK + call.number
        if mark not in self._recorder.calls:
            return None
        nodes = self._recorder.calls[mark].nodes
        self.inputs[mark] = input_of(call, nodes.shape).clone()
        recorded = self._recorder.outputs[mark]
        is_changed = torch.isin(nodes, self._rows).unsqueeze(-1)
        is_changed = is_changed if recorded.shape[:2] == nodes.shape else is_changed.transpose(0, 1)
        return torch.where(is_changed, loud_noise(recorded, recorded.flatten(0, 1), seed=2), recorded)
