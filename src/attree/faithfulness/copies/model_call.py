"""One call of a model, repeated on copies of subgraphs: which arguments go with nodes, which with edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attree.faithfulness.copies.subgraph_copies import Copies
from attree.faithfulness.exact.trace import exact_dtype
from attree.subject import ModelInputs
from attree.subject.arguments import Kind
from attree.subject.head import Head
from attree.subject.subject import graph_of_nodes


class ModelCall:
    """The call `model(x, edge_index, *args, **kwargs)`, and the same on copies of parts of the graph.

    Args:
        model: The model.
        inputs: The arguments it was called with.
        output: What it returned: one row per node or per graph.
        head: What that means.

    Attributes:
        output: The output, in the most exact type of the device.
        itemsize: Bytes of one number in the model.
        batch: The graph of each node if the scores are those of graphs, else None.
    """

    def __init__(self, model: nn.Module, inputs: ModelInputs, output: Any, head: Head) -> None:
        self._inputs = inputs
        if not head.is_settled:
            head.resolve(output)  # refuses what is no prediction
        self.batch = graph_of_nodes(inputs, output)
        # In float32, the logarithms in dNE would add noise that rank statistics rank.
        self.itemsize = output.element_size()
        self.output = output.to(exact_dtype(output.device))

    def on(self, copies: Copies) -> ModelInputs:
        """The arguments of the same call on copies; each copy is a graph of its own."""

        def part(kind: Kind, value: Any) -> Any:
            if value is self.batch and value is not None:
                return copies.copy
            match kind:
                case Kind.NODE:
                    return value[copies.node]
                case Kind.EDGE:
                    return value[copies.edge]
                case Kind.BATCH:
                    return copies.copy
                case Kind.COUNT:
                    return copies.part.numel()
                case Kind.OTHER:
                    return value

        return self._inputs.replaced(self._inputs.x[copies.node], copies.edge_index, part)

    def rows(self, copies: Copies, target: Tensor) -> Tensor:
        """Which row of the output on copies belongs to the target of each."""
        if self.batch is not None:
            return torch.arange(target.numel(), device=target.device)
        return copies.nodes_of_copies(target)
