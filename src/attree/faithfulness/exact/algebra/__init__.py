"""The arithmetic of each attention convolution, one file each, and the registry that users add theirs to."""

from attree.faithfulness.exact.algebra.base import LayerAlgebra, States
from attree.faithfulness.exact.algebra.known import ALGEBRAS, register_algebra

__all__ = ["ALGEBRAS", "LayerAlgebra", "States", "register_algebra"]
