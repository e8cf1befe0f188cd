"""The layers of a subject with attention over all nodes among them, and which layer feeds which.

A graph transformer has local layers, which send messages along edges, and global ones, in which every node reads every
node of its graph. `Attention` holds the local layers. A `GlobalTrace` holds both kinds in the order of the pass, so
that a walk can pass from one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attree.attention.bypass_and_locality import loud_noise
from attree.attention.global_attention_calls import (
    FIRST_MARK,
    GlobalCall,
    GlobalModuleCall,
    GlobalRecords,
    GlobalWatcher,
    global_modules,
    input_of,
    watch_global,
)
from attree.attention.graph import Graph
from attree.attention.instruments import LayerCall, Watcher, instrument
from attree.attention.stand_ins import eval_mode
from attree.attention.wiring import OUTPUT, CallGraph, Feeds, Wiring, feeds_of, without_skips
from attree.errors import UnsupportedModelError
from attree.subject.facts import facts_of
from attree.subject.model_call import ModelCall

IN_ORDER = "places hold nodes in their order"
"""The fact that each place of a dense batch holds the node that `to_dense_batch` puts there, for batches of some sizes.
A model that sorts its nodes by what it computes is checked in every pass.
"""


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


def global_records(call: ModelCall, batch: Tensor | None) -> GlobalRecords | None:
    """Return where a pass records its calls over all nodes; None if the model has no modules that attend so.

    Args:
        call: The call of the model.
        batch: The graph of each node, if the call does not say so.
    """
    if call.types is not None or not global_modules(call.model):
        return None
    batch = batch if call.batch is None else call.batch
    return GlobalRecords(
        torch.zeros(call.num_nodes, dtype=torch.long, device=call.edge_index.device) if batch is None else batch
    )


@torch.no_grad()
def global_trace(call: ModelCall, graph: Graph, layout: Wiring, records: GlobalRecords | None) -> GlobalTrace | None:
    """Return the layers of a recorded pass if some attend over all nodes; None if none do.

    Args:
        call: The recorded call.
        graph: Its graph.
        layout: The wiring of the layers along edges.
        records: The calls over all nodes of the pass.

    Raises:
        UnsupportedModelError: If it is not known how such a module computes, which node it reads where, or how its
            output is combined with that of other layers.
    """
    if records is None:
        return None
    if records.error is not None:
        raise records.error
    if not records.calls:
        return None
    layers, provenance = records.layers, records.provenance
    assert provenance is not None
    _check_places(call, records)
    order = sorted([*((number, 1, number) for number in range(len(layers))), *records.order])
    place = {mark: position for position, (_, _, mark) in enumerate(order)}
    factors = {mark: dict(layer.mix.factors) for mark, layer in enumerate(layers)} | records.feeds
    reached = feeds_of(factors[OUTPUT], factors[OUTPUT], factors.__getitem__)
    if not any(mark >= FIRST_MARK for mark in reached):
        return None
    full: Feeds = {
        OUTPUT if mark == OUTPUT else place[mark]: {place[before]: factor for before, factor in feeding.items()}
        for mark, feeding in reached.items()
    }
    calls = sorted(set(full) - {OUTPUT})
    nonlinear = {frozenset(place[mark] for mark in pair): name for pair, name in provenance.nonlinear.items()}
    wiring = CallGraph(calls, _reduced(full, nonlinear), None if _mixed(full, nonlinear) else full).wiring()
    local = {layer_call: layer for layer, layer_calls in enumerate(layout.layers) for layer_call in layer_calls}
    steps: list[int | GlobalCall] = []
    for position in calls:
        mark = order[position][2]
        if mark < FIRST_MARK and mark not in local:
            raise UnsupportedModelError(
                f"Expected {call.name} to read its layer `{layers[mark].name}` as its other layers do, but only "
                "attention over all nodes reads it."
            )
        steps.append(records.calls[mark] if mark >= FIRST_MARK else local[mark])
    ends_in = records.batch[graph.edge_index]
    is_apart = torch.equal(ends_in[0], ends_in[1])
    return GlobalTrace(tuple(steps), wiring, records.batch if is_apart else torch.zeros_like(records.batch))


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


def _check_places(call: ModelCall, records: GlobalRecords) -> None:
    """Find out which node each place holds, where it is not the one that `to_dense_batch` would put there.

    The model runs again with other features of half of the nodes, and with other outputs of its layers there: the
    inputs of a module must change in the places of these nodes. If all inputs change, as after a norm over all nodes,
    nothing is known. If others change, the model sorts its nodes (PyG's Polynormer does): one pass for each bit of the
    nodes' numbers then tells which node is where.
    """
    facts, sizes = facts_of(call), [records.calls[mark].nodes.shape for mark in records.calls]
    if facts.get(IN_ORDER) == sizes:
        return
    count = call.num_nodes
    half = torch.rand(count, generator=torch.Generator().manual_seed(0)) < 0.5
    differs = _changed_places(call, records, half)
    wrong = [mark for mark, where in differs.items() if not _fits(where, records.calls[mark].nodes, half)]
    if not wrong:
        facts[IN_ORDER] = sizes
        return
    numbers = torch.arange(count)
    bits = [(numbers >> bit) % 2 == 1 for bit in range(max(count - 1, 1).bit_length())]
    for mark in wrong:
        global_call = records.calls[mark]
        is_node = global_call.nodes >= 0
        places = torch.zeros_like(global_call.nodes)
        for bit, is_noisy in enumerate(bits):
            places += _changed_places(call, records, is_noisy)[mark].long() << bit
        places = torch.where(is_node, places, -1)
        for later in records.calls:
            if later >= mark and records.calls[later].nodes.shape == places.shape:
                records.calls[later] = replace(records.calls[later], nodes=places)
        is_order = torch.equal(places[is_node].sort().values, numbers.to(places.device))
        if not is_order or not _fits(_changed_places(call, records, half)[mark], places, half):
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


def _changed_places(call: ModelCall, records: GlobalRecords, changed: Tensor) -> dict[int, Tensor]:
    """Return, for each call over all nodes, the places whose inputs change with the states of some nodes, [B, n]."""
    rows = changed.nonzero().view(-1).to(call.edge_index.device)
    if call.has_features and call.x.is_floating_point() and call.x.layout == torch.strided:
        call = call.with_features(_noisy(call.x, rows))
    watcher = _ReplacedOutputs(records, rows)
    with eval_mode(call.model), instrument(call.model, watcher), watch_global(call.model, watcher.everywhere):
        call.run()
    inputs = watcher.everywhere.inputs
    return {mark: (inputs[mark] != records.inputs[mark]).flatten(2).any(dim=2) for mark in records.calls}


def _noisy(values: Tensor, rows: Tensor) -> Tensor:
    return values.index_copy(0, rows, loud_noise(values[rows], values, seed=1))


class _ReplacedOutputs(Watcher):
    """Replaces the outputs of all local layers by those of an earlier pass, with noise in some rows."""

    def __init__(self, records: GlobalRecords, rows: Tensor) -> None:
        self._layers, self._rows = records.layers, rows
        self.everywhere = _ReplacedEverywhere(records, rows)

    def end(self, call: LayerCall, output: Any) -> Any:
        recorded = self._layers[call.number].output
        if call.is_inner or not isinstance(recorded, Tensor):
            return None
        noisy = _noisy(recorded.detach(), self._rows)
        return (noisy, *output[1:]) if isinstance(output, tuple) else noisy


class _ReplacedEverywhere(GlobalWatcher):
    """Does the same for the modules over all nodes, and keeps their inputs."""

    def __init__(self, records: GlobalRecords, rows: Tensor) -> None:
        self._records, self._rows = records, rows
        self.inputs: dict[int, Tensor] = {}

    def end(self, call: GlobalModuleCall, output: Any) -> Tensor | None:
        mark = FIRST_MARK + call.number
        if mark not in self._records.calls:
            return None
        nodes = self._records.calls[mark].nodes
        self.inputs[mark] = input_of(call, nodes.shape).clone()
        recorded = self._records.outputs[mark]
        is_changed = torch.isin(nodes, self._rows).unsqueeze(-1)
        is_changed = is_changed if recorded.shape[:2] == nodes.shape else is_changed.transpose(0, 1)
        return torch.where(is_changed, loud_noise(recorded, recorded.flatten(0, 1), seed=2), recorded)
