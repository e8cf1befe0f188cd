"""One call of a model, repeated on other nodes and edges: on copies of subgraphs, or on rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attree.precision import exact_dtype
from attree.subject import ModelInputs
from attree.subject.arguments import Kind
from attree.subject.head import check_output
from attree.subject.subject import graph_of_nodes


class ModelCall:
    """The call `model(x, edge_index, *args, **kwargs)`.

    Args:
        inputs: The arguments it is called with.
        output: What it returned: logits, one row per node, or per graph if an argument says which graph nodes are of.

    Attributes:
        logits: The logits, in the most exact type of the device.
        itemsize: Bytes of one number in the model's output.
        batch: The graph of each node if the logits are those of graphs, else None.
    """

    def __init__(self, inputs: ModelInputs, output: Any) -> None:
        self._inputs = inputs
        check_output(output)
        self.batch = graph_of_nodes(inputs, output)
        # In float32, the logarithms in dNE would add noise that rank statistics rank.
        self.itemsize = output.element_size()
        self.logits = output.to(exact_dtype(output.device))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each of the further arguments belongs to; the graph of each node is `BATCH` if graphs are explained."""
        return tuple(
            Kind.BATCH if value is self.batch and value is not None else kind
            for kind, (_, value) in zip(self._inputs.kinds(), self._inputs.named(), strict=True)
        )

    def on(
        self,
        edge_index: Tensor,
        node: Callable[[Tensor], Tensor],
        edge: Callable[[Tensor], Tensor],
        batch: Tensor | None,
        count: int | None,
    ) -> ModelInputs:
        """The arguments of the same call on other nodes and edges.

        Args:
            edge_index: The edges.
            node: What an argument with one row a node becomes.
            edge: What one with one row an edge becomes.
            batch: The graph of each node; None treats the argument as any with one row a node.
            count: The number of graphs; None leaves it.
        """

        def part(kind: Kind, value: Any) -> Any:
            if value is self.batch and value is not None:
                kind = Kind.BATCH
            match kind:
                case Kind.EDGE:
                    return edge(value)
                case Kind.NODE:
                    return node(value)
                case Kind.BATCH:
                    return node(value) if batch is None else batch
                case Kind.COUNT:
                    return value if count is None else count
                case Kind.OTHER:
                    return value

        return self._inputs.replaced(node(self._inputs.x), edge_index, part)
