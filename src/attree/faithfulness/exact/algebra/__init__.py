"""The arithmetic of attention convolutions, and the registry to which users add their own."""

from attree.faithfulness.exact.algebra.base import LayerAlgebra, States
from attree.faithfulness.exact.algebra.known import ALGEBRAS, register_algebra

__all__ = ["ALGEBRAS", "LayerAlgebra", "States", "register_algebra"]
