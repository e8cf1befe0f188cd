"""Which algebra belongs to which convolution; users add those of their own convolutions here."""

from __future__ import annotations

from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing, SuperGATConv, TransformerConv

from attree.errors import expect
from attree.faithfulness.exact.algebra.base import LayerAlgebra
from attree.faithfulness.exact.algebra.gat import GATAlgebra
from attree.faithfulness.exact.algebra.gatv2 import GATv2Algebra
from attree.faithfulness.exact.algebra.supergat import SuperGATAlgebra
from attree.faithfulness.exact.algebra.transformer import TransformerAlgebra

ALGEBRAS: dict[type[MessagePassing], type[LayerAlgebra]] = {
    GATConv: GATAlgebra,
    GATv2Conv: GATv2Algebra,
    SuperGATConv: SuperGATAlgebra,
    TransformerConv: TransformerAlgebra,
}
"""The algebra of each convolution that can be taken apart, by exact type: a subclass may compute something else."""


def register_algebra(conv: type[MessagePassing], algebra: type[LayerAlgebra]) -> None:
    """Make a convolution known to the exact engine.

    An algebra is one class: what the convolution projects of a node, and how it scores an edge. It is compared with
    the convolution itself before it is used for a model; where they differ the engine is not used.

        class DotAlgebra(LayerAlgebra):
            def project(self, h):
                value = self.by_head(self.conv.lin, h)
                return States(value, source=value, target=value)

            def score(self, source, target, edge=None):
                return (source * target).sum(dim=-1)

        register_algebra(DotConv, DotAlgebra)

    Args:
        conv: The convolution's class; its subclasses are registered on their own.
        algebra: Its algebra.
    """
    expect(isinstance(conv, type) and issubclass(conv, MessagePassing), "conv", "a class of MessagePassing", conv)
    fine = isinstance(algebra, type) and issubclass(algebra, LayerAlgebra)
    expect(fine, "algebra", "a subclass of LayerAlgebra", algebra)
    ALGEBRAS[conv] = algebra
