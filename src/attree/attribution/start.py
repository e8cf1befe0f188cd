"""Where walks through computation trees begin: at a node, or at all nodes of a graph as its readout weighs them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attree.errors import expect
from attree.precision import exact_dtype
from attree.subject import Subject
from attree.subject.subject import Targets


@dataclass(frozen=True)
class Start:
    """Where walks begin: r_L as (target, node, weight) entries, sorted by target.

    A node is explained by one entry of weight 1; a graph by one entry per node, weighted as the readout weighs it.

    Attributes:
        targets: Ids of what is explained (nodes or graphs), [T].
        owner: For each entry the position in `targets`, ascending.
        node: The node of each entry.
        weight: The weight of each entry.
    """

    targets: Tensor
    owner: Tensor
    node: Tensor
    weight: Tensor

    @classmethod
    def at_nodes(cls, targets: Tensor, dtype: torch.dtype | None = None) -> Start:
        """One-hot starts: each target is a node; their weights are as exact as the device allows by default."""
        dtype = exact_dtype(targets.device) if dtype is None else dtype
        positions = torch.arange(targets.numel(), device=targets.device)
        return cls(targets, positions, targets, torch.ones(targets.numel(), dtype=dtype, device=targets.device))

    @classmethod
    def of(cls, subject: Subject, targets: Targets = "all") -> Start:
        """Where the walks of a subject's targets begin; 'all' leaves out graphs that have no nodes."""
        batch = subject.batch
        if batch is None:
            return cls.at_nodes(subject.targets(targets))
        expect(
            batch.shape == (subject.graph.num_nodes,) and batch.dtype == torch.int64,
            "batch",
            f"{subject.graph.num_nodes} graph ids of dtype torch.int64, one a node",
            f"{tuple(batch.shape)} of {batch.dtype}",
        )
        known = batch.unique()
        ids = known if isinstance(targets, str) and targets == "all" else subject.targets(targets)
        expect(bool(torch.isin(ids, known).all()), "targets", "ids of graphs that have nodes", ids.tolist()[:5])
        weights = subject.node_weights()
        position = torch.full((int(known.max()) + 1 if known.numel() else 0,), -1, device=batch.device)
        position[ids] = torch.arange(ids.numel(), device=batch.device)
        owner = position[batch]
        nodes = owner.argsort(stable=True)
        # No flow passes a node that the readout ignores.
        nodes = nodes[(owner[nodes] >= 0) & (weights[nodes] != 0)]
        return cls(ids, owner[nodes], nodes, weights[nodes])

    def slice(self, begin: int, end: int) -> Start:
        """The starts of targets `begin` to `end`."""
        first, last = torch.searchsorted(self.owner, torch.tensor([begin, end], device=self.owner.device)).tolist()
        return Start(
            self.targets[begin:end],
            self.owner[first:last] - begin,
            self.node[first:last],
            self.weight[first:last],
        )
